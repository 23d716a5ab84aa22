// SPDX-License-Identifier: Apache-2.0
#include "engine/redistribute.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace moonhalo {
namespace {

// The value that changes nothing when it is reduced with others; none for operators that take equal values as they are.
std::optional<double> neutral(ReduceOp op) {
  if (op == ReduceOp::kSum) return 0.0;
  if (op == ReduceOp::kProduct) return 1.0;
  return std::nullopt;
}

std::vector<Need> owned_box(const ShardSpec& spec, int64_t rank) {
  std::vector<Need> needs(spec.ndim());
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    std::tie(needs[d].begin, needs[d].end) = spec.block_range(d, rank);
  }
  return needs;
}

at::Tensor reduce_scatter(const at::Tensor& local, int64_t dim, at::IntArrayRef sizes, ReduceOp op, Communicator& group) {
  // Every peer's part becomes one contiguous run of the flat buffer.
  auto parts = local.split_with_sizes(sizes, dim);
  std::vector<at::Tensor> flat;
  std::vector<int64_t> counts;
  for (const auto& part : parts) {
    counts.push_back(part.numel());
    flat.push_back(part.reshape({-1}));
  }
  at::Tensor out = at::empty(parts[group.rank()].sizes(), local.options());
  at::Tensor out_flat = out.view({-1});
  group.reduce_scatter(at::cat(flat), counts, out_flat, op);
  return out;
}

}  // namespace

Redistribution::Redistribution(SpecPtr from, SpecPtr to) : from_(std::move(from)), to_(std::move(to)) {
  TORCH_CHECK_VALUE(from_->mesh() == to_->mesh(), "redistribute: the tensor lives on ", from_->mesh()->to_string(),
                    ", the placements are for ", to_->mesh()->to_string(), "\n  fix   use placements on the tensor's own mesh");
  TORCH_INTERNAL_ASSERT(from_->global_shape() == to_->global_shape(), "redistribute changes a shape from ",
                        from_->to_string(), " to ", to_->to_string());
  Layout layout = from_->layout();
  const DeviceMesh& mesh = *from_->mesh();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto op = layout.partials[m];
    if (!op || op == to_->partial(m)) continue;
    Reduce reduce{m, *op, -1, {}};
    for (int64_t d = 0; d < to_->ndim(); ++d) {
      if (!layout.cuts[d] && to_->cut(d).mesh_dims == std::vector<int64_t>{m}) {
        reduce.scatter_dim = d;
        reduce.sizes = to_->cut(d).sizes;
        layout.cuts[d] = to_->cut(d);
      }
    }
    layout.partials[m].reset();
    reduces_.push_back(std::move(reduce));
  }
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto op = to_->partial(m);
    if (!op || layout.partials[m]) continue;
    const auto value = neutral(*op);
    if (value && mesh.coordinate(m) != 0) seed_ = Seed{*value};
  }
  if (layout.cuts != to_->layout().cuts) {
    const SpecPtr target = to_;
    map_ = std::make_unique<IntervalMap>(intern(layout), [target](int64_t rank) { return owned_box(*target, rank); });
  }
}

at::Tensor Redistribution::apply(const at::Tensor& local) const {
  at::Tensor value = local;
  for (const Reduce& reduce : reduces_) {
    Communicator& group = from_->mesh()->group(reduce.mesh_dim);
    if (reduce.scatter_dim >= 0) {
      value = reduce_scatter(value, reduce.scatter_dim, reduce.sizes, reduce.op, group);
    } else {
      value = value.clone(at::MemoryFormat::Contiguous);
      group.all_reduce(value, reduce.op);
    }
  }
  if (map_) value = map_->apply(value);
  if (seed_) value = at::full_like(value, seed_->value);
  return value;
}

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to) {
  return from == to ? local : Redistribution(from, to).apply(local);
}

double redistribution_cost(const ShardSpec& from, const ShardSpec& to) {
  if (&from == &to) return 0;
  const DeviceMesh& mesh = *from.mesh();
  double local = static_cast<double>(from.global_numel());
  for (int64_t d = 0; d < from.ndim(); ++d) {
    for (const int64_t m : from.cut(d).mesh_dims) local /= static_cast<double>(mesh.size(m));
  }
  double cost = 0;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!from.partial(m) || from.partial(m) == to.partial(m)) continue;
    const double ranks = static_cast<double>(mesh.size(m));
    const bool scatters = std::any_of(to.layout().cuts.begin(), to.layout().cuts.end(),
                                      [&](const Cut& cut) { return cut.mesh_dims == std::vector<int64_t>{m}; });
    cost += (scatters ? 1 : 2) * (ranks - 1) / ranks * local;
  }
  double stays = 1, wanted = static_cast<double>(to.global_numel());
  for (int64_t d = 0; d < from.ndim(); ++d) {
    const Cut &a = from.cut(d), &b = to.cut(d);
    for (const int64_t m : b.mesh_dims) wanted /= static_cast<double>(mesh.size(m));
    if (!a || a == b) continue;
    if (a.mesh_dims == b.mesh_dims) {
      int64_t same = 0, begin_a = 0, begin_b = 0;
      for (size_t i = 0; i < a.sizes.size(); ++i) {
        same += std::max<int64_t>(
            0, std::min(begin_a + a.sizes[i], begin_b + b.sizes[i]) - std::max(begin_a, begin_b));
        begin_a += a.sizes[i];
        begin_b += b.sizes[i];
      }
      stays *= from.global_shape()[d] == 0 ? 1 : static_cast<double>(same) / static_cast<double>(from.global_shape()[d]);
    } else {
      stays /= static_cast<double>(a.sizes.size());
    }
  }
  return cost + wanted * (1 - stays);
}

}  // namespace moonhalo
