// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/exchange/halo_options.h"

namespace moonhalo {

/// Lists the call's arguments for the text of an error: "[8, 8] on mesh(3: x): Shard(0)", one for each ShardTensor.
std::string inputs_text(const Decision& decision);

/// Lives while one traced call is carried out, and tells what became of it.
class TracedCall {
 public:
  /// Once, after the call; `bytes` were sent for it.
  TraceRecord record(const c10::OperatorHandle& op, const Decision& decision, int64_t bytes);

 private:
  HaloEvents events_;
  HaloTimes before_ = halo_times();
  RecordHalo recording_{&events_};
  TrafficNotes notes_;
};

}  // namespace moonhalo
