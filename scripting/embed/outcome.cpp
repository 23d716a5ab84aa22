// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/outcome.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <vector>

#include "moonhalo/engine/comm/call_tag.h"
#include "moonhalo/engine/comm/uncounted.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/program/report.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

/// Words the errors of Lua, LibTorch and C++; an error that went through a script is a text.
bool is_of_memory(std::string_view text) {
  constexpr std::string_view kSigns[] = {"not enough memory", "can't allocate memory", "out of memory",
                                         "std::bad_alloc"};
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return text.find(sign) != std::string_view::npos; });
}

Outcome failure(mh_status status, const std::string& text) { return {is_of_memory(text) ? MH_MEMORY : status, text}; }

/// "2s..." : status, whether it follows from another's failure, text.
std::string pack(const Outcome& outcome) {
  return std::to_string(outcome.status) + (outcome.secondary ? 's' : 'p') + outcome.text;
}

Outcome unpack(const std::string& packed) {
  return {static_cast<mh_status>(packed[0] - '0'), packed.substr(2), packed[1] == 's'};
}

Outcome first_failure(const std::vector<std::string>& all) {
  const auto fails = [](const std::string& packed) { return unpack(packed).status != MH_OK; };
  auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return fails(p) && !unpack(p).secondary; });
  if (found == all.end()) found = std::find_if(all.begin(), all.end(), fails);
  Outcome outcome = unpack(*found);
  outcome.alike = std::all_of(all.begin(), all.end(), [&](const auto& packed) { return packed == *found; });
  if (!outcome.alike) {
    outcome.text += "\n  rank  " + std::to_string(found - all.begin()) + " of " + std::to_string(all.size());
  }
  return outcome;
}

}  // namespace

Outcome attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (const HostError& error) {
    return {error.status(), error.what()};
  } catch (const UsageError& error) {
    return {MH_USAGE, error.what()};
  } catch (const ScriptExit& exit) {
    return {MH_SCRIPT, "the script called os.exit(" + std::to_string(exit.status()) + ")"};
  } catch (const LuaError& error) {
    std::string place = place_in_script(error.what(), error.traceback());
    if (!place.empty()) place = "\n" + place.substr(0, place.size() - 1);
    return failure(MH_SCRIPT, error.what() + place);
  } catch (const CommError& error) {
    return {MH_RANK_LOST, error.what(), /*secondary=*/true};
  } catch (const c10::OutOfMemoryError& error) {
    return {MH_MEMORY, plain_message(error)};
  } catch (const c10::NotImplementedError& error) {
    return {MH_UNSUPPORTED, plain_message(error)};
  } catch (const c10::ValueError& error) {
    return {MH_USAGE, plain_message(error)};
  } catch (const c10::TypeError& error) {
    return {MH_USAGE, plain_message(error)};
  } catch (const std::exception& error) {
    return failure(MH_INTERNAL, plain_message(error));
  }
  return {};
}

Outcome agree(Communicator& control, const std::string& what, const Outcome& mine) {
  if (control.size() == 1) return mine;
  const auto describe = [&what] { return what; };
  const CallScope scope(tag_of(what), "a session's call", describe);
  const Uncounted uncounted;
  Outcome verdict;
  const Outcome met = attempt([&] {
    at::Tensor worst = at::full({1}, static_cast<int64_t>(mine.status), at::kLong);
    control.all_reduce(worst, ReduceOp::kMax);
    if (worst.item<int64_t>() != MH_OK) verdict = first_failure(control.all_gather_strings(pack(mine)));
  });
  verdict.repeats = verdict.status != MH_OK && control.rank() > 0;
  if (met.status == MH_OK) return verdict;
  // The ranks could not even meet: each says what it knows.
  Outcome alone = mine.status != MH_OK ? mine : met;
  alone.alike = false;
  alone.agreed = false;
  return alone;
}

}  // namespace moonhalo::scripting
