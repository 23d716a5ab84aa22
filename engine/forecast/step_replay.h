// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/step_calls.h"

namespace moonhalo {

/// The bytes that the blocks of a step take at the peak, which a replay takes, too. Not collective.
int64_t peak_bytes(const StepCalls& step);

/// The findings of replay_step().
struct ReplayTimes {
  std::map<std::string, double> seconds;      ///< by key, of the slowest rank: the mean of the key's calls
  std::map<std::string, std::string> failed;  ///< by key: why it has no time
  bool stable = true;                         ///< even and odd replays took the same time, within 3 %
};

/// Repeats the operators of a step in their order, and times each call: the median of at least five replays, and of
/// more until `seconds` are over; of at least two where these take longer than 20 s. Memory is made and freed as in the
/// step. So each operator finds its tensors where the step would: in a cache of the processor, or in memory. Messages
/// and kernels of Moonhalo are left out, and so are calls whose key is in `left_out`: the blocks that they would have
/// written are filled with numbers. All ranks of the group repeat the same step at the same time. Collective.
///
/// Numbers are those of fill_with_numbers(). Results that are not finite or larger than 10,000 the first time are
/// replaced by such numbers whenever they are made, since kernels take other times for NaN. The backward of max_pool2d
/// gets the indices that the pooling has found.
ReplayTimes replay_step(Communicator& group, const StepCalls& step, const std::unordered_set<std::string>& left_out,
                        double seconds, ClockOf clock);

}  // namespace moonhalo
