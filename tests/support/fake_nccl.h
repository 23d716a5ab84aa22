// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/device/nccl_api.h"
#include "tests/support/patience.h"

namespace moonhalo::testing::fake {

/// A fake NCCL over the simulated devices' streams: what is posted runs when its stream gets there, and ends when
/// the other ranks' parts have come there too (no message is kept on the way). Like NCCL it adds round a ring, so
/// in another order for each part, rounds half types at every step, and drops NaN from max and min; it refuses two
/// ranks on one device. Nothing blocks: communicators are in progress until all ranks are there.
const NcclApi& nccl();

/// A fault of one rank; its groups are counted from now on.
struct NcclFault {
  int rank = -1;
  int group_at = -1;         ///< from this group on (0: the first); -1: never
  bool never_ends = false;   ///< the device waits there for ever
  bool refused = false;      ///< ncclGroupEnd returns an error
  bool async_error = false;  ///< ncclCommGetAsyncError returns one from then on, and the device waits for ever
  bool abort_hangs = false;  ///< ncclCommAbort does not return until the fault is taken back
  bool init_fails = false;   ///< ncclCommInitRankConfig returns an error
  bool init_hangs = false;   ///< and never ends
};
void plant(const NcclFault& fault);

/// Sets whether messages are read as soon as the stream beside allows it. Otherwise that begins late, as all streams
/// do, and a message that does not wait for what is computed may be right by chance.
void read_at_once(bool on);

/// Counts over all ranks, since the last plant().
struct NcclCounts {
  int groups = 0, inits = 0, aborts = 0, destroys = 0;
};
NcclCounts nccl_counts();

/// While it lives, the double is NCCL, and carries tensors of simulated devices.
class WithNccl {
 public:
  WithNccl();
  ~WithNccl();
  WithNccl(const WithNccl&) = delete;
};

/// on_ranks (support/ranks.h) with a device for each rank and a communicator of it whose messages go by the double.
void on_nccl_ranks(int ranks, const std::function<void(Communicator&)>& body, std::chrono::milliseconds limit = kHang);

}  // namespace moonhalo::testing::fake
