// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {

/// Carries out an operator that writes (out=, in-place) and has no rule of its own: runs the functional form of
/// `facts` and copies its results to where they belong. Both in-place operators and out=: write_result.
void run_functional(const OperatorFacts& facts, Stack& stack);

/// Puts `result` where the operator `name` writes: an out= tensor (`out`), or self of an in-place operator, gets
/// the value and keeps its cut; an empty out= tensor takes the result's shape and cut. ValueError where shapes
/// differ.
void write_result(const std::string& name, const at::Tensor& result, const at::Tensor& target, bool out);

/// LibTorch's composites with an out= tensor resize it behind the dispatcher's back: then the sizes are not the spec's
/// any more, and there is storage that is not read. Such a tensor becomes a replicated one of its new shape; what it
/// held is lost.
/// No communication.
void take_new_shape(ShardTensorImpl& impl);
inline void notice_new_shape(ShardTensorImpl& impl) {
  if (impl.unsafe_storage() || impl.numel() == 0) [[unlikely]]
    take_new_shape(impl);
}

}  // namespace moonhalo
