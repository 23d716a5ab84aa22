// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/outcome.h"

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/program/report.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

/// Words the errors of Lua, LibTorch and C++; an error that went through a script is a string.
bool is_of_memory(std::string_view text) {
  constexpr std::string_view kSigns[] = {"not enough memory", "can't allocate memory", "out of memory",
                                         "std::bad_alloc"};
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return text.find(sign) != std::string_view::npos; });
}

constexpr const char* kSameCalls =
    "\n  fix   make the same calls in the same order on all ranks, and the same collectives in the script";

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
  outcome.identical = std::all_of(all.begin(), all.end(), [&](const auto& packed) { return packed == *found; });
  if (!outcome.identical) {
    outcome.text += "\n  rank  " + std::to_string(found - all.begin()) + " of " + std::to_string(all.size());
  }
  return outcome;
}

const uint64_t kAgreement = fingerprint_of("agree");
constexpr const char* kSessionsCall = "a session's call";

/// Returns true on all ranks if all give this word. One small message under MPI.
bool all_same(Communicator& control, uint64_t word, const CallScope::Describe& describe) {
  {
    const CallScope scope(word, kSessionsCall, describe);
    if (const std::optional<bool> same = backend_of(control).same_scope()) return *same;
  }
  const CallScope scope(kAgreement, kSessionsCall, describe);
  const auto half = static_cast<int64_t>(word >> 1);  // so that there is a number below 0 for each
  at::Tensor largest = at::tensor({half, -half});
  control.all_reduce(largest, ReduceOp::kMax);
  const auto* all = largest.const_data_ptr<int64_t>();
  return all[0] == -all[1];
}

/// Ranks that call different functions: `calls` of all of them, and how those failed.
Outcome calls_differ(const std::vector<std::string>& calls, const std::vector<std::string>& failures) {
  const auto other = static_cast<size_t>(
      std::find_if(calls.begin(), calls.end(), [&](const auto& call) { return call != calls[0]; }) - calls.begin());
  const auto call_of = [&](size_t rank) {
    const std::string& failure = failures[rank];
    return "rank " + std::to_string(rank) + ": " + calls[rank] +
           (failure.empty() ? "" : ", which failed: " + failure.substr(0, failure.find('\n')));
  };
  Outcome outcome{MH_USAGE, "session: ranks 0 and " + std::to_string(other) + " make different calls\n  have  " +
                                call_of(0) + "; " + call_of(other) + kSameCalls};
  outcome.identical = false;
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

std::optional<Outcome> deadlocked_ranks(Communicator& control) {
  const std::string waits = backend_of(control).take_deadlock();
  if (waits.empty()) return std::nullopt;
  Outcome outcome{MH_USAGE,
                  "session: all ranks wait for each other, in different calls\n  have  " + waits + kSameCalls};
  outcome.identical = false;
  outcome.repeats = control.rank() > 0;
  return outcome;
}

Outcome agree(Communicator& control, const std::string& what, const Outcome& mine) {
  if (control.size() == 1) return mine;
  const auto describe = [&what] { return what; };
  const ScopedStatsPause stats_pause;
  Outcome report;
  const Outcome met = attempt([&] {
    const uint64_t word = combine_fingerprint(fingerprint_of(what), static_cast<uint64_t>(mine.status));
    if (all_same(control, word, describe) && mine.status == MH_OK) return;
    const CallScope scope(kAgreement, kSessionsCall, describe);
    const std::vector<std::string> calls = control.all_gather_strings(what);
    const bool same = std::all_of(calls.begin(), calls.end(), [&](const auto& call) { return call == what; });
    report = same ? first_failure(control.all_gather_strings(pack(mine)))
                  : calls_differ(calls, control.all_gather_strings(mine.text));
  });
  report.repeats = report.status != MH_OK && control.rank() > 0;
  if (met.status == MH_OK) return report;
  if (const auto stuck = deadlocked_ranks(control)) return *stuck;
  // The ranks could not even communicate: each reports its own facts.
  Outcome alone = mine.status != MH_OK ? mine : met;
  alone.identical = false;
  alone.agreed = false;
  return alone;
}

}  // namespace moonhalo::scripting
