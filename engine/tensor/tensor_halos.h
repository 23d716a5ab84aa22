// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>
#include <vector>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/exchange/halo_cache.h"

namespace moonhalo {

/// For run functions: the cache of the ShardTensor whose own block is argument `index` of the call that this thread
/// carries out, so that a second reader of the same rows need not fetch them again (set_halo{keep = true}). Null where
/// halos are not kept, or the block was moved first. What is gathered from must hold the rows of that argument.
///
/// Rows are taken from what was kept only by facts that all ranks share: the ShardTensor is the same object, its
/// version counter stands where it stood (every in-place operator on it, or on a view of it, moves it), no other
/// set_halo came between, and the map is equal for all ranks (IntervalMap::Key). Kept with the tensor
/// (shard_tensor_meta.h), and dropped when it is exchanged in a newer version, is given other data, or dies; of one
/// version the 16 maps exchanged last.
///
/// A block can be written without the ShardTensor's knowing: through to_local(), the tensor that from_local() took, or
/// .data(). Other ranks cannot see that, so the rank that finds it when it would reuse throws ValueError. Writes
/// through raw pointers are not seen, as in autograd. Nothing is kept in inference mode and of inference tensors,
/// which count no versions.
HaloCachePtr halo_cache_of_argument(int index);

/// While it lives, halo_cache_of_argument has the ShardTensors of one call.
class CurrentCall {
 public:
  using Arguments = std::vector<std::pair<int, at::Tensor>>;
  CurrentCall(const c10::OperatorHandle& op, Arguments arguments);

 private:
  friend HaloCachePtr halo_cache_of_argument(int index);
  const c10::OperatorHandle& op_;
  Arguments arguments_;
  ScopedValue<const CurrentCall*> current_;
};

struct ShardTensorImpl;
/// For a ShardTensor that an operator will write, on every rank: drops them, and moves the block's version, for
/// tensors that share the block but not the ShardTensor's counter (.data, and what operators make below autograd).
void invalidate_halos(ShardTensorImpl& impl);

}  // namespace moonhalo
