// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {

class FakeCallTime;  // forecast/fake_call_time.h
class MemoryCounter;
class Recorder;

/// One rank's state of measurements.
struct ProfileContext {
  std::shared_ptr<MemoryCounter> memory;  ///< memory.h
  Recorder* recorder = nullptr;           ///< recorder.h
  /// The processor time of fake calls, while something takes it (forecast/tape_recorder.h).
  FakeCallTime* fake_call_time = nullptr;
  /// Functions that are called for each step of an optimizer (watch_steps).
  struct StepWatch {
    const void* owner;
    std::function<void(int64_t)> seen;
    const void* optimizer = nullptr;  // the first that stepped
    int64_t steps = 0;
  };
  std::vector<std::shared_ptr<StepWatch>> step_watches;
};
inline const RankLocal<ProfileContext> profile_context;

}  // namespace moonhalo
