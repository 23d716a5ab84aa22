// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "moonhalo/engine/forecast/operator_call.h"

namespace moonhalo {

/// Repeats a call as in a step, where other memory was used since the operator's own was: copies of its tensors take
/// turns, as many as take 16 MiB or 20 ms, 64 at most. The results of a copy live until its turn comes again, so that
/// those of the next are in other memory. Where one copy takes more than 16 MiB, its results are freed before the next
/// call: no more memory is held than that of one call. Not collective.
class RepeatedCalls {
 public:
  /// `bytes`: of the arguments and results of one call, which takes about `seconds`. `call` must outlive this. Calls
  /// with each copy once; throws what the operator throws.
  RepeatedCalls(const OperatorCall& call, int64_t bytes, double seconds);
  /// Calls with the next copy.
  void next();

 private:
  struct Copy {
    std::vector<c10::IValue> arguments, results;
  };
  const OperatorCall& call_;
  bool frees_results_;
  std::vector<Copy> copies_;
  size_t next_ = 0;
};

}  // namespace moonhalo
