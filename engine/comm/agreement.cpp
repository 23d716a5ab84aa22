// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/agreement.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {
namespace {

enum Kind : char { kNone = '-', kRuntime = 'r', kValue = 'v', kType = 't', kMissing = 'n' };

/// A failure as it is sent: its kind, then its message.
std::string attempt(const std::function<void()>& work) {
  const auto packed = [](Kind kind, const char* text) { return std::string(1, kind) + text; };
  try {
    work();
  } catch (const c10::NotImplementedError& error) {
    return packed(kMissing, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return packed(kValue, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return packed(kType, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return packed(kRuntime, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return packed(kRuntime, error.what());
  }
  return std::string(1, kNone);
}

/// Throws an error of the type that it had where it was thrown.
[[noreturn]] void throw_again(char kind, const std::string& text) {
  switch (kind) {
    case kValue:
      TORCH_CHECK_VALUE(false, text);
    case kType:
      TORCH_CHECK_TYPE(false, text);
    case kMissing:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    default:
      TORCH_CHECK(false, text);
  }
}

}  // namespace

void check_same_on_all_ranks(Communicator& world, const char* op, const char* settings, const std::string& setting) {
  if (world.size() == 1) return;
  const std::vector<std::string> all = world.all_gather_strings(setting);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank] == all[0], op, ": ranks 0 and ", rank, " want different ", settings,
                      "\n  have  rank 0: ", all[0], "; rank ", rank, ": ", all[rank],
                      "\n  fix   give every rank the same");
  }
}

void fail_together(Communicator& group, const std::function<void()>& work, const std::string& rank) {
  const std::string mine = attempt(work);
  at::Tensor failed = at::full({1}, mine[0] == kNone ? 0 : 1, at::kLong);
  {
    const WithoutTimeLimit patient;  // a rank that reads or writes is not lost, however long it takes
    group.all_reduce(failed, ReduceOp::kMax);
  }
  if (failed.item<int64_t>() == 0) return;

  const auto all = group.all_gather_strings(mine);
  const auto first = static_cast<size_t>(
      std::find_if(all.begin(), all.end(), [](const auto& s) { return s[0] != kNone; }) - all.begin());
  const bool identical = std::all_of(all.begin(), all.end(), [&](const auto& s) { return s == all[first]; });
  std::string text = all[first].substr(1);
  const std::string self = std::to_string(group.rank()) + " of " + std::to_string(group.size());
  const auto names = group.all_gather_strings(rank.empty() ? self : rank);
  if (!identical) text += "\n  rank  " + names[first];
  throw_again(all[first][0], text);
}

std::string broadcast_string(Communicator& group, std::string text) {
  const WithoutTimeLimit patient;  // rank 0 reads or writes, however long that takes
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  group.broadcast(length, 0);
  text.resize(static_cast<size_t>(length.item<int64_t>()));
  at::Tensor bytes = at::from_blob(text.data(), {length.item<int64_t>()}, at::kByte);
  group.broadcast(bytes, 0);
  return text;
}

std::string run_on_first_rank(Communicator& group, const std::function<std::string()>& work) {
  std::string outcome;
  if (group.rank() == 0 || group.is_fake()) {
    std::string text;
    outcome = attempt([&] { text = work(); }) + text;
  }
  outcome = broadcast_string(group, std::move(outcome));
  if (outcome[0] != kNone) throw_again(outcome[0], outcome.substr(1));
  return outcome.substr(1);
}

}  // namespace moonhalo
