// SPDX-License-Identifier: Apache-2.0
// Making ShardTensors and leaving them, differentiably.
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <tuple>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/comm/call_tag.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/exchange/redistribution_cache.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/memory_order.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {
namespace {

// Below autograd: what is done here to blocks is not recorded; gradients are connected explicitly.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

at::Tensor gradient_of(const at::Tensor& grad, const SpecPtr& to) {
  return is_shard_tensor(grad) ? redistribute(grad, to) : from_local(grad, replicated(to->mesh(), grad.sizes()));
}

void check_placements_given(const MeshPtr& mesh, const std::vector<Placement>& placements, const char* what) {
  TORCH_CHECK_VALUE(mesh != nullptr, what, ": no mesh given");
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh->ndim(), what, ": ", placements.size(),
                    " placements for ", mesh->to_string(), ", which has ", mesh->ndim(), " dimensions",
                    "\n  fix   give one placement per mesh dimension");
}

std::string placed_text(const MeshPtr& mesh, const std::vector<Placement>& placements) {
  std::string text = mesh == nullptr ? "no mesh" : mesh->to_string();
  for (size_t i = 0; i < placements.size(); ++i) text += (i == 0 ? ": " : ", ") + placements[i].to_string();
  return text;
}

// While blocks move from one spec to another.
class Moving {
 public:
  Moving(const at::Tensor& tensor, const SpecPtr& to)
      : text_([origin = shard_impl(tensor)->origin, from = spec(tensor), to] {
          return from->to_string() + " -> " + to->to_string() + CallLog::of_this_thread().made_by(origin);
        }),
        scope_(combine_tag(combine_tag(tag_of(*spec(tensor)), tag_of(*to)),
                           CallLog::of_this_thread().shared_origin(shard_impl(tensor)->origin)),
               "redistribute", text_) {}

 private:
  std::function<std::string()> text_;
  CallScope scope_;
};

// Backward brings a gradient to these tensors of the source rank.
enum class SourceGradient : int64_t { kNone, kOwnTensors, kParameters };

// The source rank tells the others this.
struct Header {
  static constexpr int64_t kMaxDims = 16;
  std::array<int64_t, 4 + kMaxDims> words{};
  int64_t& defined() { return words[0]; }
  int64_t& ndim() { return words[1]; }
  int64_t& dtype() { return words[2]; }
  SourceGradient gradient() const { return static_cast<SourceGradient>(words[3]); }
  void set_gradient(SourceGradient gradient) { words[3] = static_cast<int64_t>(gradient); }
  int64_t* sizes() { return words.data() + 4; }
};

// The facts of every rank's block are known to all, so that all reach the same verdict. Making it is collective.
class BlockFacts {
 public:
  BlockFacts(const at::Tensor& local, const DeviceMesh& mesh, const BlockFront& front) : ranks_(mesh.size()) {
    TORCH_CHECK_NOT_IMPLEMENTED(local.dim() <= kMaxDims, "from_local: more than ", kMaxDims, " dims");
    std::vector<int64_t> words(kWords, -1);
    words[0] = local.dim();
    words[1] = static_cast<int64_t>(local.scalar_type());
    words[2] = !lies_on(mesh, local);
    const BlockFront::Words computed_from = front.words();
    std::copy(computed_from.begin(), computed_from.end(), words.begin() + kFront);
    std::copy(local.sizes().begin(), local.sizes().end(), words.begin() + kSizes);
    std::copy(local.strides().begin(), local.strides().end(), words.begin() + kStrides);
    all_ = at::empty({kWords * ranks_}, at::kLong);
    const at::Tensor mine = at::from_blob(words.data(), {kWords}, at::kLong);
    mesh.group().all_gather(mine, std::vector<int64_t>(ranks_, kWords), all_);
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

  /// Strides of a tensor of blocks that do not all lie row by row: those of their common order, and twice as great
  /// where there are gaps or no common order, so that contiguous() copies on all ranks or on none. Nullopt where all
  /// lie row by row, and where dims are expanded, which every ShardTensor declares by itself.
  std::optional<at::DimVector> strides_of_whole(at::IntArrayRef shape) const {
    const at::DimVector rows = dense_strides(shape, at::DimVector(shape.size(), 1));
    const auto all_lie_as = [this](at::IntArrayRef like) {
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (!lies_as(sizes(rank), strides(rank), like)) return false;
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
      if (lies_as(size, stride, rows) || long_dims <= most) continue;
      most = long_dims;
      chosen = rank;
    }
    if (chosen < 0) return std::nullopt;
    at::DimVector found = dense_strides(shape, strides(chosen));
    if (!all_lie_as(strides(chosen))) {
      for (int64_t& stride : found) stride *= 2;
    }
    return found;
  }

 private:
  static constexpr int64_t kMaxDims = Header::kMaxDims, kFront = 3,
                           kSizes = kFront + std::tuple_size_v<BlockFront::Words>, kStrides = kSizes + kMaxDims,
                           kWords = kStrides + kMaxDims;
  const int64_t* of(int64_t rank) const { return all_.const_data_ptr<int64_t>() + rank * kWords; }
  int64_t ranks_;
  at::Tensor all_;
};

at::Tensor block_of(const at::Tensor& full, const ShardSpec& spec, int64_t rank) {
  at::Tensor block = full;
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    const Interval rows = spec.block_range(d, rank);
    block = block.narrow(d, rows.begin, rows.size());
  }
  return block;
}

void check_target(const ShardSpec& from, const ShardSpec& to) {
  TORCH_CHECK_VALUE(from.global_shape() == to.global_shape(), "redistribute: the target is of another shape\n  have  ",
                    from.to_string(), " and ", to.to_string(), "\n  fix   make the target spec for this tensor's shape");
  if (from.mesh() == to.mesh() || to.mesh()->group().is_fake()) return;
  const c10::Device here = device_of(*from.mesh()), there = device_of(*to.mesh());
  // "cuda" and "cuda:0" are one device on the first rank, and two on the next, so the names count.
  const bool named_alike = from.mesh()->device_type() == to.mesh()->device_type() || from.mesh()->size() == 1;
  TORCH_CHECK_NOT_IMPLEMENTED(named_alike && here == there, "redistribute: the meshes are of different devices\n  have  ", from.to_string(), " on ", here,
                              " and ", to.to_string(), " on ", there,
                              "\n  fix   distribute_tensor(full_tensor(x), mesh, placements), or from_local of blocks that were moved");
}

// A redistributed tensor, which is no view of the one with the block `source`.
at::Tensor wrap_moved(at::Tensor local, const at::Tensor& source, const SpecPtr& to) {
  return wrap_new(local.is_alias_of(source) ? copied_block(local) : std::move(local), to);
}

void connect_moved(const at::Tensor& tensor, const at::Tensor& result) {
  attach_backward(
      tensor, result,
      [from = without_partial(spec(tensor))](const at::Tensor& grad) { return gradient_of(grad, from); },
      [&](const at::Tensor& tangent) { return redistribute(tangent, spec(result)); });
}

// Blocks of a ShardTensor back into one tensor on rank `src`: the adjoint of scattering. Collective.
at::Tensor collect(const at::Tensor& tensor, int64_t src) {
  const BelowAutograd guard;
  const SpecPtr from = spec(tensor);
  const SpecPtr full = without_partial(from);
  at::Tensor local = redistribute_local(fresh_block(tensor, "scatter_tensor"), from, full);
  const DeviceMesh& mesh = *full->mesh();
  // One owner for each block: the ranks at coordinate 0 of the mesh dims that do not cut.
  const auto owns = [&](int64_t rank) {
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      if (!full->layout().uses(m) && mesh.coordinate(rank, m) != 0) return false;
    }
    return true;
  };
  std::vector<Message> sends, receives;
  if (mesh.rank() != src) {
    if (owns(mesh.rank()) && local.numel() > 0) sends.push_back({static_cast<int>(src), local.contiguous()});
    mesh.group().exchange(std::move(sends), {});
    return {};
  }
  at::Tensor result = at::empty(full->global_shape(), local.options());
  std::vector<std::pair<int64_t, at::Tensor>> blocks;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (!owns(rank)) continue;
    if (rank == src) {
      block_of(result, *full, rank).copy_(local);
      continue;
    }
    at::Tensor block = at::empty(block_box(*full, rank).shape(), local.options());
    if (block.numel() == 0) continue;
    receives.push_back({static_cast<int>(rank), block});
    blocks.emplace_back(rank, block);
  }
  mesh.group().exchange({}, std::move(receives));
  for (const auto& [rank, block] : blocks) block_of(result, *full, rank).copy_(block);
  return result;
}

}  // namespace

at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec) {
  TORCH_CHECK_VALUE(local.sizes() == at::IntArrayRef(spec->local_shape()), "from_local: a block of shape ",
                    shape_string(local.sizes()), " does not fit\n  have  ", spec->to_string(), ", whose block on rank ",
                    spec->mesh()->rank(), " is ", shape_string(spec->local_shape()));
  TORCH_CHECK_TYPE(!is_shard_tensor(local), "from_local: the block is a ShardTensor already\n  fix   use redistribute");
  check_strided(local, "from_local");
  TORCH_CHECK_VALUE(lies_on(*spec->mesh(), local), "from_local: the block of rank ", spec->mesh()->rank(),
                    " is not on the mesh's device\n  have  a block on ", local.device(), ", ", spec->to_string(), " on ",
                    device_of(*spec->mesh()), "\n  fix   move it there first, or use a mesh of its device");
  at::Tensor block;
  {
    const BelowAutograd guard;
    block = is_lazy(local) ? carried_out(local) : local.alias();
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
  check_placements_given(mesh, placements, "from_local");
  check_strided(local, "from_local");
  const std::string placed = placed_text(mesh, placements);
  const auto describe = [&placed] { return placed; };
  const CallScope scope(tag_of(placed), "from_local", describe);
  BlockFront front(local);
  const BlockFacts facts(local, *mesh, front);
  const int64_t ndim = facts.ndim(0);
  const auto size_of = [&](int64_t rank, int64_t d) { return facts.sizes(rank)[d]; };
  for (int64_t rank = 0; rank < mesh->size(); ++rank) {
    TORCH_CHECK_VALUE(!facts.elsewhere(rank), "from_local: the block of rank ", rank,
                      " is not on the mesh's device\n  have  a block on ", local.device(), " on rank ", mesh->rank(), ", ",
                      mesh->to_string(), " on ", device_of(*mesh),
                      "\n  fix   move it there first, or use a mesh of its device");
  }
  for (int64_t rank = 1; rank < mesh->size(); ++rank) {
    TORCH_CHECK_VALUE(facts.ndim(rank) == ndim && facts.dtype(rank) == facts.dtype(0),
                      "from_local: the blocks of ranks 0 and ", rank, " differ in dtype or number of dims\n  have  ",
                      c10::toString(facts.dtype(0)), " of ", ndim, " dims; ",
                      c10::toString(facts.dtype(rank)), " of ", facts.ndim(rank),
                      "\n  fix   give blocks of one dtype and number of dims on all ranks; a batch may have no rows on some");
  }
  std::vector<int64_t> global;
  for (int64_t d = 0; d < ndim; ++d) global.push_back(size_of(0, d));
  std::vector<Placement> sized = placements;
  std::vector<std::vector<int64_t>> cutting(ndim);
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (!placements[m].is_shard()) continue;
    const int64_t dim = placements[m].dim < 0 ? placements[m].dim + ndim : placements[m].dim;
    TORCH_CHECK_VALUE(dim >= 0 && dim < ndim, "from_local: ", placements[m].to_string(),
                      " is out of range for blocks of ", ndim, " dims");
    cutting[dim].push_back(m);
  }
  for (int64_t d = 0; d < ndim; ++d) {
    if (cutting[d].empty()) continue;
    std::vector<int64_t> sizes;
    for (int64_t rank = 0; rank < mesh->size(); ++rank) {
      bool along = true;
      for (int64_t m = 0; m < mesh->ndim(); ++m) {
        const bool cuts = std::find(cutting[d].begin(), cutting[d].end(), m) != cutting[d].end();
        along = along && (cuts || mesh->coordinate(rank, m) == 0);
      }
      if (along) sizes.push_back(size_of(rank, d));
    }
    global[d] = 0;
    for (const int64_t size : sizes) global[d] += size;
    for (const int64_t m : cutting[d]) sized[m].sizes.clear();
    sized[cutting[d].back()].sizes = sizes;
  }
  const SpecPtr made = make_spec(mesh, global, sized);
  for (int64_t rank = 0; rank < mesh->size(); ++rank) {
    for (int64_t d = 0; d < ndim; ++d) {
      const int64_t rows = made->block_range(d, rank).size();
      TORCH_CHECK_VALUE(size_of(rank, d) == rows, "from_local: the blocks do not form a grid: rank ", rank, " has ",
                        size_of(rank, d), " along dim ", d, ", its place in the mesh needs ", rows, "\n  have  ",
                        made->to_string(), "\n  fix   give blocks that agree along every dim that is not cut");
    }
  }
  front.sum_gradients(made, facts.fronts());
  at::Tensor result = from_local(local, made);
  if (const auto strides = facts.strides_of_whole(global))
    result.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), *strides);
  set_new_origin(result, scope.tag());
  return result;
}

at::Tensor scatter_tensor(const at::Tensor& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          int64_t src) {
  check_placements_given(mesh, placements, "scatter_tensor");
  TORCH_CHECK_VALUE(src >= 0 && src < mesh->size(), "scatter_tensor: src ", src, " is no rank of ", mesh->to_string());
  TORCH_CHECK_TYPE(!is_shard_tensor(source), "scatter_tensor: the source is a ShardTensor already\n  fix   use redistribute");
  const bool root = mesh->rank() == src;
  const std::string placed = placed_text(mesh, placements) + ", src " + std::to_string(src);
  const auto describe = [&placed] { return placed; };
  const CallScope scope(tag_of(placed), "scatter_tensor", describe);
  Header header;
  if (root && source.defined()) {
    TORCH_CHECK_NOT_IMPLEMENTED(source.dim() <= Header::kMaxDims, "scatter_tensor: more than ", Header::kMaxDims, " dims");
    header.defined() = source.layout() == at::kStrided ? 1 : 2 + static_cast<int64_t>(source.layout());
    header.ndim() = source.dim();
    header.dtype() = static_cast<int64_t>(source.scalar_type());
    const bool recorded = source.requires_grad() && c10::GradMode::is_enabled();
    if (recorded)
      header.set_gradient(computed_from_parameters(source) ? SourceGradient::kParameters : SourceGradient::kOwnTensors);
    std::copy(source.sizes().begin(), source.sizes().end(), header.sizes());
  }
  at::Tensor words = at::from_blob(header.words.data(), {static_cast<int64_t>(header.words.size())}, at::kLong);
  mesh->group().broadcast(words, static_cast<int>(src));
  TORCH_CHECK_VALUE(header.defined(), "scatter_tensor: rank ", src, ", the source, holds no tensor",
                    "\n  fix   give the tensor on rank ", src, ", or name the rank that has it with src");
  const at::IntArrayRef shape(header.sizes(), header.ndim());
  if (header.defined() != 1) refuse_layout(static_cast<at::Layout>(header.defined() - 2), shape, "scatter_tensor");
  TORCH_CHECK_VALUE(header.gradient() != SourceGradient::kParameters || mesh->size() == 1, "scatter_tensor: the source was computed from plain parameters of "
                    "modules, and rank ", src, " alone would have their gradients\n  have  a tensor of shape ", shape_string(shape),
                    "\n  fix   from_local(t, mesh, {Replicate()}), which all ranks have, and then redistribute");
  const SpecPtr spec = make_spec(mesh, shape, placements);
  TORCH_CHECK_VALUE(!spec->has_partial(), "scatter_tensor: Partial is no way to cut a tensor\n  fix   use Shard or Replicate");
  at::Tensor local;
  {
    const BelowAutograd guard;
    std::vector<Message> sends, receives;
    if (root) {
      at::Tensor full = carried_out(source);
      if (!lies_on(*mesh, full)) full = full.to(device_of(*mesh));
      for (int64_t rank = 0; rank < mesh->size(); ++rank) {
        if (rank == src) continue;
        at::Tensor block = block_of(full, *spec, rank).contiguous();
        if (block.numel() > 0) sends.push_back({static_cast<int>(rank), block});
      }
      local = block_of(full, *spec, src).clone(at::MemoryFormat::Contiguous);
    } else {
      const auto dtype = static_cast<at::ScalarType>(header.dtype());
      local = at::empty(spec->local_shape(), at::TensorOptions().dtype(dtype).device(device_of(*mesh)));
      if (local.numel() > 0) receives.push_back({static_cast<int>(src), local});
    }
    mesh->group().exchange(std::move(sends), std::move(receives));
  }
  at::Tensor result = wrap(std::move(local), spec);
  set_new_origin(result, scope.tag());
  if (header.gradient() != SourceGradient::kNone) {
    const c10::Device home = root ? source.device() : c10::Device(c10::kCPU);
    const auto back = [spec, src, home](const at::Tensor& grad) {
      TORCH_CHECK_NOT_IMPLEMENTED(!(c10::GradMode::is_enabled() && grad.requires_grad()),
                                  "scatter_tensor: no double backward to the source rank");
      const at::Tensor whole = collect(gradient_of(grad, spec), src);
      return whole.defined() ? whole.to(home) : whole;
    };
    if (root) {
      attach_backward(source, result, back);
    } else {
      attach_backward_sink(result, [back](const at::Tensor& grad) { back(grad); });
    }
  }
  return result;
}

at::Tensor distribute_tensor(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements,
                             int64_t src) {
  return scatter_tensor(full, mesh, placements, src);
}

at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& to) {
  const SpecPtr from = spec(tensor);
  if (from == to) return tensor;
  check_target(*from, *to);
  const SuspendCapture inside;
  at::Tensor result;
  {
    const BelowAutograd guard;
    const Moving moving(tensor, to);
    const at::Tensor source = fresh_block(tensor, "redistribute");
    result = wrap_moved(cached_redistribution(from, to)->apply(source), source, to);
    shard_impl(result)->origin = shard_impl(tensor)->origin;
  }
  connect_moved(tensor, result);
  return result;
}

at::Tensor redistribute(const at::Tensor& tensor, const std::vector<Placement>& placements) {
  return redistribute(tensor, spec(tensor)->mesh(), placements);
}

at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  check_placements_given(mesh, placements, "redistribute");
  return redistribute(tensor, make_spec(mesh, spec(tensor)->global_shape(), placements));
}

struct PendingTensor::State {
  at::Tensor tensor, source;
  SpecPtr to;
  std::optional<Redistribution::Pending> block;
  at::Tensor result;
  uint32_t version = 0;
  bool records = false;
};

PendingTensor redistribute_async(const at::Tensor& tensor, const SpecPtr& to) {
  const SuspendCapture inside;
  const SpecPtr from = spec(tensor);
  check_target(*from, *to);
  PendingTensor pending;
  pending.state_ = std::make_shared<PendingTensor::State>();
  PendingTensor::State& state = *pending.state_;
  if (from == to) {
    state.result = tensor;
    return pending;
  }
  const BelowAutograd guard;
  const Moving moving(tensor, to);
  state.tensor = tensor;
  state.source = fresh_block(tensor, "redistribute_async");
  state.to = to;
  state.version = version_of(*tensor.unsafeGetTensorImpl());
  state.records = c10::GradMode::is_enabled();
  state.block = cached_redistribution(from, to)->start(state.source);
  return pending;
}

at::Tensor PendingTensor::wait() {
  const SuspendCapture inside;
  TORCH_CHECK_VALUE(state_ != nullptr, "PendingTensor: nothing was started\n  fix   use the result of redistribute_async");
  State& state = *state_;
  if (state.result.defined()) return state.result;
  {
    const BelowAutograd guard;
    at::Tensor local = state.block->finish();
    TORCH_CHECK_VALUE(version_of(*state.tensor.unsafeGetTensorImpl()) == state.version,
                      "redistribute_async: the tensor was written in place before wait()\n  have  ", spec(state.tensor)->to_string(),
                      "\n  fix   wait first, or write to a clone()");
    state.result = wrap_moved(std::move(local), state.source, state.to);
    shard_impl(state.result)->origin = shard_impl(state.tensor)->origin;
  }
  const c10::AutoGradMode as_at_the_start(state.records);
  connect_moved(state.tensor, state.result);
  state.tensor.reset();
  state.source.reset();
  state.block.reset();
  return state.result;
}

PendingTensor redistribute_async(const at::Tensor& tensor, const std::vector<Placement>& placements) {
  return redistribute_async(tensor, spec(tensor)->mesh(), placements);
}

PendingTensor redistribute_async(const at::Tensor& tensor, const MeshPtr& mesh,
                                 const std::vector<Placement>& placements) {
  check_placements_given(mesh, placements, "redistribute");
  return redistribute_async(tensor, make_spec(mesh, spec(tensor)->global_shape(), placements));
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  const SpecPtr from = spec(tensor);
  return to_local(redistribute(tensor, replicated(from->mesh(), from->global_shape())));
}

at::Tensor to_local(const at::Tensor& tensor) {
  const SpecPtr from = spec(tensor);
  const at::Tensor local = counted_alias(fresh_block(tensor, "to_local"));
  attach_backward(
      tensor, local, [target = without_partial(from)](const at::Tensor& grad) { return from_local(grad, target); },
      [&](const at::Tensor& tangent) { return to_local(redistribute(tangent, from)); });
  return local;
}

}  // namespace moonhalo
