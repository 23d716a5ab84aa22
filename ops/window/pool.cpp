// SPDX-License-Identifier: Apache-2.0
// Max and average pooling over cut dims: as a convolution, an output row is where the centre of its window is, and
// its rank fetches the rows that the window reaches. Indices of a maximum are global. Windows inside the owned rows
// are pooled while the others' rows are sent.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "moonhalo/engine/base/box_text.h"
#include "moonhalo/engine/base/device_constant.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/halo_split.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

// Pooling of the last dims, as one rank does it.
struct LocalPool {
  // One call of LibTorch's kernel.
  struct Call : HaloSplit::Part {
    std::vector<int64_t> padding;  // per pooled dim
  };
  Arg self;                             // whose halo it gathers
  std::vector<Window> windows;          // per pooled dim
  std::vector<int64_t> global_extents;  // per pooled dim
  Box block, needed;                    // its outputs, and what they read, which may leave the domain
  std::vector<int64_t> output_shape;
  std::shared_ptr<const IntervalMap> halo;  // brings what is needed; null where no pooled dim is cut
  // Forward: the parts of a HaloSplit. LibTorch's kernel takes whole blocks, so the interior's call gives outputs near
  // the edges, too, which the slabs overwrite.
  std::optional<Call> interior;
  std::vector<Call> slabs;
  std::vector<Box> halo_rows;
  HaloMaps maps;
  std::vector<std::vector<int64_t>> divisors;  // averages whose windows are not all the same: per dim, per output row

  bool empty() const { return c10::multiply_integers(output_shape) == 0; }

  int64_t first_dim() const { return block.ndim() - static_cast<int64_t>(windows.size()); }
  std::vector<int64_t> extents(const Box& box) const {
    const std::vector<int64_t> shape = box.shape();
    return {shape.begin() + first_dim(), shape.end()};
  }
  std::vector<int64_t> first_rows(const Box& box) const {
    std::vector<int64_t> rows;
    for (int64_t d = first_dim(); d < box.ndim(); ++d) rows.push_back(box[d].begin);
    return rows;
  }
  Call call_of(const HaloSplit::Part& part) const {
    Call call{part, first_rows(part.input)};
    for (size_t i = 0; i < windows.size(); ++i)
      call.padding[i] -= windows[i].input_needed(part.output[first_dim() + static_cast<int64_t>(i)]).begin;
    return call;
  }

  // A tensor of the extended input's shape, for backward kernels that only read its shape.
  at::Tensor like_extended(const at::Tensor& x) const {
    return halo ? at::empty(halo->needed_shape(), x.options()) : x;
  }
  at::Tensor give_back(const at::Tensor& grad) const { return halo ? scatter_add(*halo, grad) : grad; }

  // Flat positions in a box of the input to flat positions in the whole plane, and from there to those in the box that
  // is needed.
  at::Tensor to_global(at::Tensor index, const Box& box) const {
    return halo ? rebase(std::move(index), extents(box), first_rows(box), global_extents, 1) : index;
  }
  at::Tensor to_local(at::Tensor index) const {
    return halo ? rebase(std::move(index), global_extents, first_rows(needed), extents(needed), -1) : index;
  }

  at::Tensor divisor(const at::TensorOptions& options) const {
    const size_t count = divisors.size();
    at::Tensor result;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int64_t> shape(count, 1);
      shape[i] = -1;
      const at::Tensor rows_of_dim = constant_on(options, divisors[i]).view(shape);
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
      if (sign > 0 && first[i] < 0) row = at::where(row.lt(0), row.remainder(windows[i].dilation), row);
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
  SpecPtr input, output;
  LocalPool local;
  std::vector<int64_t> local_padding;  // where all that is needed is given
  bool ceil_mode = false;
};

// Outputs of a pooling, which with `ceil_mode` may begin in the domain or its low padding and end beyond the high one.
int64_t pool_outputs(const Window& window, int64_t in_extent, bool ceil_mode) {
  if (!ceil_mode) return window_outputs(window, in_extent);
  const int64_t outputs = window_outputs(window, in_extent + window.stride - 1);
  // The last window must not begin in the high padding.
  return (outputs - 1) * window.stride >= in_extent + window.padding ? outputs - 1 : outputs;
}

Pooling pooling_of(const OpCall& call, int64_t pooled, bool dilates) {
  Pooling p;
  const auto count = static_cast<size_t>(pooled);
  p.input = without_partial(call.spec("self"));
  const auto& shape = p.input->global_shape();
  TORCH_CHECK_VALUE(p.input->ndim() == pooled + 1 || p.input->ndim() == pooled + 2, call.name(), ": an input of ",
                    p.input->ndim(), " dims\n  have  shape ", shape_string(shape), "\n  fix   give ", pooled + 1,
                    " or ", pooled + 2, " dims");
  const auto kernel = spread(call.integers("kernel_size"), count), padding = spread(call.integers("padding"), count);
  auto stride = spread(call.integers("stride"), count);
  if (stride.empty()) stride = kernel;
  p.local.self = call.arg("self");
  const auto dilation = dilates ? spread(call.integers("dilation"), count) : std::vector<int64_t>(count, 1);
  p.ceil_mode = call.flag("ceil_mode");
  const int64_t first = p.input->ndim() - pooled;
  Layout out = p.input->layout();
  for (size_t i = 0; i < count; ++i) {
    const int64_t dim = first + static_cast<int64_t>(i), extent = shape[dim];
    const Window window{kernel[i], stride[i], dilation[i], padding[i]};
    TORCH_CHECK_VALUE(window.kernel > 0 && window.stride > 0 && window.dilation > 0, call.name(),
                      ": kernel_size, stride and dilation must be positive");
    TORCH_CHECK_VALUE(window.padding >= 0 && 2 * window.padding <= window.reach(), call.name(), ": padding ",
                      window.padding, " is more than half of the window of ", window.reach(), " rows");
    const int64_t outputs = pool_outputs(window, extent, p.ceil_mode);
    TORCH_CHECK_VALUE(outputs > 0, call.name(), ": a window of ", window.reach(), " rows along dim ", dim,
                      " is larger than the padded input of ", extent + 2 * window.padding, "\n  have  shape ",
                      shape_string(shape), "\n  fix   use a smaller kernel, or pad the input");
    out.global_shape[dim] = outputs;
    if (out.cuts[dim]) out.cuts[dim].sizes = window.output_sizes(out.cuts[dim].sizes, outputs);
    p.local.windows.push_back(window);
    p.local.global_extents.push_back(extent);
  }
  p.output = intern(std::move(out));
  p.local.output_shape = p.output->local_shape();
  p.local.halo = window_map(p.input, p.output, p.local.windows);
  const int64_t rank = p.input->mesh()->rank();
  p.local.block = block_box(*p.output, rank);
  p.local.needed = block_box(*p.input, rank);
  for (size_t i = 0; i < count; ++i) {
    const int64_t dim = first + static_cast<int64_t>(i);
    if (spans_ranks(p.input, dim)) p.local.needed[dim] = p.local.windows[i].input_needed(p.local.block[dim]);
    p.local_padding.push_back(spans_ranks(p.input, dim) ? 0 : padding[i]);
  }
  return p;
}

void check_gradient(const OpCall& call, const Pooling& p) {
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == p.output->global_shape(), call.name(),
                    ": the gradient of the output has shape ", shape_string(call.spec("grad_output")->global_shape()),
                    ", the output ", shape_string(p.output->global_shape()));
}

// Returns the number that no value is below.
double lowest(at::ScalarType dtype) {
  if (!at::isIntegralType(dtype, /*includeBool=*/true)) return -std::numeric_limits<double>::infinity();
  const bool is_unsigned = dtype == at::kByte || dtype == at::kBool;
  return is_unsigned ? 0 : -std::ldexp(1.0, static_cast<int>(8 * c10::elementSize(dtype)) - 1);
}

// True if on every rank the owned rows give exactly its outputs with a padding that LibTorch allows.
bool pooling_gives_outputs(const Pooling& p) {
  for (size_t i = 0; i < p.local.windows.size(); ++i) {
    const auto dim = p.local.first_dim() + static_cast<int64_t>(i);
    for (int64_t rank = 0; spans_ranks(p.input, dim) && rank < p.input->mesh()->size(); ++rank) {
      const Interval rows = p.input->block_range(dim, rank), outputs = p.output->block_range(dim, rank);
      if (outputs.empty()) continue;
      Window window = p.local.windows[i];
      window.padding = rows.begin - window.input_needed(outputs).begin;
      // Blocks thinner than a window have no inner outputs, and LibTorch's averages in three dims refuse them.
      const bool fits = rows.size() >= window.reach() && window.padding >= 0 && 2 * window.padding <= window.kernel &&
                        pool_outputs(window, rows.size(), p.ceil_mode) == outputs.size();
      if (!fits) return false;
    }
  }
  return true;
}

// With what the forward kernel needs to work on its inner outputs first.
LocalPool divided(const Pooling& p) {
  LocalPool local = p.local;
  HaloSplit split = undivided(local.block, local.needed);
  if (pooling_gives_outputs(p)) {
    const HaloReach reach = reach_of(p.input, p.output, local.windows);
    split = split_outputs(reach, p.input->mesh()->rank());
    local.interior = local.call_of({local.block, split.interior->input});
    local.maps = halo_maps(reach, p.input);
  } else {
    local.maps = {local.halo};
  }
  for (const HaloSplit::Part& slab : split.slabs) local.slabs.push_back(local.call_of(slab));
  local.halo_rows = std::move(split.halo_rows);
  return local;
}

// The results of windows: for a maximum also its place.
struct Pooled {
  at::Tensor values, indices;
};

// Pools this rank's block with `kernel(x, padding)`, whose indices are positions in x. Nothing, if it has no outputs.
template <typename Kernel>
Pooled pool_block(const LocalPool& local, const at::Tensor& self, const HaloSource& source, double fill,
                  const Kernel& kernel) {
  const auto pool = [&](const LocalPool::Call& call, const at::Tensor& x) {
    Pooled pooled = kernel(x, call.padding);
    const auto matches = [](int64_t size, const Interval& rows) { return size == rows.size(); };
    const at::IntArrayRef sizes = pooled.values.sizes();
    TORCH_INTERNAL_ASSERT(std::equal(sizes.begin(), sizes.end(), call.output.begin(), matches), "a local pooling made ",
                          sizes, " for ", box_string(call.output));
    if (pooled.indices.defined()) pooled.indices = local.to_global(std::move(pooled.indices), call.input);
    return pooled;
  };
  if (local.maps.empty()) return local.empty() ? Pooled{} : pool(*local.interior, self);
  HaloExchange exchange;
  for (const auto& map : local.maps) exchange.add_gather(*map, self, fill, source);
  exchange.start();
  Pooled all;
  if (local.interior) {
    if (!local.empty()) all = pool(*local.interior, self);
    exchange.trace("interior");
  }
  exchange.wait();
  std::vector<Tile> tiles;
  if (local.interior && !local.slabs.empty()) tiles.push_back({self, local.interior->input});
  for (size_t i = 0; i < local.maps.size(); ++i) tiles.push_back({exchange.gathered(i), local.halo_rows[i]});
  for (const LocalPool::Call& slab : local.slabs) {
    if (local.empty()) continue;
    Pooled pooled = pool(slab, assemble(slab.input, tiles, fill));
    if (!local.interior) return pooled;
    part({all.values, local.block}, slab.output).copy_(pooled.values);
    if (all.indices.defined()) part({all.indices, local.block}, slab.output).copy_(pooled.indices);
  }
  if (local.interior) exchange.trace("edges");
  return all;
}

// Maximum.

template <int64_t kPooled>
std::optional<Plan> plan_max(const OpCall& call) {
  const Pooling p = pooling_of(call, kPooled, true);
  Plan plan;
  plan.inputs = {p.input};
  plan.outputs = {p.output, p.output};
  std::vector<int64_t> kernel, stride, dilation;
  for (const Window& window : p.local.windows) {
    kernel.push_back(window.kernel);
    stride.push_back(window.stride);
    dilation.push_back(window.dilation);
  }
  // Called as a function: lists packed into the stack cost more than the pooling of a small block.
  plan.run = [local = divided(p), kernel, stride, dilation, ceil_mode = p.ceil_mode](LocalCall& call) {
    const at::Tensor& self = call.tensor(local.self);
    Pooled result = pool_block(local, self, call.halo_source(local.self), local.halo ? lowest(self.scalar_type()) : 0,
                               [&](const at::Tensor& x, const std::vector<int64_t>& padding) -> Pooled {
                                 constexpr auto pool =
                                     kPooled == 2 ? &at::max_pool2d_with_indices : &at::max_pool3d_with_indices;
                                 auto [values, indices] = pool(x, kernel, stride, padding, dilation, ceil_mode);
                                 return {std::move(values), std::move(indices)};
                               });
    if (local.empty()) {
      call.give(at::empty(local.output_shape, self.options()),
                at::empty(local.output_shape, self.options().dtype(at::kLong)));
      return;
    }
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
  plan.argument_overrides.emplace_back(call.arg("padding"), int_list(p.local_padding));
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
  plan.argument_overrides.emplace_back(call.arg("padding"), int_list(p.local_padding));
  if (!p.local.halo || call.given("divisor_override")) return;
  const bool include_pad = call.flag("count_include_pad");
  int64_t full = 1;
  bool identical = !p.ceil_mode;
  for (const Window& window : p.local.windows) {
    full *= window.kernel;
    identical &= include_pad || window.padding == 0;
  }
  plan.argument_overrides.emplace_back(call.arg("divisor_override"), c10::IValue(identical ? full : int64_t{1}));
  if (identical) return;
  const int64_t first = p.output->ndim() - static_cast<int64_t>(p.local.windows.size());
  for (size_t i = 0; i < p.local.windows.size(); ++i) {
    const Window& window = p.local.windows[i];
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
  plan.run = [local = divided(p), at_padding = call.arg("padding")](LocalCall& call) {
    const at::Tensor self = call.tensor(local.self);
    const Pooled pooled =
        pool_block(local, self, call.halo_source(local.self), 0,
                   [&](const at::Tensor& x, const std::vector<int64_t>& padding) -> Pooled {
                     return {call.run_with({{local.self, x}, {at_padding, padding}})[0].toTensor(), {}};
                   });
    if (local.empty()) {
      call.give(at::empty(local.output_shape, self.options()));
      return;
    }
    at::Tensor result = pooled.values;
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

constexpr const char* kPoolSupports = "any kernel, stride, padding and ceil_mode; cuts of batch, channels and space";

const Register pool_rules{
    {.op = "aten::max_pool2d_with_indices", .plan = plan_max<2>, .supports = kPoolSupports, .traffic = Traffic::kHalo},
    {.op = "aten::max_pool3d_with_indices", .plan = plan_max<3>, .supports = kPoolSupports, .traffic = Traffic::kHalo},
    {.op = "aten::max_pool2d_with_indices_backward",
     .plan = plan_max_backward<2>,
     .supports = kPoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::max_pool3d_with_indices_backward",
     .plan = plan_max_backward<3>,
     .supports = kPoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::avg_pool2d", .plan = plan_average<2>, .supports = kPoolSupports, .traffic = Traffic::kHalo},
    {.op = "aten::avg_pool3d", .plan = plan_average<3>, .supports = kPoolSupports, .traffic = Traffic::kHalo},
    {.op = "aten::avg_pool2d_backward",
     .plan = plan_average_backward<2>,
     .supports = kPoolSupports,
     .traffic = Traffic::kHalo},
    {.op = "aten::avg_pool3d_backward",
     .plan = plan_average_backward<3>,
     .supports = kPoolSupports,
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
