// SPDX-License-Identifier: Apache-2.0
// Max and average pooling over cut dims: as a convolution, an output row lies where the centre of
// its window lies, and its rank borrows the rows that the window reaches. Indices of a maximum are
// global. Windows inside the owned rows are pooled while the others' rows travel.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/tensor_halos.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/pool_edges.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

// Pooling of the last dims, as one rank does it.
struct LocalPool {
  Arg self;                             // whose halo it gathers
  std::vector<int64_t> global_extents;  // per pooled dim
  std::vector<int64_t> dilation;
  std::vector<int64_t> first_row;     // global, of the rows that the local kernel sees; may be negative
  std::vector<int64_t> rows;          // that it sees
  std::vector<int64_t> output_shape;  // of this rank
  std::shared_ptr<const IntervalMap> halo;
  std::optional<PoolEdges> edges;              // forward: instead of the halo
  std::vector<std::vector<int64_t>> divisors;  // averages whose windows are not all alike: per dim, per output row

  bool empty() const { return c10::multiply_integers(output_shape) == 0; }

  at::Tensor extend(const at::Tensor& x, double fill) const {
    return halo ? gather(*halo, x, fill, halo_cache_of_argument(self.index)) : x;
  }
  // A tensor of the extended input's shape, for backward kernels that only read its shape.
  at::Tensor like_extended(const at::Tensor& x) const {
    return halo ? at::empty(halo->needed_shape(), x.options()) : x;
  }
  at::Tensor give_back(const at::Tensor& grad) const { return halo ? scatter_add(*halo, grad) : grad; }

  // Flat positions in the extended block to flat positions in the whole plane, or back.
  at::Tensor to_global(at::Tensor index) const {
    return halo ? rebase(std::move(index), rows, first_row, global_extents, 1) : index;
  }
  // The same, from positions in a box of the input.
  at::Tensor to_global(at::Tensor index, const Box& box) const {
    std::vector<int64_t> extents, first;
    for (int64_t d = box.ndim() - static_cast<int64_t>(global_extents.size()); d < box.ndim(); ++d) {
      extents.push_back(box[d].size());
      first.push_back(box[d].begin);
    }
    return rebase(std::move(index), extents, first, global_extents, 1);
  }
  at::Tensor to_local(at::Tensor index) const {
    return halo ? rebase(std::move(index), global_extents, first_row, rows, -1) : index;
  }

  at::Tensor divisor(const at::TensorOptions& options) const {
    const size_t count = divisors.size();
    at::Tensor result;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int64_t> shape(count, 1);
      shape[i] = -1;
      const at::Tensor rows_of_dim = at::tensor(divisors[i], at::kLong).to(options).view(shape);
      result = result.defined() ? result * rows_of_dim : rows_of_dim;
    }
    return result;
  }

 private:
  at::Tensor rebase(at::Tensor index, const std::vector<int64_t>& from, const std::vector<int64_t>& first,
                    const std::vector<int64_t>& to, int64_t sign) const {
    // Cut along the first of the dims alone, positions differ by whole rows.
    const bool rows_alone = std::equal(from.begin() + 1, from.end(), to.begin() + 1) &&
                            std::all_of(first.begin() + 1, first.end(), [](int64_t row) { return row == 0; });
    if (rows_alone && first[0] == 0) return index;
    if (rows_alone && (sign < 0 || first[0] > 0)) {
      return index + sign * first[0] * std::accumulate(to.begin() + 1, to.end(), int64_t{1}, std::multiplies<>());
    }
    at::Tensor result;
    int64_t step = 1;
    for (size_t i = from.size(); i-- > 0;) {
      at::Tensor row = i > 0 ? index.remainder(from[i]) : index;
      if (i > 0) index = index.div(from[i], "floor");
      row = row + sign * first[i];
      // A window full of the lowest value keeps its first position; outside the domain that is not
      // a position, the window's first row inside is meant.
      if (sign > 0 && first[i] < 0) row = at::where(row.lt(0), row.remainder(dilation[i]), row);
      result = result.defined() ? result + row * step : row * step;
      step *= to[i];
    }
    return result;
  }
};

std::vector<int64_t> spread(std::vector<int64_t> values, size_t count) {
  return values.size() == 1 ? std::vector<int64_t>(count, values[0]) : values;
}

// Everything a pooling plan needs; `input` without Partials.
struct Pooling {
  std::vector<Window> windows;
  SpecPtr input, output;
  LocalPool local;
  std::vector<int64_t> local_padding;
  bool ceil_mode = false;
};

Pooling pooling_of(const OpCall& call, int64_t pooled, bool dilates) {
  Pooling p;
  const auto count = static_cast<size_t>(pooled);
  p.input = without_partial(call.spec("self"));
  const auto& shape = p.input->global_shape();
  TORCH_CHECK_VALUE(p.input->ndim() == pooled + 1 || p.input->ndim() == pooled + 2, call.name(),
                    ": an input of ", p.input->ndim(), " dims\n  have  shape ", shape_string(shape),
                    "\n  fix   give ", pooled + 1, " or ", pooled + 2, " dims");
  const auto kernel = spread(call.integers("kernel_size"), count), padding = spread(call.integers("padding"), count);
  auto stride = spread(call.integers("stride"), count);
  if (stride.empty()) stride = kernel;
  p.local.self = call.arg("self");
  p.local.dilation = dilates ? spread(call.integers("dilation"), count) : std::vector<int64_t>(count, 1);
  p.ceil_mode = call.flag("ceil_mode");
  const int64_t first = p.input->ndim() - pooled;
  Layout out = p.input->layout();
  for (size_t i = 0; i < count; ++i) {
    const int64_t dim = first + static_cast<int64_t>(i), extent = shape[dim];
    const Window window{kernel[i], stride[i], p.local.dilation[i], padding[i]};
    TORCH_CHECK_VALUE(window.kernel > 0 && window.stride > 0 && window.dilation > 0, call.name(),
                      ": kernel_size, stride and dilation must be positive");
    TORCH_CHECK_VALUE(window.padding >= 0 && 2 * window.padding <= window.reach(), call.name(),
                      ": padding ", window.padding, " is more than half of the window of ",
                      window.reach(), " rows");
    const int64_t outputs = pool_outputs(window, extent, p.ceil_mode);
    TORCH_CHECK_VALUE(outputs > 0, call.name(), ": a window of ", window.reach(),
                      " rows along dim ", dim, " is larger than the padded input of ",
                      extent + 2 * window.padding, "\n  have  shape ", shape_string(shape),
                      "\n  fix   use a smaller kernel, or pad the input");
    out.global_shape[dim] = outputs;
    if (out.cuts[dim]) out.cuts[dim].sizes = window.output_sizes(out.cuts[dim].sizes, outputs);
    p.windows.push_back(window);
  }
  p.output = intern(std::move(out));
  p.local.output_shape = p.output->local_shape();
  p.local.halo = window_map(p.input, p.output, p.windows);
  for (size_t i = 0; i < count; ++i) {
    const int64_t dim = first + static_cast<int64_t>(i);
    Interval rows{0, shape[dim]};
    if (spans_ranks(p.input, dim)) {
      rows = p.windows[i].input_needed(block_rows(*p.output, dim, p.input->mesh()->rank()));
    }
    p.local_padding.push_back(spans_ranks(p.input, dim) ? 0 : padding[i]);
    p.local.global_extents.push_back(shape[dim]);
    p.local.first_row.push_back(rows.begin);
    p.local.rows.push_back(rows.size());
  }
  return p;
}

void check_gradient(const OpCall& call, const Pooling& p) {
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == p.output->global_shape(),
                    call.name(), ": the gradient of the output has shape ",
                    shape_string(call.spec("grad_output")->global_shape()), ", the output ",
                    shape_string(p.output->global_shape()));
}

void check_shape(const at::Tensor& result, at::IntArrayRef shape) {
  TORCH_INTERNAL_ASSERT(result.sizes() == shape, "a local pooling made ", result.sizes(),
                        " instead of ", shape);
}

// What no value is below.
double lowest(at::ScalarType dtype) {
  if (!at::isIntegralType(dtype, /*includeBool=*/true)) return -std::numeric_limits<double>::infinity();
  const bool is_unsigned = dtype == at::kByte || dtype == at::kBool;
  return is_unsigned ? 0 : -std::ldexp(1.0, static_cast<int>(8 * c10::elementSize(dtype)) - 1);
}

// With what the forward kernel needs to work on its inner outputs first.
LocalPool with_edges(const Pooling& p) {
  LocalPool local = p.local;
  if (local.halo) local.edges = pool_edges(p.input, p.output, p.windows, p.ceil_mode);
  return local;
}

// What windows give: of a maximum also where it is.
struct Pooled {
  at::Tensor values, indices;
};

// Pools this rank's block with `kernel(x, padding)`, whose indices are positions in x.
template <typename Kernel>
Pooled pool_block(const LocalPool& local, const at::Tensor& self, const std::vector<int64_t>& padding, double fill,
                  const Kernel& kernel) {
  if (!local.edges) {
    const at::Tensor x = local.extend(self, fill);
    if (local.empty()) return {};
    Pooled all = kernel(x, padding);
    if (all.indices.defined()) all.indices = local.to_global(std::move(all.indices));
    return all;
  }
  const PoolEdges& edges = *local.edges;
  HaloExchange exchange;
  for (const BorrowedBox& part : edges.borrowed)
    exchange.add_gather(*part.map, self, fill, halo_cache_of_argument(local.self.index));
  exchange.start();
  Pooled all;
  if (!local.empty()) {
    all = kernel(self, edges.padding);
    check_shape(all.values, local.output_shape);
    if (all.indices.defined()) all.indices = local.to_global(std::move(all.indices), edges.owned);
  }
  exchange.trace("interior");
  exchange.wait();
  if (!edges.strips.empty()) {
    std::vector<Piece> pieces{{self, edges.owned}};
    for (size_t i = 0; i < edges.borrowed.size(); ++i) pieces.push_back({exchange.gathered(i), edges.borrowed[i].box});
    for (const PoolEdges::Strip& strip : edges.strips) {
      Pooled part = kernel(assemble(strip.box, pieces, fill), strip.padding);
      const auto put = [&](at::Tensor to, const at::Tensor& from) {
        for (int64_t d = 0; d < to.dim(); ++d) to = to.narrow(d, strip.first_output[d], strip.outputs[d]);
        to.copy_(from);
      };
      put(all.values, part.values);
      if (all.indices.defined()) put(all.indices, local.to_global(std::move(part.indices), strip.box));
    }
  }
  exchange.trace("edges");
  return all;
}

// Maximum.

template <int64_t kPooled>
std::optional<Plan> plan_max(const OpCall& call) {
  const Pooling p = pooling_of(call, kPooled, true);
  Plan plan;
  plan.inputs = {p.input};
  plan.outputs = {p.output, p.output};
  std::vector<int64_t> kernel, stride;
  for (const Window& window : p.windows) {
    kernel.push_back(window.kernel);
    stride.push_back(window.stride);
  }
  // Called as a function: lists packed into the stack cost more than the pooling of a small block.
  plan.run = [local = with_edges(p), kernel, stride, padding = p.local_padding,
              ceil_mode = p.ceil_mode](LocalCall& call) {
    const at::Tensor& self = call.tensor(local.self);
    Pooled result =
        pool_block(local, self, padding, local.halo ? lowest(self.scalar_type()) : 0,
                   [&](const at::Tensor& x, const std::vector<int64_t>& padding_of_kernel) -> Pooled {
                     constexpr auto pool = kPooled == 2 ? &at::max_pool2d_with_indices : &at::max_pool3d_with_indices;
                     auto [values, indices] = pool(x, kernel, stride, padding_of_kernel, local.dilation, ceil_mode);
                     return {std::move(values), std::move(indices)};
                   });
    if (local.empty()) {
      call.give(at::empty(local.output_shape, self.options()),
                at::empty(local.output_shape, self.options().dtype(at::kLong)));
      return;
    }
    check_shape(result.indices, local.output_shape);
    call.give(std::move(result.values), std::move(result.indices));
  };
  return plan;
}

template <int64_t kPooled>
std::optional<Plan> plan_max_backward(const OpCall& call) {
  const Pooling p = pooling_of(call, kPooled, true);
  check_gradient(call, p);
  Plan plan;
  plan.inputs = {p.output, nullptr, p.output};  // only the shape of self is read
  plan.outputs = {p.input};
  plan.edits.emplace_back(call.arg("padding"), int_list(p.local_padding));
  plan.run = [local = p.local, indices = call.arg("indices")](LocalCall& call) {
    const at::Tensor x = local.like_extended(call.tensor(local.self));
    if (local.empty()) {
      call.give(local.give_back(at::zeros(x.sizes(), x.options())));
      return;
    }
    call.value(local.self) = x;
    c10::IValue& index = call.value(indices);
    index = local.to_local(index.toTensor());
    call.run();
    call.give(local.give_back(call.result()));
  };
  return plan;
}

// Average.

// Arguments of the local kernel: it sums or averages full windows; windows that hang over an edge
// are divided by their own size afterwards.
void localize_average(const OpCall& call, Pooling& p, Plan& plan) {
  plan.edits.emplace_back(call.arg("padding"), int_list(p.local_padding));
  if (!p.local.halo || call.given("divisor_override")) return;
  const bool include_pad = call.flag("count_include_pad");
  int64_t full = 1;
  bool alike = !p.ceil_mode;
  for (const Window& window : p.windows) {
    full *= window.kernel;
    alike &= include_pad || window.padding == 0;
  }
  plan.edits.emplace_back(call.arg("divisor_override"), c10::IValue(alike ? full : int64_t{1}));
  if (alike) return;
  const int64_t first = p.output->ndim() - static_cast<int64_t>(p.windows.size());
  for (size_t i = 0; i < p.windows.size(); ++i) {
    const Window& window = p.windows[i];
    const int64_t extent = p.local.global_extents[i];
    const auto [begin, end] = p.output->block_range(first + static_cast<int64_t>(i), p.output->mesh()->rank());
    std::vector<int64_t> sizes;
    for (int64_t o = begin; o < end; ++o) {
      int64_t lo = o * window.stride - window.padding;
      int64_t hi = std::min(lo + window.kernel, extent + window.padding);
      if (!include_pad) {
        lo = std::max<int64_t>(lo, 0);
        hi = std::min(hi, extent);
      }
      sizes.push_back(std::max<int64_t>(hi - lo, 1));
    }
    p.local.divisors.push_back(std::move(sizes));
  }
}

template <int64_t kPooled>
std::optional<Plan> plan_average(const OpCall& call) {
  Pooling p = pooling_of(call, kPooled, false);
  if (at::isIntegralType(call.tensor("self").dtype, true)) return std::nullopt;
  Plan plan;
  plan.inputs = {p.input};
  plan.outputs = {p.output};
  localize_average(call, p, plan);
  plan.run = [local = with_edges(p), at_padding = call.arg("padding"), padding = p.local_padding](LocalCall& call) {
    const at::Tensor self = call.tensor(local.self);
    const Pooled pooled = pool_block(
        local, self, padding, 0, [&](const at::Tensor& x, const std::vector<int64_t>& padding_of_kernel) -> Pooled {
          const Stack results = call.run_with({{local.self, x}, {at_padding, padding_of_kernel}});
          return {results[0].toTensor(), {}};
        });
    if (local.empty()) {
      call.give(at::empty(local.output_shape, self.options()));
      return;
    }
    at::Tensor result = pooled.values;
    check_shape(result, local.output_shape);
    if (!local.divisors.empty()) result.div_(local.divisor(result.options()));
    call.give(std::move(result));
  };
  return plan;
}

template <int64_t kPooled>
std::optional<Plan> plan_average_backward(const OpCall& call) {
  Pooling p = pooling_of(call, kPooled, false);
  check_gradient(call, p);
  Plan plan;
  plan.inputs = {p.output, nullptr};
  plan.outputs = {p.input};
  localize_average(call, p, plan);
  plan.run = [local = p.local, at_grad_output = call.arg("grad_output")](LocalCall& call) {
    const at::Tensor x = local.like_extended(call.tensor(local.self));
    if (local.empty()) {
      call.give(local.give_back(at::zeros(x.sizes(), x.options())));
      return;
    }
    call.value(local.self) = x;
    c10::IValue& grad = call.value(at_grad_output);
    if (!local.divisors.empty()) grad = grad.toTensor() / local.divisor(grad.toTensor().options());
    call.run();
    call.give(local.give_back(call.result()));
  };
  return plan;
}

constexpr const char* kSupports = "any kernel, stride, padding and ceil_mode; cuts of batch, channels and space";

const Register rules{
    {.op = "aten::max_pool2d_with_indices", .plan = plan_max<2>, .source = "PyTorch max_pool2d", .supports = kSupports},
    {.op = "aten::max_pool3d_with_indices", .plan = plan_max<3>, .source = "PyTorch max_pool3d", .supports = kSupports},
    {.op = "aten::max_pool2d_with_indices_backward",
     .plan = plan_max_backward<2>,
     .source = "PyTorch max_pool2d",
     .supports = kSupports},
    {.op = "aten::max_pool3d_with_indices_backward",
     .plan = plan_max_backward<3>,
     .source = "PyTorch max_pool3d",
     .supports = kSupports},
    {.op = "aten::avg_pool2d", .plan = plan_average<2>, .source = "PyTorch avg_pool2d", .supports = kSupports},
    {.op = "aten::avg_pool3d", .plan = plan_average<3>, .source = "PyTorch avg_pool3d", .supports = kSupports},
    {.op = "aten::avg_pool2d_backward",
     .plan = plan_average_backward<2>,
     .source = "PyTorch avg_pool2d",
     .supports = kSupports},
    {.op = "aten::avg_pool3d_backward",
     .plan = plan_average_backward<3>,
     .source = "PyTorch avg_pool3d",
     .supports = kSupports},
};

}  // namespace
}  // namespace moonhalo
