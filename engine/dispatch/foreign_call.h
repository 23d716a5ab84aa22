// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/DimVector.h>

#include <optional>
#include <utility>
#include <vector>

#include "moonhalo/engine/dispatch/dispatch.h"

namespace moonhalo {

/// A call that is carried out by a kernel of others: an operator without a rule, or one of another library. It may
/// read memory as its caller's tensors declare it (x.contiguous(), then data_ptr()), so it is given blocks that do.
class ForeignCall {
 public:
  /// `stack` holds the caller's tensors from `base` on.
  ForeignCall(const Decision& decision, const Stack& stack, size_t base);
  /// The same stack holds blocks now.
  void lay(Stack& stack, size_t base);
  /// After the call: what was written goes to where the caller's tensors have it.
  void put_back() const;

 private:
  const std::vector<Decision::Move>& moves_;
  std::vector<std::optional<at::DimVector>> strides_;       // by move: of the whole tensor
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // blocks, and what the kernel wrote in their place
};

}  // namespace moonhalo
