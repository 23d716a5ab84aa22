// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A deferred tensor has a shape, a dtype and a device, but no memory: what was done to it is recorded, and done when
/// it is materialized - on the owned block alone where it becomes a ShardTensor. So a model larger than one rank's
/// memory can be built as it is, and its initial values are those of the same model built at once under
/// ElementwiseRandom.
///
///     auto net = mh::deferred_init([] { return std::make_shared<Net>(); });
///     mh::parallelize_module(net, mesh, plan);          // or materialize_module(net) for the whole of it
/// is_deferred (base/dispatch_keys.h) tells such a tensor from others.

/// While one lives on a thread, empty, empty_strided, zeros, ones, full, rand, randn, randint and normal make deferred
/// tensors of at least `min_numel` elements; smaller ones are made at once, as are 0-dimensional ones and those of
/// all other factories (arange, eye, tensor, ...). ElementwiseRandom is on. May be nested.
class DeferredInit {
 public:
  static constexpr int64_t kMinNumel = 1024;
  explicit DeferredInit(int64_t min_numel = kMinNumel);
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  ElementwiseRandom random_;
  int64_t before_;
  std::shared_ptr<void> tape_;
};

/// Returns what `make()` makes, with deferred tensors.
template <typename Make>
auto deferred_init(Make&& make, int64_t min_numel = DeferredInit::kMinNumel) {
  const DeferredInit scope(min_numel);
  return std::forward<Make>(make)();
}

/// Returns `make()`, on the mesh: `make_on_mesh(mesh, {shard(0)}, [] { return at::randn({4000, 300}); })`. Any
/// factory of LibTorch; of those that DeferredInit names only the owned block is made. Collective, as materialize is.
template <typename Make>
at::Tensor make_on_mesh(const MeshPtr& mesh, const std::vector<Placement>& placements, Make&& make);

/// The tensor that a deferred one stands for, a leaf with the same requires_grad; others are returned as they are.
/// On a mesh: a ShardTensor, of which only the owned block is made, unless values are written through a view of another
/// shape (the padding row of an embedding) or come from an operator that needs the whole (orthogonal_): then the whole
/// lives on every rank for a moment. Collective over the mesh, and every rank materializes the same tensors in the same
/// order. A plain tensor on a mesh (a small one, made at once) must be the same on all ranks. Materializing twice gives
/// two tensors; tensors that shared memory part.
at::Tensor materialize(const at::Tensor& tensor);
at::Tensor materialize(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements);

/// Turns the deferred tensor itself into the plain one that it stands for; others are left alone.
void materialize_in_place(at::Tensor& tensor);
/// The same for every parameter and buffer of a torch::nn::Module, plain and whole. Collective over nothing.
template <typename Module>
void materialize_module(Module& module) {
  for (at::Tensor& tensor : module.parameters()) materialize_in_place(tensor);
  for (at::Tensor& tensor : module.buffers()) materialize_in_place(tensor);
}

template <typename Make>
at::Tensor make_on_mesh(const MeshPtr& mesh, const std::vector<Placement>& placements, Make&& make) {
  return materialize(deferred_init(std::forward<Make>(make), 0), mesh, placements);
}

}  // namespace moonhalo
