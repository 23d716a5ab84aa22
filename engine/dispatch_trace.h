// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/dispatch.h"
#include "engine/halo.h"

namespace moonhalo {

/// Lives while one traced call is carried out, and tells what became of it.
class TracedCall {
 public:
  /// Once, after the call; `bytes` were sent for it.
  TraceRecord record(const c10::OperatorHandle& op, const Decision& decision, int64_t bytes);

 private:
  HaloEvents events_;
  HaloTimes before_ = halo_times();
  RecordHalo recording_{&events_};
};

}  // namespace moonhalo
