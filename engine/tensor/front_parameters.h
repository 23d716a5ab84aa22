// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The ranks that have addends of a gradient: those that differ from each other along the mesh dims that cut or sum a
/// block.
struct Addends {
  MeshPtr mesh;
  std::vector<int64_t> dims;
  bool of_sum;  ///< the block is an addend itself

  explicit Addends(const SpecPtr& spec);
  bool same_group(int64_t a, int64_t b) const;
  /// Collective over both meshes at their first use.
  bool same_ranks(const Addends& other) const;
  /// Collective. Differentiable.
  at::Tensor sum(const at::Tensor& addend) const;
};

/// Says what this rank's block was computed from, by autograd's graph. Each rank's block gives its own addend of the
/// gradients of parameters and constants that are the same on all ranks (tensor_meaning.h); other leaves are this
/// rank's own data and keep their gradients. Nothing where no graph is recorded.
class BlockFront {
 public:
  explicit BlockFront(const at::Tensor& block);

  /// Numbers that from_local exchanges, so that all ranks reach the same verdict.
  using Words = std::array<int64_t, 2>;
  Words words() const;

  /// From now on backward sums those addends, over the mesh dims that cut or sum what is `made`, on their way
  /// into the leaf. `words`: of all ranks. ValueError on every rank, at the first use of a leaf, where parameters
  /// differ between the ranks, and where a leaf that nothing is said of is the same on all. ValueError where what
  /// was computed from them is also combined with ShardTensors as if it were replicated, or has addends on other
  /// ranks already. Collective.
  void sum_gradients(const SpecPtr& made, const std::vector<Words>& words);
  /// The same, and nothing is compared. Not collective, but at the first use of two meshes.
  void sum_gradients(const SpecPtr& made);

 private:
  void compare(const Addends& addends, const std::vector<Words>& words) const;
  void sum_gradients(const Addends& addends);

  at::IntArrayRef shape_;
  bool mixed_ = false;
  std::vector<at::Tensor> copies_, unsaid_;  // leaves that the ranks have not compared yet
  std::vector<const Addends*> earlier_;      // of nodes that have been in front of a block before
  std::vector<std::pair<torch::autograd::Node*, std::vector<size_t>>> nodes_;  // and their edges into copies
};

/// The plain leaves that a plain tensor was computed from.
std::vector<at::Tensor> plain_leaves_behind(const at::Tensor& tensor);
/// True if a parameter or constant is among them.
bool computed_from_parameters(const at::Tensor& tensor);

/// While one lives, `copies` stand for `originals`, as the leaves of a recomputed segment do: a block that is computed
/// from a copy was computed from what its original was.
class Substitutes {
 public:
  Substitutes(const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& originals);
  ~Substitutes();
  Substitutes(const Substitutes&) = delete;

 private:
  size_t before_;
};

/// ValueError if blocks of this rank alone were computed from one of these leaves and nothing is said of it: no rank
/// sums its gradients over all.
void check_no_own_data(const std::vector<at::Tensor>& parameters);

/// For gradient_hooks: ValueError if `tensor`, plain, which is combined with ShardTensors as if it were replicated,
/// was computed together with a block.
void check_not_in_front(const at::Tensor& tensor);

}  // namespace moonhalo
