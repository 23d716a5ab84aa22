// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/conv.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/box_text.h"
#include "moonhalo/engine/exchange/halo_exchange.h"

namespace moonhalo {

// The sum of no terms.
at::Tensor ConvPlan::bias_alone(const at::Tensor& input, const std::optional<at::Tensor>& bias) const {
  const std::vector<int64_t> shape = block.shape();
  at::Tensor out = at::zeros(shape, input.options());
  std::vector<int64_t> along_channels(shape.size(), 1);
  along_channels[1] = shape[1];
  return bias && bias->defined() ? out.add_(bias->view(along_channels)) : out;
}

at::Tensor ConvPlan::result_of(const Call& call, const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias) const {
  at::Tensor out = convolve(x, weight, bias, call.padding);
  for (int64_t d = 0; d < out.dim(); ++d) {
    const int64_t required = call.output[d].size();
    if (transposed && d >= 2 && out.size(d) != required) out = out.narrow(d, call.crop[d - 2], required);
    TORCH_INTERNAL_ASSERT(out.size(d) == required, "a local convolution made ", out.sizes(), " instead of ",
                          box_string(call.output));
  }
  return out;
}

ConvPlan::Gradients ConvPlan::gradients_of(const Call& call, const at::Tensor& grad_output, const at::Tensor& x,
                                           const at::Tensor& weight, std::array<bool, 3> mask) const {
  at::Tensor grad = call.output == block ? grad_output : part({grad_output, block}, call.output);
  std::vector<int64_t> full = grad.sizes().vec();
  std::copy(call.uncropped.begin(), call.uncropped.end(), full.begin() + 2);
  if (grad.sizes() != at::IntArrayRef(full) && grad.numel() > 0) {
    const at::Tensor whole = at::zeros(full, grad.options());
    at::Tensor inner = whole;
    for (int64_t d = 2; d < grad.dim(); ++d) inner = inner.narrow(d, call.crop[d - 2], grad.size(d));
    inner.copy_(grad);
    grad = whole;
  }
  return convolve_backward(grad, x, weight, call.padding, mask);
}

at::Tensor ConvPlan::forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const HaloSource& source) const {
  HaloExchange edges;
  for (const auto& map : maps) edges.add_gather(*map, input, 0, source);
  edges.start();
  at::Tensor out;
  const auto add = [&](const Call& call, const at::Tensor& x) {
    if (x.numel() == 0 || weight.numel() == 0) return;
    if (!out.defined() && call.output == block) {
      out = result_of(call, x, weight, bias);
    } else {
      if (!out.defined()) out = bias_alone(input, bias);
      part({out, block}, call.output).add_(result_of(call, x, weight, std::nullopt));
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
  return out.defined() ? out : bias_alone(input, bias);
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
      const Gradients of_slab = gradients_of(slabs[i], grad_output, shape_alone, weight, {true, false, false});
      of_halo = assemble(halo_rows[i], {{std::get<0>(of_slab), slabs[i].input}}, 0);
    }
    left.push_back(leaving.add_scatter_add(*maps[i], of_halo));
  }
  Gradients sums;
  if (interior) {
    edges.start();
    sums = gradients_of(*interior, grad_output, input, weight, mask);
  }
  edges.trace("interior");
  edges.wait();
  if (!interior) later.start();
  const std::array<bool, 3> of_weight{false, mask[1], mask[2] && !interior};
  for (size_t i = 0; (of_weight[1] || of_weight[2]) && i < slabs.size(); ++i) {
    if (idle(slabs[i])) continue;
    const at::Tensor x = mask[1] ? assemble(slabs[i].input, {{edges.gathered(i), halo_rows[i]}}, 0)
                                 : at::empty(slabs[i].input.shape(), input.options());
    const auto [none, weight_term, bias_term] = gradients_of(slabs[i], grad_output, x, weight, of_weight);
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
