// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

class WriteCount;

/// A cache of the unsharded value of a stored tensor, gathered once for several operators. An operator that finds it
/// empty or out of date gathers for itself. Several tensors may share one cache (a parameter and its cast).
struct UnshardedCache {
  at::Tensor whole;                                       ///< undefined: the cache is empty
  SpecPtr spec;                                           ///< of `whole`
  SpecPtr transposed;                                     ///< of its transpose; null unless it has two dims
  uint64_t of = 0;                                        ///< number of the cached values, see attach_unsharded_cache
  std::vector<std::shared_ptr<const WriteCount>> counts;  ///< write counts of the tensors that use the cache

  /// Puts the gathered value number `values` into the cache; empties the cache. Not collective.
  void keep(at::Tensor gathered, SpecPtr its_spec, uint64_t values);
  void drop();
};

/// Attaches a cache to `tensor`. From now on operators that need `tensor`, or a transposed view of it, unsharded use
/// the cache if it holds the values number `values`, until an operator writes the tensor's memory. Every
/// rank calls it with the same number. Not collective.
void attach_unsharded_cache(const at::Tensor& tensor, const std::shared_ptr<UnshardedCache>& kept, uint64_t values);

/// True if attach_unsharded_cache was called for the tensor, of any shape. Not collective.
bool has_unsharded_cache(const at::Tensor& tensor);

/// Returns the cache if it holds the tensor's current values, else null. The answer is equal on all ranks: it depends
/// on the tensor object and on whether its memory was written since, through any ShardTensor (LibTorch's optimizers
/// write some parameters through `.data`). Throws ValueError on a rank whose block was written without the ShardTensor.
/// Not collective.
const UnshardedCache* unsharded_cache(const at::Tensor& tensor);

/// Returns this rank's block of `tensor` with the spec `required`, from the cache of the tensor or of the matrix
/// that it is a transpose of. Undefined if the cache has no current value or `required` cannot be computed from it
/// locally. Not collective.
at::Tensor reusable_block(const at::Tensor& tensor, const SpecPtr& required);

}  // namespace moonhalo
