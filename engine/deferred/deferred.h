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

/// A deferred tensor has a shape, a dtype and a device, but no memory. Operations on it are recorded and executed when
/// it is materialized; if it becomes a ShardTensor, only on the owned block. So a model that is larger than the memory
/// of one rank can be built in the usual way. Its initial values are those of the same model built directly under
/// ElementwiseRandom.
///
///     auto net = mh::deferred_init([] { return std::make_shared<Net>(); });
///     mh::parallelize_module(net, mesh, plan);          // or materialize_module(*net), plain and whole
///
/// is_deferred (base/dispatch_keys.h) returns true for such a tensor.

/// Makes factories on this thread return deferred tensors during its lifetime: empty, empty_strided, zeros, ones, full,
/// rand, randn, randint and normal, for tensors of at least `min_numel` elements. Smaller tensors, 0-dim tensors and
/// those of other factories (arange, eye, tensor, ...) are made immediately. ElementwiseRandom is on. Scopes may be
/// nested.
class DeferredInit {
 public:
  /// Tensors of fewer elements are made immediately: they cost less than their record.
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

/// Returns the result of `make()`, made of deferred tensors. Not collective.
template <typename Make>
auto deferred_init(Make&& make, int64_t min_numel = DeferredInit::kMinNumel) {
  const DeferredInit scope(min_numel);
  return std::forward<Make>(make)();
}

/// Returns `make()` as a ShardTensor: `make_on_mesh(mesh, {shard(0)}, [] { return at::randn({4000, 300}); })`. It works
/// with any factory of LibTorch; with those that DeferredInit lists, only the owned block is allocated. Collective, as
/// materialize is.
template <typename Make>
at::Tensor make_on_mesh(const MeshPtr& mesh, const std::vector<Placement>& placements, Make&& make);

/// Returns the materialized tensor, a leaf with the same requires_grad. A tensor that is not deferred is returned
/// unchanged; with a mesh it is distributed, and must be equal on all ranks (a small tensor that was made immediately).
/// With a mesh the result is a ShardTensor, and only the owned block is allocated. The whole tensor is allocated
/// temporarily on every rank if values are written through a view of another shape (the padding row of an embedding) or
/// come from an operator that needs the whole (orthogonal_). Collective over the mesh; every rank materializes the same
/// tensors in the same order. Materializing twice gives two tensors. Tensors that shared memory no longer do.
at::Tensor materialize(const at::Tensor& tensor);
at::Tensor materialize(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements);

/// Replaces the deferred tensor itself by its plain value, of the same shape and dtype. Does nothing for other tensors.
/// Not collective.
void materialize_in_place(at::Tensor& tensor);
/// Does the same for every parameter and buffer of a torch::nn::Module. Not collective.
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
