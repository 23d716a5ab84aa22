// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/interval_map.h"

namespace moonhalo {

/// What one rank received of a ShardTensor by one interval map: edges only.
struct KeptHalo {
  std::shared_ptr<const IntervalMap::Key> key;
  uint32_t block_version = 0;     ///< of this rank's block when its rows left
  std::vector<at::Tensor> parts;  ///< by peer and region, in the map's order
  bool arrived = false;
};

/// The ShardTensor whose block an exchange is given, so that a second reader of the same rows need not fetch them again
/// (set_halo{keep = true}). Rows are taken from what was kept only by facts that all ranks share: the ShardTensor is
/// the same object, its version counter stands where it stood (every in-place operator on it, or on a view of it, moves
/// it), no other set_halo came between, and the map is equal for all ranks (IntervalMap::Key). Kept with the tensor
/// (tensor_notes.h), and dropped when it is exchanged in a newer version, is given other data, or dies; of one version
/// the kMost maps exchanged last.
///
/// A block can be written without the ShardTensor's knowing: through to_local(), the tensor that from_local() took, or
/// .data().
/// Other ranks cannot see that, so the rank that finds it when it would reuse throws ValueError. Writes through raw
/// pointers are seen by nobody, as in autograd. Nothing is kept in inference mode and of inference tensors, which count
/// no versions.
class HaloSource {
 public:
  static constexpr size_t kMost = 16;

  /// None: nothing is kept.
  HaloSource() = default;
  /// For run functions: the ShardTensor whose own block is argument `index` of the call that this thread carries out.
  /// None where halos are not kept, or the block was moved first. What is borrowed from must hold the rows of that
  /// argument.
  static HaloSource of_argument(int index);

  /// What was kept for an equal map, or null; the same answer on every rank. ValueError on a rank whose block was
  /// written behind the ShardTensor's back since.
  std::shared_ptr<const KeptHalo> find(const IntervalMap& map) const;
  /// A place for what this map will bring, null where there is no ShardTensor or nothing travels. Every rank of the
  /// mesh must do so.
  std::shared_ptr<KeptHalo> keep(const IntervalMap& map) const;

 private:
  at::Tensor tensor_;
  const c10::OperatorHandle* op_ = nullptr;
};

/// While it lives, of_argument knows the ShardTensors of one call.
class HaloCall {
 public:
  using Arguments = std::vector<std::pair<int, at::Tensor>>;
  HaloCall(const c10::OperatorHandle& op, Arguments arguments);
  ~HaloCall();
  HaloCall(const HaloCall&) = delete;

 private:
  friend class HaloSource;
  const c10::OperatorHandle& op_;
  Arguments arguments_;
  const HaloCall* before_;
};

struct ShardTensorImpl;
/// Of a ShardTensor that is given another block.
void drop_kept_halos(ShardTensorImpl& impl);
/// Of a ShardTensor that an operator is about to write, on every rank: drops them, and moves the block's version, for
/// tensors that share the block but not the ShardTensor's counter (.data, and what operators make below autograd).
void halos_become_old(ShardTensorImpl& impl);

}  // namespace moonhalo
