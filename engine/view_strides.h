// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace moonhalo {

/// The strides that the results of a view operator have on one plain tensor. contiguous() and reshape() ask a tensor for
/// them to tell a view from a copy:
///
///     x:t():contiguous():mul_(2)     a plain tensor is copied, x stays; so must it here
///
/// Found from global shapes and strides alone, so all ranks find the same; kept with the decision of the call.
class ViewStrides {
 public:
  /// By result, lists flattened; nullopt where rows lie one behind the other.
  using Results = std::vector<std::optional<at::DimVector>>;

  /// Before the call: `stack` ends with its arguments. Null if all results are row-major.
  std::shared_ptr<const Results> of(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments);
  /// After it: `stack` ends with the results, from `base` on.
  static void give(const Results& strides, const torch::jit::Stack& stack, size_t base);

 private:
  struct Known {
    at::DimVector given;  // strides of the tensor that is viewed
    std::shared_ptr<const Results> results;
  };
  std::vector<Known> known_;  // a handful at most
  std::optional<std::shared_ptr<const Results>> of_row_major_;
};

}  // namespace moonhalo
