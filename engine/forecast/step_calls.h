// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "moonhalo/engine/forecast/operator_call.h"

namespace moonhalo {

/// The calls of operators in a training step of a rank, in order, and the blocks of memory that they use. It is plain
/// data, recorded with the tape (tape_recorder.h), to repeat the operators (step_replay.h).
struct StepCalls {
  /// The place of a tensor: its block, and the element of it with which the tensor begins.
  struct Place {
    uint32_t block = 0;
    int64_t offset = 0;
  };
  /// A call, or a block that is made or freed. A block is made before the call that returns it.
  struct Event {
    enum Kind : uint8_t { kCalled, kMade, kFreed };
    Kind kind = kCalled;
    uint32_t block = 0;                          ///< that is made or freed
    int64_t bytes = 0;                           ///< of the block that is made
    OperatorCall call = {};                      ///< of this call alone; calls of the same key may differ in strides
    std::vector<Place> arguments, results = {};  ///< of its tensors, in order
  };
  std::vector<Event> events;
  std::map<uint32_t, int64_t> before;  ///< the blocks that were there before the step, and their bytes
};

}  // namespace moonhalo
