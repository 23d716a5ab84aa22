// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A call of a view operator on a stored tensor with a cache (unsharded_cache.h), or on a view of one. The results
/// remember it, so that operators that need them unsharded use the same view of what is cached.
struct CallOnStored {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  ///< the first is the tensor
  SpecPtr spec;                        ///< of the tensor at the time of the call
  at::Storage storage;                 ///< of its block then

  /// True unless the tensor has another block or cut since (`.data = `, `t_()`): the results stay what they were.
  bool is_of_tensor() const;
};

/// Returns the call, or null if its first argument is not such a tensor. Not collective.
std::shared_ptr<const CallOnStored> call_on_stored(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

/// Notes that `view` is result `index` of the call, lists flattened. Not collective.
void note_view(const at::Tensor& view, std::shared_ptr<const CallOnStored> call, size_t index);

}  // namespace moonhalo
