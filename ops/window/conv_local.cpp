// SPDX-License-Identifier: Apache-2.0
// One rank's part of a convolution: the exchange of halo rows around calls of LibTorch's kernel, which are made so that
// they are right and quick on the shapes that blocks and strips of their edges have.
#include "moonhalo/ops/window/conv.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/box_text.h"
#include "moonhalo/engine/exchange/halo_exchange.h"

namespace moonhalo {
namespace {

// LibTorch 2.11 takes its kernel of columns (27 copies of the field for a kernel of 3^3) for float32 fields of one
// sample whose channels * depth * height are few, whatever the width is. Thin strips are turned: the width comes first.
bool prefers_transposed_layout(const at::Tensor& x, int64_t groups) {
  constexpr int64_t kFew = 20480;
  if (x.dim() != 5 || groups != 1 || x.size(0) != 1 || x.scalar_type() != at::kFloat || !x.is_cpu()) return false;
  const int64_t lines = x.size(1) * x.size(3);
  return lines * x.size(2) <= kFew && lines * x.size(4) > kFew;
}

at::Tensor turned(const at::Tensor& field) { return field.defined() ? field.transpose(2, 4).contiguous() : field; }

std::vector<int64_t> turned(at::IntArrayRef per_dim) { return {per_dim.rbegin(), per_dim.rend()}; }

// oneDNN's kernels for AMX (LibTorch 2.11.0 and 2.15.0) read memory that was never written where a convolution of a
// 2-byte type with a stride gives one column of the last dim. Whole fields are seldom one column wide; blocks and
// strips are. `columns`: of the result, or, where the convolution is transposed, of the input.
bool needs_float(const at::Tensor& x, int64_t columns, at::IntArrayRef stride) {
  const bool two_bytes = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return two_bytes && x.is_cpu() && columns == 1 &&
         std::any_of(stride.begin(), stride.end(), [](int64_t step) { return step > 1; });
}

// One of the tensors has no element.
std::tuple<at::Tensor, at::Tensor, at::Tensor> no_gradients(const at::Tensor& grad, const at::Tensor& x,
                                                            const at::Tensor& weight, std::array<bool, 3> mask) {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> none;
  if (mask[0]) std::get<0>(none) = at::zeros(x.sizes(), x.options());
  if (mask[1]) std::get<1>(none) = at::zeros(weight.sizes(), weight.options());
  if (mask[2]) {
    std::vector<int64_t> dims{0};
    for (int64_t d = 2; d < grad.dim(); ++d) dims.push_back(d);
    std::get<2>(none) = grad.sum(dims);
  }
  return none;
}

at::Tensor convolve(const ConvPlan& plan, const at::Tensor& x, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias, at::IntArrayRef local_padding) {
  const int64_t window = plan.dilation.back() * (weight.size(-1) - 1) + 1;
  const int64_t columns =
      plan.transposed ? x.size(-1) : (x.size(-1) + 2 * local_padding.back() - window) / plan.stride.back() + 1;
  if (needs_float(x, columns, plan.stride)) {
    const auto wide_bias = bias && bias->defined() ? std::optional(bias->to(at::kFloat)) : std::nullopt;
    return at::convolution(x.to(at::kFloat), weight.to(at::kFloat), wide_bias, plan.stride, local_padding,
                           plan.dilation, plan.transposed, plan.output_padding, plan.local_groups)
        .to(x.scalar_type());
  }
  if (prefers_transposed_layout(x, plan.local_groups)) {
    return turned(at::convolution(turned(x), turned(weight), bias, turned(plan.stride), turned(local_padding),
                                  turned(plan.dilation), plan.transposed, turned(plan.output_padding),
                                  plan.local_groups));
  }
  return at::convolution(x, weight, bias, plan.stride, local_padding, plan.dilation, plan.transposed,
                         plan.output_padding, plan.local_groups);
}

ConvPlan::Gradients convolve_backward(const ConvPlan& plan, const at::Tensor& grad, const at::Tensor& x,
                                      const at::Tensor& weight, at::IntArrayRef local_padding,
                                      std::array<bool, 3> mask) {
  if (grad.numel() == 0 || x.numel() == 0 || weight.numel() == 0) return no_gradients(grad, x, weight, mask);
  const std::vector<int64_t> bias_sizes{grad.size(1)};
  if (needs_float(x, plan.transposed ? x.size(-1) : grad.size(-1), plan.stride)) {
    const auto type = x.scalar_type();
    const auto narrow = [&](const at::Tensor& wide) { return wide.defined() ? wide.to(type) : wide; };
    const auto [of_input, of_weight, of_bias] = at::convolution_backward(
        grad.to(at::kFloat), x.to(at::kFloat), weight.to(at::kFloat), bias_sizes, plan.stride, local_padding,
        plan.dilation, plan.transposed, plan.output_padding, plan.local_groups, mask);
    return {narrow(of_input), narrow(of_weight), narrow(of_bias)};
  }
  if (prefers_transposed_layout(x, plan.local_groups)) {
    const auto [of_input, of_weight, of_bias] = at::convolution_backward(
        turned(grad), turned(x), turned(weight), bias_sizes, turned(plan.stride), turned(local_padding),
        turned(plan.dilation), plan.transposed, turned(plan.output_padding), plan.local_groups, mask);
    return {turned(of_input), turned(of_weight), of_bias};
  }
  return at::convolution_backward(grad, x, weight, bias_sizes, plan.stride, local_padding, plan.dilation,
                                  plan.transposed, plan.output_padding, plan.local_groups, mask);
}

// The sum of no terms.
at::Tensor bias_alone(const ConvPlan& plan, const at::Tensor& input, const std::optional<at::Tensor>& bias) {
  const std::vector<int64_t> shape = plan.block.shape();
  at::Tensor out = at::zeros(shape, input.options());
  std::vector<int64_t> along_channels(shape.size(), 1);
  along_channels[1] = shape[1];
  return bias && bias->defined() ? out.add_(bias->view(along_channels)) : out;
}

at::Tensor result_of(const ConvPlan& plan, const ConvPlan::Call& call, const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) {
  at::Tensor out = convolve(plan, x, weight, bias, call.padding);
  for (int64_t d = 0; d < out.dim(); ++d) {
    const int64_t required = call.output[d].size();
    if (plan.transposed && d >= 2 && out.size(d) != required) out = out.narrow(d, call.crop[d - 2], required);
    TORCH_INTERNAL_ASSERT(out.size(d) == required, "a local convolution made ", out.sizes(), " instead of ",
                          box_string(call.output));
  }
  return out;
}

ConvPlan::Gradients gradients_of(const ConvPlan& plan, const ConvPlan::Call& call, const at::Tensor& grad_output,
                                 const at::Tensor& x, const at::Tensor& weight, std::array<bool, 3> mask) {
  at::Tensor grad = call.output == plan.block ? grad_output : part({grad_output, plan.block}, call.output);
  std::vector<int64_t> full = grad.sizes().vec();
  std::copy(call.uncropped.begin(), call.uncropped.end(), full.begin() + 2);
  if (grad.sizes() != at::IntArrayRef(full) && grad.numel() > 0) {
    const at::Tensor whole = at::zeros(full, grad.options());
    at::Tensor inner = whole;
    for (int64_t d = 2; d < grad.dim(); ++d) inner = inner.narrow(d, call.crop[d - 2], grad.size(d));
    inner.copy_(grad);
    grad = whole;
  }
  return convolve_backward(plan, grad, x, weight, call.padding, mask);
}

}  // namespace

at::Tensor ConvPlan::forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const HaloSource& source) const {
  HaloExchange edges;
  for (const auto& map : maps) edges.add_gather(*map, input, 0, source);
  edges.start();
  at::Tensor out;
  const auto add = [&](const Call& call, const at::Tensor& x) {
    if (x.numel() == 0 || weight.numel() == 0) return;
    if (!out.defined() && call.output == block) {
      out = result_of(*this, call, x, weight, bias);
    } else {
      if (!out.defined()) out = bias_alone(*this, input, bias);
      part({out, block}, call.output).add_(result_of(*this, call, x, weight, std::nullopt));
    }
  };
  if (interior) {
    if (!interior->output.empty()) add(*interior, input);
    edges.trace("interior");
  }
  edges.wait();
  for (size_t i = 0; i < slabs.size(); ++i) {
    if (!slabs[i].output.empty()) add(slabs[i], assemble(slabs[i].input, {{edges.gathered(i), halo_rows[i]}}, 0));
  }
  if (interior) edges.trace("edges");
  return out.defined() ? out : bias_alone(*this, input, bias);
}

// The gradients of halo rows need the output's gradient alone. With an interior they are sent together with the rows
// that the weight's gradient needs, while the owned rows are worked on. Without one they are computed while those
// rows are sent, and returned while the weight's gradient is computed.
ConvPlan::Gradients ConvPlan::backward(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                       std::array<bool, 3> mask, const HaloSource& source) const {
  HaloExchange edges, later;
  HaloExchange& leaving = interior ? edges : later;
  const auto idle = [&](const Call& slab) { return interior && slab.output.empty(); };
  for (size_t i = 0; mask[1] && i < maps.size(); ++i) edges.add_gather(*maps[i], input, 0, source);
  if (!interior) edges.start();
  std::vector<size_t> left;
  for (size_t i = 0; mask[0] && i < maps.size(); ++i) {
    at::Tensor of_halo;
    if (idle(slabs[i])) {
      of_halo = at::zeros(maps[i]->needed_shape(), input.options());
    } else {
      const at::Tensor shape_alone = at::empty(slabs[i].input.shape(), input.options());
      const Gradients of_slab = gradients_of(*this, slabs[i], grad_output, shape_alone, weight, {true, false, false});
      of_halo = assemble(halo_rows[i], {{std::get<0>(of_slab), slabs[i].input}}, 0);
    }
    left.push_back(leaving.add_scatter_add(*maps[i], of_halo));
  }
  Gradients sums;
  if (interior) {
    edges.start();
    sums = gradients_of(*this, *interior, grad_output, input, weight, mask);
  }
  edges.trace("interior");
  edges.wait();
  if (!interior) later.start();
  const std::array<bool, 3> of_weight{false, mask[1], mask[2] && !interior};
  for (size_t i = 0; (of_weight[1] || of_weight[2]) && i < slabs.size(); ++i) {
    if (idle(slabs[i])) continue;
    const at::Tensor x = mask[1] ? assemble(slabs[i].input, {{edges.gathered(i), halo_rows[i]}}, 0)
                                 : at::empty(slabs[i].input.shape(), input.options());
    const auto [none, weight_term, bias_term] = gradients_of(*this, slabs[i], grad_output, x, weight, of_weight);
    if (!interior) {
      sums = {none, weight_term, bias_term};
    } else {
      std::get<1>(sums).add_(weight_term);
    }
  }
  if (!interior) later.trace("interior");
  leaving.wait();
  for (size_t i = 0; i < left.size(); ++i) std::get<0>(sums) = leaving.scattered(left[i], std::get<0>(sums));
  if (interior) edges.trace("edges");
  return sums;
}

}  // namespace moonhalo
