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

/// Says what one mesh dimension does to a tensor: cuts dim `dim`, holds a copy, or holds an addend of the value.
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  int64_t dim = -1;                 ///< kShard: the tensor dimension that is cut (negative counts from the end)
  ReduceOp op = ReduceOp::kSum;     ///< kPartial
  std::vector<int64_t> sizes = {};  ///< kShard, optional: rows of each block; balanced when empty
  bool stored = false;              ///< kShard: kept in blocks, wanted whole
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_partial() const { return kind == Kind::kPartial; }
  bool operator==(const Placement&) const = default;
  std::string to_string() const;  ///< "Shard(2, {11, 6})", "Stored(0)", "Replicate()", "Partial(sum)"
};
Placement shard(int64_t dim, std::vector<int64_t> sizes = {});
/// Like `shard`, for parameters that are cut to save memory alone: an operator that needs them otherwise brings them
/// together for its call rather than move any other tensor, however small that is. What needs them as they lie (steps
/// of optimizers, norms) moves nothing.
Placement stored(int64_t dim, std::vector<int64_t> sizes = {});
Placement replicate();
Placement partial(ReduceOp op = ReduceOp::kSum);

/// Says how one tensor dimension is cut: by which mesh dims (outermost first) and the rows of every block, in order.
struct Cut {
  std::vector<int64_t> mesh_dims;
  std::vector<int64_t> sizes;  ///< as many as the product of the mesh dims' sizes; they add up to the dim
  bool operator==(const Cut&) const = default;
  explicit operator bool() const { return !mesh_dims.empty(); }
};

/// Sizes that differ by at most one, larger first.
std::vector<int64_t> balanced_sizes(int64_t extent, int64_t blocks);

/// An editable description of a sharding; `intern` turns it into the shared, immutable ShardSpec.
struct Layout {
  MeshPtr mesh;
  std::vector<int64_t> global_shape;
  std::vector<Cut> cuts;                          ///< per tensor dim; an empty Cut is uncut
  std::vector<std::optional<ReduceOp>> partials;  ///< per mesh dim
  uint64_t stored = 0;                            ///< a bit per mesh dim: its cut is of a stored placement

  Layout() = default;
  /// Replicated on every mesh dim.
  Layout(MeshPtr mesh, at::IntArrayRef global_shape);
  /// From placements, one per mesh dim. ValueError when they do not fit: a dim out of range, sizes that do not add up.
  Layout(MeshPtr mesh, at::IntArrayRef global_shape, const std::vector<Placement>& placements);
  bool uses(int64_t mesh_dim) const;  ///< cuts or is partial on that mesh dim
};

/// The facts of a ShardTensor beside its local block: immutable, and interned per mesh, so equal specs are one pointer.
class ShardSpec final : public c10::intrusive_ptr_target {
 public:
  const MeshPtr& mesh() const { return layout_.mesh; }
  const Layout& layout() const { return layout_; }
  const std::vector<int64_t>& global_shape() const { return layout_.global_shape; }
  int64_t ndim() const { return static_cast<int64_t>(layout_.global_shape.size()); }
  int64_t global_numel() const { return global_numel_; }
  const Cut& cut(int64_t dim) const { return layout_.cuts[dim]; }
  const std::optional<ReduceOp>& partial(int64_t mesh_dim) const { return layout_.partials[mesh_dim]; }
  bool is_cut(int64_t dim) const { return static_cast<bool>(layout_.cuts[dim]); }
  bool is_replicate() const { return !cut_ && !partial_; }  ///< on every mesh dim
  bool has_cut() const { return cut_; }
  bool has_partial() const { return partial_; }
  bool has_stored() const { return layout_.stored != 0; }

  /// Placements, one per mesh dim, with explicit block sizes.
  std::vector<Placement> placements() const;
  /// Rows of every block along `dim` ({extent} when uncut).
  std::vector<int64_t> block_sizes(int64_t dim) const;
  /// This rank's block: shape, and where it starts in the global tensor.
  const std::vector<int64_t>& local_shape() const { return local_shape_; }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// The number of the block of `dim` that a rank of the mesh holds, and the rows of that block.
  int64_t block_index(int64_t dim, int64_t rank) const;
  Interval block_range(int64_t dim, int64_t rank) const;

  /// `[2, 17] on mesh(3: x): Shard(1, {6, 6, 5})`
  std::string to_string() const;

  void release_resources() override;  ///< forgets the spec when nothing holds it

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
using SpecPtr = c10::intrusive_ptr<const ShardSpec>;

/// The one spec equal to `layout`. Cheap, but not for the hot path: keep the pointer.
SpecPtr intern(Layout layout);
SpecPtr make_spec(const MeshPtr& mesh, at::IntArrayRef global_shape, const std::vector<Placement>& placements);
SpecPtr replicated(const MeshPtr& mesh, at::IntArrayRef global_shape);
/// The same spec with every Partial resolved to Replicate.
SpecPtr without_partial(const SpecPtr& spec);
/// `spec` with the Partials of `sums`, to which it is added: then one rank's addend counts, not each rank's.
SpecPtr with_partials_of(const SpecPtr& spec, const SpecPtr& sums);
/// The same spec with every dim whole that a stored placement cuts and `to` does not cut alike.
SpecPtr fetched_for(const SpecPtr& spec, const ShardSpec& to);

}  // namespace moonhalo
