// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_local.h"

#include <ATen/ATen.h>

namespace moonhalo {

at::Tensor LocalConv::forward(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias) const {
  const at::Tensor x = halo ? halo->apply(input) : input;
  if (c10::multiply_integers(output_shape) == 0) return at::empty(output_shape, x.options());
  const bool has_bias = bias && bias->defined();
  if (x.numel() == 0 || weight.numel() == 0) {  // an empty share of a contraction
    at::Tensor out = at::zeros(output_shape, x.options());
    std::vector<int64_t> along_channels(output_shape.size(), 1);
    along_channels[1] = output_shape[1];
    return has_bias ? out.add_(bias->view(along_channels)) : out;
  }
  at::Tensor out = at::convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  for (size_t i = 0; i < stride.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    if (out.size(dim) != output_shape[dim]) out = out.narrow(dim, crop_before[i], output_shape[dim]);
  }
  TORCH_INTERNAL_ASSERT(out.sizes() == at::IntArrayRef(output_shape), "a local convolution made ", out.sizes(),
                        " instead of ", at::IntArrayRef(output_shape));
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> LocalConv::backward(const at::Tensor& grad_output,
                                                                   const at::Tensor& input, const at::Tensor& weight,
                                                                   std::array<bool, 3> mask) const {
  at::Tensor x = input;
  if (halo && mask[1]) x = halo->apply(input);
  if (halo && !mask[1]) x = at::empty(halo->needed_shape(), input.options());  // only its shape matters
  at::Tensor grad_input, grad_weight, grad_bias;
  if (grad_output.numel() == 0 || x.numel() == 0 || weight.numel() == 0) {
    if (mask[0]) grad_input = at::zeros(x.sizes(), x.options());
    if (mask[1]) grad_weight = at::zeros(weight.sizes(), weight.options());
    if (mask[2]) {
      std::vector<int64_t> dims{0};
      for (int64_t d = 2; d < grad_output.dim(); ++d) dims.push_back(d);
      grad_bias = grad_output.sum(dims);
    }
  } else {
    at::Tensor grad = grad_output;
    std::vector<int64_t> full = output_shape;
    for (size_t i = 0; i < stride.size(); ++i) full[i + 2] = uncropped[i];
    if (full != output_shape) {
      grad = at::zeros(full, grad_output.options());
      at::Tensor block = grad;
      for (size_t i = 0; i < stride.size(); ++i) {
        const auto dim = static_cast<int64_t>(i) + 2;
        block = block.narrow(dim, crop_before[i], output_shape[dim]);
      }
      block.copy_(grad_output);
    }
    const std::vector<int64_t> bias_sizes{grad_output.size(1)};
    std::tie(grad_input, grad_weight, grad_bias) =
        at::convolution_backward(grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
                                 mask);
  }
  if (mask[0] && halo) grad_input = halo->adjoint(grad_input);
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

}  // namespace moonhalo
