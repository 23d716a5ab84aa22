// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Describes the effect of one mesh dim on a tensor: it shards tensor dim `dim`, replicates the tensor, or holds
/// partial values that are still to be reduced.
struct Placement {
  /// The effects: copies, blocks, or values that are still to be reduced.
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  int64_t dim = -1;                 ///< kShard: the sharded tensor dim (negative counts from the end)
  ReduceOp op = ReduceOp::kSum;     ///< kPartial
  std::vector<int64_t> sizes = {};  ///< kShard, optional: rows of each block; empty: balanced
  bool stored = false;              ///< kShard: fully sharded storage; operators gather it
  /// True for this kind.
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool operator==(const Placement&) const = default;
  std::string to_string() const;  ///< "Shard(2, {11, 6})", "Stored(0)", "Replicate()", "Partial(sum)"
};
/// Makes Shard: each rank has a block of tensor dim `dim`. `sizes`: rows of each block; empty: balanced. Not
/// collective.
Placement shard(int64_t dim, std::vector<int64_t> sizes = {});
/// Like `shard`, for parameters that are sharded only to save memory. An operator that needs other placements gathers
/// the parameter for its call instead of moving another tensor, however small that tensor is. Optimizer steps and norms
/// use the blocks as they are and move nothing. Not collective.
Placement stored(int64_t dim, std::vector<int64_t> sizes = {});
/// Makes Replicate: every rank has the whole. Not collective.
Placement replicate();
/// Makes Partial: every rank has an addend, or another operand of `op`. Not collective.
Placement partial(ReduceOp op = ReduceOp::kSum);

/// Describes the sharding of one tensor dim: the `mesh_dims` that shard it (outermost first) and the rows of each
/// block, in order.
struct Cut {
  std::vector<int64_t> mesh_dims;
  std::vector<int64_t> sizes;  ///< one per block (the product of the mesh dims' sizes); the sum is the dim's size
  bool operator==(const Cut&) const = default;
  /// True if the dim is sharded.
  explicit operator bool() const { return !mesh_dims.empty(); }
};

/// Returns block sizes that differ by at most one, the larger ones first: balanced_sizes(17, 3) is {6, 6, 5}. Not
/// collective.
std::vector<int64_t> balanced_sizes(int64_t extent, int64_t blocks);

/// An editable description of the sharding of a tensor of `global_shape` over `mesh`. `intern` converts it to a shared,
/// immutable ShardSpec. Not collective.
struct Layout {
  MeshPtr mesh;
  std::vector<int64_t> global_shape;
  std::vector<Cut> cuts;                          ///< per tensor dim; empty if not sharded
  std::vector<std::optional<ReduceOp>> partials;  ///< per mesh dim
  uint64_t stored = 0;                            ///< one bit per mesh dim: its placement is Stored

  Layout() = default;
  /// Makes a layout that is replicated on all mesh dims.
  Layout(MeshPtr mesh, at::IntArrayRef global_shape);
  /// Makes a layout from placements, one per mesh dim. Throws ValueError for a dim out of range or block sizes with a
  /// wrong sum.
  Layout(MeshPtr mesh, at::IntArrayRef global_shape, const std::vector<Placement>& placements);
  bool uses(int64_t mesh_dim) const;  ///< true if that mesh dim shards the tensor or is partial
};

/// Describes how a tensor is distributed over a mesh. A tensor of shape [2, 17] over a mesh of 3 ranks with Shard(1,
/// {6, 6, 5}):
///
///     rank   block         local_shape()   offsets()   block_index(1, rank)   block_range(1, rank)
///     0      [:, 0:6]      {2, 6}          {0, 0}      0                      [0, 6)
///     1      [:, 6:12]     {2, 6}          {0, 6}      1                      [6, 12)
///     2      [:, 12:17]    {2, 5}          {0, 12}     2                      [12, 17)
///
/// On all ranks global_shape() is {2, 17} and block_sizes(1) is {6, 6, 5}. A ShardTensor is a spec and the rank's
/// block. Specs are immutable and interned per mesh: equal specs are the same pointer. Not collective.
class ShardSpec final : public c10::intrusive_ptr_target {
 public:
  /// The parts of the layout: mesh, shape, number of dims and of elements of the global tensor; per tensor dim its cut;
  /// per mesh dim the reduction of a partial.
  const MeshPtr& mesh() const { return layout_.mesh; }
  const Layout& layout() const { return layout_; }
  const std::vector<int64_t>& global_shape() const { return layout_.global_shape; }
  int64_t ndim() const { return static_cast<int64_t>(layout_.global_shape.size()); }
  int64_t global_numel() const { return global_numel_; }
  const Cut& cut(int64_t dim) const { return layout_.cuts[dim]; }
  const std::optional<ReduceOp>& partial(int64_t mesh_dim) const { return layout_.partials[mesh_dim]; }
  /// True if this tensor dim is sharded.
  bool is_cut(int64_t dim) const { return static_cast<bool>(layout_.cuts[dim]); }
  bool is_replicate() const { return !cut_ && !partial_; }  ///< on all mesh dims
  /// True if any mesh dim shards the tensor, is partial, or has a Stored placement.
  bool has_cut() const { return cut_; }
  bool has_partial() const { return partial_; }
  bool has_stored() const { return layout_.stored != 0; }

  /// Returns the placements, one per mesh dim, with explicit block sizes.
  std::vector<Placement> placements() const;
  /// Returns the rows of every block along `dim`; {extent} if `dim` is not sharded.
  std::vector<int64_t> block_sizes(int64_t dim) const;
  /// Returns the shape of this rank's block, and the index of its first element in the global tensor.
  const std::vector<int64_t>& local_shape() const { return local_shape_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// block_index returns the index along `dim` of the block that mesh rank `rank` holds; block_range returns the rows
  /// of that block.
  int64_t block_index(int64_t dim, int64_t rank) const;
  Interval block_range(int64_t dim, int64_t rank) const;

  /// Returns `[2, 17] on mesh(3: x): Shard(1, {6, 6, 5})`.
  std::string to_string() const;

  void release_resources() override;  ///< removes the spec from the mesh's table

 private:
  friend struct SpecTable;
  ShardSpec(Layout layout, std::vector<int64_t> key);

  Layout layout_;
  std::vector<int64_t> key_;
  std::vector<int64_t> local_shape_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<int64_t>> starts_;  // per dim, prefix sums of the block sizes
  int64_t global_numel_ = 0;
  bool cut_ = false;
  bool partial_ = false;
};
/// Shares a spec.
using SpecPtr = c10::intrusive_ptr<const ShardSpec>;

/// Returns the interned spec of `layout`, of placements, or of a replicated tensor. Not for the hot path: store the
/// pointer. Throws ValueError as Layout does. Not collective.
SpecPtr intern(Layout layout);
SpecPtr make_spec(const MeshPtr& mesh, at::IntArrayRef global_shape, const std::vector<Placement>& placements);
SpecPtr replicated(const MeshPtr& mesh, at::IntArrayRef global_shape);
/// Returns the same spec with every Partial replaced by Replicate. Not collective.
SpecPtr without_partial(const SpecPtr& spec);
/// Returns `spec` with the Partials of `sums`. For a tensor that is added to a tensor of `sums`: then only one rank's
/// addend counts. Not collective.
SpecPtr with_partials_of(const SpecPtr& spec, const SpecPtr& sums);
/// Returns the same spec without those stored shardings that `to` does not have: those dims are gathered. Not
/// collective.
SpecPtr fetched_for(const SpecPtr& spec, const ShardSpec& to);

}  // namespace moonhalo
