// SPDX-License-Identifier: Apache-2.0
// ShardTensors of blocks that the ranks have already.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <tuple>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/memory_order.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/tensor_creation.h"

namespace moonhalo {
namespace {

// The facts of every rank's block are known to all, so that all reach the same verdict. Making it is collective.
class BlockFacts {
 public:
  BlockFacts(const at::Tensor& local, const DeviceMesh& mesh, const BlockFront& front) : ranks_(mesh.size()) {
    std::vector<int64_t> words(kWords, -1);
    words[0] = local.dim();
    words[1] = static_cast<int64_t>(local.scalar_type());
    words[2] = !is_on_device(mesh, local);
    const BlockFront::Words computed_from = front.words();
    std::copy(computed_from.begin(), computed_from.end(), words.begin() + kFront);
    if (local.dim() <= kMaxDims) {
      std::copy(local.sizes().begin(), local.sizes().end(), words.begin() + kSizes);
      std::copy(local.strides().begin(), local.strides().end(), words.begin() + kStrides);
    }
    all_ = mesh.group().facts_of_all(at::from_blob(words.data(), {kWords}, at::kLong));
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      TORCH_CHECK_NOT_IMPLEMENTED(ndim(rank) <= kMaxDims, "from_local: more than ", kMaxDims,
                                  " dims\n  have  a block of ", ndim(rank), " dims on rank ", rank);
    }
  }

  /// In a dry run the blocks of other ranks are as this rank's, but for dims whose sizes `placements` name.
  void set_named_sizes(const DeviceMesh& mesh, const std::vector<Placement>& placements) {
    auto* words = all_.mutable_data_ptr<int64_t>();
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const Placement& cut = placements[m];
      const auto cuts_it = [&cut](const Placement& one) { return one.is_shard() && one.dim == cut.dim; };
      const bool named = cut.is_shard() && static_cast<int64_t>(cut.sizes.size()) == mesh.size(m) && cut.dim >= 0 &&
                         cut.dim < ndim(mesh.rank()) &&
                         std::count_if(placements.begin(), placements.end(), cuts_it) == 1;
      for (int64_t rank = 0; named && rank < ranks_; ++rank)
        words[rank * kWords + kSizes + cut.dim] = cut.sizes[mesh.coordinate(rank, m)];
    }
  }

  int64_t ndim(int64_t rank) const { return of(rank)[0]; }
  at::ScalarType dtype(int64_t rank) const { return static_cast<at::ScalarType>(of(rank)[1]); }
  bool elsewhere(int64_t rank) const { return of(rank)[2] != 0; }
  at::IntArrayRef sizes(int64_t rank) const { return {of(rank) + kSizes, static_cast<size_t>(ndim(rank))}; }
  at::IntArrayRef strides(int64_t rank) const { return {of(rank) + kStrides, static_cast<size_t>(ndim(rank))}; }
  std::vector<BlockFront::Words> fronts() const {
    std::vector<BlockFront::Words> all(ranks_);
    for (int64_t rank = 0; rank < ranks_; ++rank) std::copy_n(of(rank) + kFront, all[rank].size(), all[rank].begin());
    return all;
  }

  /// Strides of a tensor of blocks that are not all stored row by row: those of their common order, and twice as
  /// great where there are gaps or no common order, so that contiguous() copies on all ranks or on none. Nullopt
  /// where all are stored row by row, and where dims are expanded, which every ShardTensor declares by itself.
  std::optional<at::DimVector> strides_of_whole(at::IntArrayRef shape) const {
    const at::DimVector rows = dense_strides(shape, at::DimVector(shape.size(), 1));
    const auto all_have_layout = [this](at::IntArrayRef like) {
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (!has_layout(sizes(rank), strides(rank), like)) return false;
      }
      return true;
    };
    int64_t chosen = -1, most = -1;  // the rank with the most dims of more than one row
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const at::IntArrayRef size = sizes(rank), stride = strides(rank);
      for (size_t d = 0; d < size.size(); ++d) {
        if (size[d] > 1 && stride[d] == 0) return std::nullopt;
      }
      const auto long_dims = std::count_if(size.begin(), size.end(), [](int64_t n) { return n > 1; });
      if (has_layout(size, stride, rows) || long_dims <= most) continue;
      most = long_dims;
      chosen = rank;
    }
    if (chosen < 0) return std::nullopt;
    at::DimVector found = dense_strides(shape, strides(chosen));
    if (!all_have_layout(strides(chosen))) {
      for (int64_t& stride : found) stride *= 2;
    }
    return found;
  }

 private:
  static constexpr int64_t kMaxDims = 16, kFront = 3, kSizes = kFront + std::tuple_size_v<BlockFront::Words>,
                           kStrides = kSizes + kMaxDims, kWords = kStrides + kMaxDims;
  const int64_t* of(int64_t rank) const { return all_.const_data_ptr<int64_t>() + rank * kWords; }
  int64_t ranks_;
  at::Tensor all_;
};

// Blocks must be on the mesh's device, and have one dtype and number of dims on all ranks.
void check_blocks(const BlockFacts& facts, const DeviceMesh& mesh, const at::Tensor& local) {
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    TORCH_CHECK_VALUE(!facts.elsewhere(rank), "from_local: the block of rank ", rank,
                      " is not on the mesh's device\n  have  a block on ", local.device(), " on rank ", mesh.rank(),
                      ", ", mesh.to_string(), " on ", device_of(mesh),
                      "\n  fix   move it there first, or use a mesh of its device");
  }
  for (int64_t rank = 1; rank < mesh.size(); ++rank) {
    TORCH_CHECK_VALUE(
        facts.ndim(rank) == facts.ndim(0) && facts.dtype(rank) == facts.dtype(0),
        "from_local: the blocks of ranks 0 and ", rank, " differ in dtype or number of dims\n  have  ",
        c10::toString(facts.dtype(0)), " of ", facts.ndim(0), " dims; ", c10::toString(facts.dtype(rank)), " of ",
        facts.ndim(rank),
        "\n  fix   give blocks of one dtype and number of dims on all ranks; a batch may have no rows on some");
  }
}

// Mesh dims that cut each tensor dim, in their order.
std::vector<std::vector<int64_t>> cutting_mesh_dims(int64_t ndim, const std::vector<Placement>& placements) {
  std::vector<std::vector<int64_t>> cutting(ndim);
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_shard()) continue;
    const int64_t dim = placements[m].dim < 0 ? placements[m].dim + ndim : placements[m].dim;
    TORCH_CHECK_VALUE(dim >= 0 && dim < ndim, "from_local: ", placements[m].to_string(),
                      " is out of range for blocks of ", ndim, " dims");
    cutting[dim].push_back(static_cast<int64_t>(m));
  }
  return cutting;
}

// Rows of the blocks along dim `d`, which `mesh_dims` cut: of the ranks at coordinate 0 of the other mesh dims.
std::vector<int64_t> rows_along(const BlockFacts& facts, const DeviceMesh& mesh, int64_t d,
                                const std::vector<int64_t>& mesh_dims) {
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    bool along = true;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const bool cuts = std::find(mesh_dims.begin(), mesh_dims.end(), m) != mesh_dims.end();
      along = along && (cuts || mesh.coordinate(rank, m) == 0);
    }
    if (along) rows.push_back(facts.sizes(rank)[d]);
  }
  return rows;
}

// The spec whose blocks have the sizes of these: a dim's extent is the sum of the blocks along it.
SpecPtr spec_of_blocks(const BlockFacts& facts, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  std::vector<int64_t> global = facts.sizes(0).vec();
  std::vector<Placement> sized = placements;
  const auto cutting = cutting_mesh_dims(facts.ndim(0), placements);
  for (int64_t d = 0; d < facts.ndim(0); ++d) {
    if (cutting[d].empty()) continue;
    const std::vector<int64_t> rows = rows_along(facts, *mesh, d, cutting[d]);
    global[d] = c10::sum_integers(rows);
    for (const int64_t m : cutting[d]) sized[m].sizes.clear();
    sized[cutting[d].back()].sizes = rows;
  }
  return make_spec(mesh, global, sized);
}

void check_grid(const BlockFacts& facts, const ShardSpec& spec) {
  for (int64_t rank = 0; rank < spec.mesh()->size(); ++rank) {
    for (int64_t d = 0; d < spec.ndim(); ++d) {
      const int64_t rows = spec.block_range(d, rank).size();
      TORCH_CHECK_VALUE(facts.sizes(rank)[d] == rows, "from_local: the blocks do not form a grid: rank ", rank, " has ",
                        facts.sizes(rank)[d], " along dim ", d, ", its place in the mesh needs ", rows, "\n  have  ",
                        spec.to_string(), "\n  fix   give blocks that agree along every dim that is not cut");
    }
  }
}

}  // namespace

at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec) {
  TORCH_CHECK_VALUE(local.sizes() == at::IntArrayRef(spec->local_shape()), "from_local: a block of shape ",
                    shape_string(local.sizes()), " does not fit\n  have  ", spec->to_string(), ", whose block on rank ",
                    spec->mesh()->rank(), " is ", shape_string(spec->local_shape()));
  TORCH_CHECK_TYPE(!is_shard_tensor(local), "from_local: the block is a ShardTensor already\n  fix   use redistribute");
  check_strided(local, "from_local");
  TORCH_CHECK_VALUE(is_on_device(*spec->mesh(), local), "from_local: the block of rank ", spec->mesh()->rank(),
                    " is not on the mesh's device\n  have  a block on ", local.device(), ", ", spec->to_string(),
                    " on ", device_of(*spec->mesh()), "\n  fix   move it there first, or use a mesh of its device");
  at::Tensor block;
  {
    const BelowAutograd guard;
    block = is_lazy(local) ? materialize_lazy_bits(local) : local.alias();
    if (!is_lazy(local)) share_versions(local, block);
  }
  at::Tensor result = wrap(std::move(block), spec);
  attach_backward(
      local, result,
      [target = without_partial(spec)](const at::Tensor& grad) { return to_local(gradient_of(grad, target)); },
      [&](const at::Tensor& tangent) { return from_local(tangent, spec); });
  return result;
}

at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  const SuspendCapture inside;
  check_placements(mesh, placements, "from_local");
  check_strided(local, "from_local");
  const std::string placed = placed_text(mesh, placements);
  const auto describe = [&placed] { return placed; };
  const CallScope scope(fingerprint_of(placed), "from_local", describe);
  const TrafficScope moving(Traffic::kDistribute);
  BlockFront front(local);
  BlockFacts facts(local, *mesh, front);
  if (mesh->group().is_fake()) facts.set_named_sizes(*mesh, placements);
  check_blocks(facts, *mesh, local);
  const SpecPtr spec = spec_of_blocks(facts, mesh, placements);
  check_grid(facts, *spec);
  front.sum_gradients(spec, facts.fronts());
  at::Tensor result = from_local(local, spec);
  if (const auto strides = facts.strides_of_whole(spec->global_shape()))
    result.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), *strides);
  set_new_origin(result, scope.tag());
  return result;
}

}  // namespace moonhalo
