// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

class WriteCount;

/// Keeps the whole of a stored tensor, which was brought together once for several operators. It is a cache: whoever
/// finds none, or an old one, gathers for itself. Several tensors may look into one (a parameter and what it is cast
/// to).
struct KeptGather {
  at::Tensor whole;                                       ///< undefined: nothing is kept now
  SpecPtr spec;                                           ///< of `whole`
  SpecPtr transposed;                                     ///< of its transpose; null unless it has two dims
  uint64_t of = 0;                                        ///< which values these are, see look_into
  std::vector<std::shared_ptr<const WriteCount>> counts;  ///< of the tensors that look into it

  void keep(at::Tensor gathered, SpecPtr its_spec, uint64_t values);
  void drop();
};

/// From now on operators that want `tensor`, or the transpose that is a view of it, whole take what `kept` holds of the
/// values `values`, until an operator writes the tensor's memory. The same on every rank.
void look_into(const at::Tensor& tensor, const std::shared_ptr<KeptGather>& kept, uint64_t values);

/// True if look_into was called for the tensor.
bool looks_into_gather(const at::Tensor& tensor);

/// Returns what is kept of a tensor's values as they are now, by facts that all ranks share: the same object, no write
/// to its memory since, through whatever ShardTensor (LibTorch's optimizers write some parameters through `.data`).
/// Null if nothing is. ValueError on a rank whose block was written behind the ShardTensor's back.
const KeptGather* kept_gather(const at::Tensor& tensor);

/// Returns this rank's block of `tensor` as `wanted` says, from what is kept of it or of the matrix that it is a
/// transpose of. Undefined if nothing is, or that is not on the way to `wanted`. Moves nothing.
at::Tensor kept_block(const at::Tensor& tensor, const SpecPtr& wanted);

}  // namespace moonhalo
