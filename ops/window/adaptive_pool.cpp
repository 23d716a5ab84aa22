// SPDX-License-Identifier: Apache-2.0
// Pooling to a given size: output row o covers the rows floor(o * in / out) to ceil((o + 1) * in /
// out). Windows differ in size, so a cut dim is pooled here window by window, and the other dims by
// LibTorch's kernel.
#include <ATen/ATen.h>

#include <optional>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

// A cut dim on one rank: the windows of its outputs, in rows of the extended block.
struct CutDim {
  int64_t dim = 0;
  std::vector<Interval> windows;
};

struct AdaptivePool {
  SpecPtr input, output;
  std::shared_ptr<const IntervalMap> halo;  // null: no pooled dim is cut
  std::vector<CutDim> cuts;
  int64_t first = 0;                 // of the pooled dims
  std::vector<int64_t> kernel_size;  // output_size for the local kernel, the cut dims as they are
  std::vector<int64_t> begins, extended,
      global;  // per pooled dim: where the extended block begins, its extent, the domain's
};

AdaptivePool pool_of(const OpCall& call, int64_t pooled, const std::vector<int64_t>& out_size) {
  AdaptivePool p;
  p.input = without_partial(call.spec("self"));
  const auto& shape = p.input->global_shape();
  TORCH_CHECK_VALUE(p.input->ndim() == pooled + 1 || p.input->ndim() == pooled + 2, call.name(), ": an input of ",
                    p.input->ndim(), " dims\n  have  shape ", shape_string(shape), "\n  fix   give ", pooled + 1,
                    " or ", pooled + 2, " dims");
  p.first = p.input->ndim() - pooled;
  Layout out = p.input->layout();
  for (int64_t i = 0; i < pooled; ++i) {
    const int64_t d = p.first + i, extent = shape[d];
    TORCH_CHECK_VALUE(extent > 0 && out_size[i] >= 0, call.name(), ": sizes must be positive\n  have  shape ",
                      shape_string(shape), ", output size ", shape_string(out_size));
    out.global_shape[d] = out_size[i];
    if (out.cuts[d]) out.cuts[d].sizes = resampled_sizes(out.cuts[d].sizes, out_size[i]);
  }
  p.output = intern(std::move(out));

  const auto window = [&](int64_t d, int64_t o) {
    const int64_t in = shape[d], to = p.output->global_shape()[d];
    return Interval{o * in / to, ((o + 1) * in + to - 1) / to};
  };
  const auto needed = [&](int64_t d, const Interval& owned, const Interval& outputs) {
    if (d < p.first || !p.input->is_cut(d)) return owned;
    return outputs.empty() ? Interval{} : Interval{window(d, outputs.begin).begin, window(d, outputs.end - 1).end};
  };
  const int64_t rank = p.input->mesh()->rank();
  for (int64_t d = p.first; d < p.input->ndim(); ++d) {
    const auto [begin, end] = needed(d, p.input->block_range(d, rank), p.output->block_range(d, rank));
    p.begins.push_back(begin);
    p.extended.push_back(end - begin);
    p.global.push_back(shape[d]);
    p.kernel_size.push_back(p.output->local_shape()[d]);
    if (!p.input->is_cut(d)) continue;
    CutDim cut{d, {}};
    const auto [from, to] = p.output->block_range(d, rank);
    for (int64_t o = from; o < to; ++o) {
      cut.windows.push_back(window(d, o).shifted(-begin));
    }
    p.cuts.push_back(std::move(cut));
  }
  if (p.cuts.empty()) return p;
  const auto along = [&](int64_t d, const Interval& owned, const Interval& outputs) {
    return HaloRequest{needed(d, owned, outputs)};
  };
  p.halo = std::make_shared<const IntervalMap>(p.input, GridRequests{p.output, along});
  return p;
}

bool all_cut(const AdaptivePool& p) { return p.cuts.size() == p.global.size(); }

// Flat positions in a box of extents `from` that begins at `offset` of a box of extents `to`.
at::Tensor rebase(at::Tensor index, const std::vector<int64_t>& from, const std::vector<int64_t>& offset,
                  const std::vector<int64_t>& to) {
  at::Tensor result;
  int64_t step = 1;
  for (size_t i = from.size(); i-- > 0;) {
    const at::Tensor row = (i > 0 ? index.remainder(from[i]) : index) + offset[i];
    if (i > 0) index = index.div(from[i], "floor");
    result = result.defined() ? result + row * step : row * step;
    step *= to[i];
  }
  return result;
}

// Average.

template <int64_t kPooled>
std::optional<Plan> plan_adaptive_average(const OpCall& call) {
  const AdaptivePool p = pool_of(call, kPooled, call.integers("output_size"));
  Plan plan;
  plan.inputs = {p.input};
  plan.outputs = {p.output};
  plan.argument_overrides.emplace_back(call.arg("output_size"), int_list(p.kernel_size));
  plan.run = [p, at_self = call.arg("self")](LocalCall& call) {
    at::Tensor x = call.tensor(at_self);
    if (p.halo) x = gather(*p.halo, x, 0, call.halo_source(at_self));
    const auto& shape = p.output->local_shape();
    if (c10::multiply_integers(shape) == 0) return call.give(at::empty(shape, x.options()));
    for (const CutDim& cut : p.cuts) {
      std::vector<at::Tensor> rows;
      for (const auto& [begin, end] : cut.windows)
        rows.push_back(x.narrow(cut.dim, begin, end - begin).mean(cut.dim, true));
      x = at::cat(rows, cut.dim);
    }
    if (all_cut(p)) return call.give(x);
    call.value(at_self) = x;
    call.run();
  };
  return plan;
}

template <int64_t kPooled>
std::optional<Plan> plan_adaptive_average_backward(const OpCall& call) {
  const auto& grad_shape = call.spec("grad_output")->global_shape();
  const AdaptivePool p = pool_of(call, kPooled, {grad_shape.end() - kPooled, grad_shape.end()});
  Plan plan;
  plan.inputs = {p.output, nullptr};  // only the shape of self is read
  plan.outputs = {p.input};
  plan.run = [p, at_grad_output = call.arg("grad_output"), at_self = call.arg("self")](LocalCall& call) {
    at::Tensor grad = call.tensor(at_grad_output);
    if (grad.numel() == 0) {
      grad = at::zeros(p.halo ? p.halo->needed_shape() : p.input->local_shape(), grad.options());
      return call.give(p.halo ? scatter_add(*p.halo, grad) : grad);
    }
    if (!all_cut(p)) {
      std::vector<int64_t> shape = p.input->local_shape();
      for (const CutDim& cut : p.cuts) shape[cut.dim] = grad.size(cut.dim);
      call.value(at_self) = at::empty(shape, grad.options());
      call.run();
      grad = call.result();
    }
    for (const CutDim& cut : p.cuts) {
      std::vector<int64_t> shape = grad.sizes().vec();
      shape[cut.dim] = p.extended[cut.dim - p.first];
      at::Tensor result = at::zeros(shape, grad.options());
      for (size_t o = 0; o < cut.windows.size(); ++o) {
        const auto [begin, end] = cut.windows[o];
        result.narrow(cut.dim, begin, end - begin)
            .add_(grad.narrow(cut.dim, static_cast<int64_t>(o), 1) / (end - begin));
      }
      grad = std::move(result);
    }
    call.give(p.halo ? scatter_add(*p.halo, grad) : grad);
  };
  return plan;
}

// Maximum.

// LibTorch's kernel: values and indices of a tensor pooled to `size`.
using PoolWindow = std::function<Stack(const at::Tensor& x, const std::vector<int64_t>& size)>;

// Pools every combination of windows of the cut dims by itself; their results fill `values` and
// `indices`.
void pool_windows(const AdaptivePool& p, const PoolWindow& pool, size_t level, const at::Tensor& x,
                  std::vector<int64_t> offset, at::Tensor values, at::Tensor indices) {
  if (level < p.cuts.size()) {
    const CutDim& cut = p.cuts[level];
    for (size_t o = 0; o < cut.windows.size(); ++o) {
      const auto [begin, end] = cut.windows[o];
      const int64_t axis = cut.dim - p.first;
      offset[axis] = p.begins[axis] + begin;
      pool_windows(p, pool, level + 1, x.narrow(cut.dim, begin, end - begin), offset,
                   values.narrow(cut.dim, static_cast<int64_t>(o), 1),
                   indices.narrow(cut.dim, static_cast<int64_t>(o), 1));
    }
    return;
  }
  const std::vector<int64_t> size(values.sizes().begin() + p.first, values.sizes().end());
  const Stack pooled = pool(x.contiguous(), size);
  values.copy_(pooled[0].toTensor());
  const std::vector<int64_t> extents(x.sizes().begin() + p.first, x.sizes().end());
  indices.copy_(rebase(pooled[1].toTensor(), extents, offset, p.global));
}

template <int64_t kPooled>
std::optional<Plan> plan_adaptive_max(const OpCall& call) {
  const AdaptivePool p = pool_of(call, kPooled, call.integers("output_size"));
  Plan plan;
  plan.inputs = {p.input};
  plan.outputs = {p.output, p.output};
  plan.run = [p, at_self = call.arg("self"), at_size = call.arg("output_size")](LocalCall& call) {
    at::Tensor x = call.tensor(at_self);
    if (p.halo) x = gather(*p.halo, x, 0, call.halo_source(at_self));
    at::Tensor values = at::empty(p.output->local_shape(), x.options());
    at::Tensor indices = at::empty(p.output->local_shape(), x.options().dtype(at::kLong));
    const auto pool = [&](const at::Tensor& window, const std::vector<int64_t>& size) {
      return call.run_with({{at_self, window}, {at_size, size}});
    };
    if (values.numel() > 0) pool_windows(p, pool, 0, x, std::vector<int64_t>(kPooled, 0), values, indices);
    call.give(std::move(values), std::move(indices));
  };
  return plan;
}

template <int64_t kPooled>
std::optional<Plan> plan_adaptive_max_backward(const OpCall& call) {
  const auto& grad_shape = call.spec("grad_output")->global_shape();
  const AdaptivePool p = pool_of(call, kPooled, {grad_shape.end() - kPooled, grad_shape.end()});
  Plan plan;
  plan.inputs = {p.output, nullptr, p.output};
  plan.outputs = {p.input};
  plan.run = [p, at_grad_output = call.arg("grad_output"), at_indices = call.arg("indices")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad_output);
    std::vector<int64_t> shape = p.halo ? p.halo->needed_shape() : p.input->local_shape(), back = p.begins;
    at::Tensor result = at::zeros(shape, grad.options());
    if (grad.numel() > 0) {
      for (int64_t& begin : back) begin = -begin;
      const at::Tensor index = rebase(call.tensor(at_indices), p.global, back, p.extended);
      result.flatten(p.first).scatter_add_(-1, index.flatten(p.first), grad.flatten(p.first));
    }
    call.give(p.halo ? scatter_add(*p.halo, result) : result);
  };
  return plan;
}

constexpr const char* kAdaptivePoolSupports = "any sizes; cuts of batch, channels and space";

const Register adaptive_pool_rules{
    {.op = "aten::_adaptive_avg_pool2d",
     .plan = plan_adaptive_average<2>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::_adaptive_avg_pool3d",
     .plan = plan_adaptive_average<3>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::_adaptive_avg_pool2d_backward",
     .plan = plan_adaptive_average_backward<2>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::_adaptive_avg_pool3d_backward",
     .plan = plan_adaptive_average_backward<3>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::adaptive_max_pool2d",
     .plan = plan_adaptive_max<2>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::adaptive_max_pool3d",
     .plan = plan_adaptive_max<3>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::adaptive_max_pool2d_backward",
     .plan = plan_adaptive_max_backward<2>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::adaptive_max_pool3d_backward",
     .plan = plan_adaptive_max_backward<3>,
     .supports = kAdaptivePoolSupports,
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
