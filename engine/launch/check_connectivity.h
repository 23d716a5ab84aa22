// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Times of one size of messages, of the slowest rank.
struct MessageTimes {
  int64_t bytes = 0;
  double ring = 0;        ///< seconds until a message has come from the rank before, while one goes to the next
  double all_reduce = 0;  ///< seconds of a sum over all ranks
};

/// Sends messages of several sizes round the ring of all ranks and adds as many numbers up, tensors of `device`, and
/// compares every number that arrives. Medians; the host waits for the device after each. Collective. CommError on
/// every rank where numbers of any are not those that were sent.
std::vector<MessageTimes> check_connectivity(Communicator& group, c10::Device device);

}  // namespace moonhalo
