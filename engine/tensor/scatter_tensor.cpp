// SPDX-License-Identifier: Apache-2.0
// ShardTensors of a tensor that one rank holds.
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/tensor_creation.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {
namespace {

// Backward brings a gradient to these tensors of the source rank.
enum class SourceGradient : int64_t { kNone, kOwnTensors, kParameters };

// Facts of the source: of the others, after broadcast() alone.
class SourceFacts {
 public:
  void set(const at::Tensor& source) {
    words_[0] = source.dim();
    words_[1] = static_cast<int64_t>(source.layout());
    words_[2] = static_cast<int64_t>(source.scalar_type());
    if (source.requires_grad() && c10::GradMode::is_enabled()) {
      words_[3] = static_cast<int64_t>(computed_from_parameters(source) ? SourceGradient::kParameters
                                                                        : SourceGradient::kOwnTensors);
    }
    if (fits()) std::copy(source.sizes().begin(), source.sizes().end(), words_.begin() + kSizes);
  }

  void broadcast(const DeviceMesh& mesh, int64_t src) {
    at::Tensor words = at::from_blob(words_.data(), {static_cast<int64_t>(words_.size())}, at::kLong);
    mesh.group().broadcast(words, static_cast<int>(src));
    if (!mesh.group().is_fake()) return;
    // The source of a fake mesh holds what this rank holds, or else what it shared when it was run itself.
    std::vector<int64_t> mine;
    if (defined()) mine.assign(words_.begin(), words_.end());
    const std::vector<int64_t> shared = facts_of_root(mesh.group(), static_cast<int>(src), std::move(mine));
    if (!shared.empty()) std::copy(shared.begin(), shared.end(), words_.begin());
  }

  bool defined() const { return words_[0] >= 0; }
  bool fits() const { return words_[0] <= kMaxDims; }
  at::Layout layout() const { return static_cast<at::Layout>(words_[1]); }
  at::ScalarType dtype() const { return static_cast<at::ScalarType>(words_[2]); }
  SourceGradient gradient() const { return static_cast<SourceGradient>(words_[3]); }
  at::IntArrayRef shape() const { return {words_.data() + kSizes, static_cast<size_t>(words_[0])}; }

  static constexpr int64_t kMaxDims = 16;

 private:
  static constexpr int64_t kSizes = 4;
  std::array<int64_t, kSizes + kMaxDims> words_{-1};
};

at::Tensor block_of(const at::Tensor& full, const ShardSpec& spec, int64_t rank) {
  at::Tensor block = full;
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    const Interval rows = spec.block_range(d, rank);
    block = block.narrow(d, rows.begin, rows.size());
  }
  return block;
}

// Blocks of a ShardTensor back into one tensor on rank `src`: the adjoint of scattering. Collective.
at::Tensor collect(const at::Tensor& tensor, int64_t src) {
  const BelowAutograd guard;
  const TrafficScope moving(Traffic::kGradients);
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

// Facts of the source that its rank sends to the others. Collective; throws the same errors on all ranks.
SourceFacts share_facts(const at::Tensor& source, const DeviceMesh& mesh, int64_t src, const char* op) {
  SourceFacts facts;
  if ((mesh.rank() == src || mesh.group().is_fake()) && source.defined()) facts.set(source);
  facts.broadcast(mesh, src);
  TORCH_CHECK_VALUE(facts.defined() || !mesh.group().is_fake() || mesh.rank() == src, op, ": this dry run of rank ",
                    mesh.rank(), " has no facts of rank ", src, ", the source\n  have  no tensor on rank ", mesh.rank(),
                    ", and rank ", src, " has not shared its own\n  fix   give the tensor on every rank",
                    src == 0 ? ", or use moonhalo plan, which runs rank 0, too" : "");
  TORCH_CHECK_VALUE(facts.defined(), op, ": rank ", src, ", the source, holds no tensor",
                    "\n  fix   give the tensor on rank ", src, ", or name the rank that has it with src");
  TORCH_CHECK_NOT_IMPLEMENTED(facts.fits(), op, ": more than ", SourceFacts::kMaxDims, " dims");
  if (facts.layout() != at::kStrided) refuse_layout(facts.layout(), facts.shape(), op);
  TORCH_CHECK_VALUE(facts.gradient() != SourceGradient::kParameters || mesh.size() == 1, op,
                    ": the source was computed from plain parameters of modules, and rank ", src,
                    " alone would have their gradients\n  have  a tensor of shape ", shape_string(facts.shape()),
                    "\n  fix   from_local(t, mesh, {Replicate()}), which all ranks have, and then redistribute");
  return facts;
}

// On the source's rank: sends the others their blocks and returns its own.
at::Tensor send_blocks(const at::Tensor& source, const ShardSpec& spec) {
  const BelowAutograd guard;
  const DeviceMesh& mesh = *spec.mesh();
  at::Tensor full = materialize_lazy_bits(source);
  if (!is_on_device(mesh, full)) full = full.to(device_of(mesh));
  std::vector<Message> sends;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (rank == mesh.rank()) continue;
    at::Tensor block = block_of(full, spec, rank).contiguous();
    if (block.numel() > 0) sends.push_back({static_cast<int>(rank), block});
  }
  at::Tensor own = block_of(full, spec, mesh.rank()).clone(at::MemoryFormat::Contiguous);
  mesh.group().exchange(std::move(sends), {});
  return own;
}

// On every other rank.
at::Tensor receive_block(at::ScalarType dtype, const ShardSpec& spec, int64_t src) {
  const BelowAutograd guard;
  const DeviceMesh& mesh = *spec.mesh();
  const auto options = at::TensorOptions().dtype(dtype).device(device_of(mesh));
  at::Tensor block = at::empty(spec.local_shape(), options);
  std::vector<Message> receives;
  if (block.numel() > 0) receives.push_back({static_cast<int>(src), block});
  mesh.group().exchange({}, std::move(receives));
  return block;
}

// Backward brings the gradient of `result` to `source`, whole, on its rank.
void connect_to_source(const at::Tensor& source, const at::Tensor& result, const SpecPtr& spec, int64_t src) {
  const bool root = spec->mesh()->rank() == src;
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

// `op` begins the messages.
at::Tensor scatter_as(const char* op, const at::Tensor& source, const MeshPtr& mesh,
                      const std::vector<Placement>& placements, int64_t src) {
  check_placements(mesh, placements, op);
  TORCH_CHECK_VALUE(src >= 0 && src < mesh->size(), op, ": src ", src, " is not a rank of ", mesh->to_string());
  TORCH_CHECK_TYPE(!is_shard_tensor(source), op, ": the source is a ShardTensor already\n  fix   use redistribute");
  const std::string placed = placed_text(mesh, placements) + ", src " + std::to_string(src);
  const auto describe = [&placed] { return placed; };
  const CallScope scope(fingerprint_of(placed), op, describe);
  const TrafficScope moving(Traffic::kDistribute);
  const SourceFacts facts = share_facts(source, *mesh, src, op);
  const SpecPtr spec = make_spec(mesh, facts.shape(), placements);
  TORCH_CHECK_VALUE(!spec->has_partial(), op,
                    ": a source cannot be distributed as Partial\n  fix   use Shard or Replicate");
  at::Tensor result =
      wrap(mesh->rank() == src ? send_blocks(source, *spec) : receive_block(facts.dtype(), *spec, src), spec);
  set_new_origin(result, scope.tag());
  if (facts.gradient() != SourceGradient::kNone) connect_to_source(source, result, spec, src);
  return result;
}

}  // namespace

at::Tensor scatter_tensor(const at::Tensor& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          int64_t src) {
  return scatter_as("scatter_tensor", source, mesh, placements, src);
}

at::Tensor distribute_tensor(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements,
                             int64_t src) {
  return scatter_as("distribute_tensor", full, mesh, placements, src);
}

}  // namespace moonhalo
