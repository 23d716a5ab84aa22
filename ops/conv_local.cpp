// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_local.h"

#include <ATen/ATen.h>

namespace moonhalo {

at::Tensor LocalConv::convolve(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               at::IntArrayRef local_padding) const {
  return at::convolution(x, weight, bias, stride, local_padding, dilation, transposed,
                         output_padding, groups);
}

LocalConv::Gradients LocalConv::convolve_backward(const at::Tensor& grad, const at::Tensor& x,
                                                  const at::Tensor& weight,
                                                  at::IntArrayRef local_padding,
                                                  std::array<bool, 3> mask) const {
  if (grad.numel() > 0 && x.numel() > 0 && weight.numel() > 0) {
    const std::vector<int64_t> bias_sizes{grad.size(1)};
    return at::convolution_backward(grad, x, weight, bias_sizes, stride, local_padding, dilation,
                                    transposed, output_padding, groups, mask);
  }
  Gradients none;
  if (mask[0]) std::get<0>(none) = at::zeros(x.sizes(), x.options());
  if (mask[1]) std::get<1>(none) = at::zeros(weight.sizes(), weight.options());
  if (mask[2]) {
    std::vector<int64_t> dims{0};
    for (int64_t d = 2; d < grad.dim(); ++d) dims.push_back(d);
    std::get<2>(none) = grad.sum(dims);
  }
  return none;
}

std::vector<int64_t> LocalConv::padding_along(int64_t dim, int64_t value) const {
  std::vector<int64_t> result = padding;
  result[dim - 2] = value;
  return result;
}

// The result for an empty share of a contraction.
at::Tensor LocalConv::bias_alone(const at::Tensor& input,
                                 const std::optional<at::Tensor>& bias) const {
  at::Tensor out = at::zeros(output_shape, input.options());
  std::vector<int64_t> along_channels(output_shape.size(), 1);
  along_channels[1] = output_shape[1];
  return bias && bias->defined() ? out.add_(bias->view(along_channels)) : out;
}

at::Tensor LocalConv::forward(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias) const {
  if (strips) return forward_in_strips(input, weight, bias);
  const at::Tensor x = halo ? halo->apply(input) : input;
  if (c10::multiply_integers(output_shape) == 0) return at::empty(output_shape, x.options());
  if (x.numel() == 0 || weight.numel() == 0) return bias_alone(x, bias);
  at::Tensor out = convolve(x, weight, bias, padding);
  for (size_t i = 0; i < stride.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    if (out.size(dim) != output_shape[dim])
      out = out.narrow(dim, crop_before[i], output_shape[dim]);
  }
  TORCH_INTERNAL_ASSERT(out.sizes() == at::IntArrayRef(output_shape), "a local convolution made ",
                        out.sizes(), " instead of ", at::IntArrayRef(output_shape));
  return out;
}

// The gradient of the kernel's result from that of the block cropped out of it.
at::Tensor LocalConv::uncrop(const at::Tensor& grad_output) const {
  std::vector<int64_t> full = output_shape;
  for (size_t i = 0; i < stride.size(); ++i) full[i + 2] = uncropped[i];
  if (full == output_shape || grad_output.numel() == 0) return grad_output;
  at::Tensor grad = at::zeros(full, grad_output.options()), block = grad;
  for (size_t i = 0; i < stride.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    block = block.narrow(dim, crop_before[i], output_shape[dim]);
  }
  block.copy_(grad_output);
  return grad;
}

LocalConv::Gradients LocalConv::backward(const at::Tensor& grad_output, const at::Tensor& input,
                                         const at::Tensor& weight, std::array<bool, 3> mask) const {
  if (strips) return backward_in_strips(grad_output, input, weight, mask);
  at::Tensor x = input;
  if (halo && mask[1]) x = halo->apply(input);
  if (halo && !mask[1])
    x = at::empty(halo->needed_shape(), input.options());  // only its shape matters
  Gradients gradients = convolve_backward(uncrop(grad_output), x, weight, padding, mask);
  if (mask[0] && halo) std::get<0>(gradients) = halo->adjoint(std::get<0>(gradients));
  return gradients;
}

at::Tensor LocalConv::forward_in_strips(const at::Tensor& input, const at::Tensor& weight,
                                        const std::optional<at::Tensor>& bias) const {
  const int64_t dim = strips->dim;
  const auto low = strips->strips[0].halo->start(input),
             high = strips->strips[1].halo->start(input);
  const bool nothing =
      c10::multiply_integers(output_shape) == 0 || input.numel() == 0 || weight.numel() == 0;
  at::Tensor out = nothing ? bias_alone(input, bias)
                           : convolve(input, weight, bias, padding_along(dim, strips->padding));
  TORCH_INTERNAL_ASSERT(out.sizes() == at::IntArrayRef(output_shape), "a local convolution made ",
                        out.sizes(), " instead of ", at::IntArrayRef(output_shape));
  const auto add = [&](const ConvStrips::Strip& strip, const at::Tensor& borrowed) {
    if (strip.rows == 0 || nothing) return;
    const at::Tensor edge =
        convolve(strip.fill(borrowed, dim), weight, std::nullopt, padding_along(dim, 0));
    out.narrow(dim, strip.first_output, strip.outputs).add_(edge);
  };
  add(strips->strips[0], low->finish());
  add(strips->strips[1], high->finish());
  return out;
}

LocalConv::Gradients LocalConv::backward_in_strips(const at::Tensor& grad_output,
                                                   const at::Tensor& input,
                                                   const at::Tensor& weight,
                                                   std::array<bool, 3> mask) const {
  const int64_t dim = strips->dim;
  std::array<std::unique_ptr<IntervalMap::Pending>, 2> arriving;
  for (size_t i = 0; i < 2 && mask[1]; ++i) arriving[i] = strips->strips[i].halo->start(input);
  Gradients gradients =
      convolve_backward(grad_output, input, weight, padding_along(dim, strips->padding), mask);
  for (size_t i = 0; i < 2; ++i) {
    const ConvStrips::Strip& strip = strips->strips[i];
    // Without the weight's gradient only the shape of the strip matters.
    at::Tensor borrowed =
        mask[1] ? arriving[i]->finish() : at::empty(strip.halo->needed_shape(), input.options());
    if (!mask[0] && !mask[1]) continue;
    at::Tensor back = at::zeros(strip.halo->needed_shape(), input.options());
    if (strip.rows > 0 && grad_output.numel() > 0) {
      const at::Tensor grad = grad_output.narrow(dim, strip.first_output, strip.outputs);
      auto [grad_strip, grad_weight, none] =
          convolve_backward(grad, strip.fill(borrowed, dim), weight, padding_along(dim, 0),
                            {mask[0], mask[1], false});
      if (mask[1]) std::get<1>(gradients).add_(grad_weight);
      if (mask[0]) back = strip.gradient(grad_strip, dim);
    }
    if (mask[0]) strip.halo->add_adjoint(back, std::get<0>(gradients));
  }
  return gradients;
}

}  // namespace moonhalo
