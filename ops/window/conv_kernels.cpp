// SPDX-License-Identifier: Apache-2.0
// LibTorch's own convolution of one block, called so that it is right and quick on the shapes that blocks and strips
// of their edges have.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/ops/window/conv.h"

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

}  // namespace

at::Tensor ConvPlan::convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                              at::IntArrayRef local_padding) const {
  const int64_t window = dilation.back() * (weight.size(-1) - 1) + 1;
  const int64_t columns =
      transposed ? x.size(-1) : (x.size(-1) + 2 * local_padding.back() - window) / stride.back() + 1;
  if (needs_float(x, columns, stride)) {
    const auto wide_bias = bias && bias->defined() ? std::optional(bias->to(at::kFloat)) : std::nullopt;
    return at::convolution(x.to(at::kFloat), weight.to(at::kFloat), wide_bias, stride, local_padding, dilation,
                           transposed, output_padding, local_groups)
        .to(x.scalar_type());
  }
  if (prefers_transposed_layout(x, local_groups)) {
    return turned(at::convolution(turned(x), turned(weight), bias, turned(stride), turned(local_padding),
                                  turned(dilation), transposed, turned(output_padding), local_groups));
  }
  return at::convolution(x, weight, bias, stride, local_padding, dilation, transposed, output_padding, local_groups);
}

ConvPlan::Gradients ConvPlan::convolve_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                                at::IntArrayRef local_padding, std::array<bool, 3> mask) const {
  if (grad.numel() == 0 || x.numel() == 0 || weight.numel() == 0) return no_gradients(grad, x, weight, mask);
  const std::vector<int64_t> bias_sizes{grad.size(1)};
  if (needs_float(x, transposed ? x.size(-1) : grad.size(-1), stride)) {
    const auto type = x.scalar_type();
    const auto narrow = [&](const at::Tensor& wide) { return wide.defined() ? wide.to(type) : wide; };
    const auto [of_input, of_weight, of_bias] =
        at::convolution_backward(grad.to(at::kFloat), x.to(at::kFloat), weight.to(at::kFloat), bias_sizes, stride,
                                 local_padding, dilation, transposed, output_padding, local_groups, mask);
    return {narrow(of_input), narrow(of_weight), narrow(of_bias)};
  }
  if (prefers_transposed_layout(x, local_groups)) {
    const auto [of_input, of_weight, of_bias] = at::convolution_backward(
        turned(grad), turned(x), turned(weight), bias_sizes, turned(stride), turned(local_padding), turned(dilation),
        transposed, turned(output_padding), local_groups, mask);
    return {turned(of_input), turned(of_weight), of_bias};
  }
  return at::convolution_backward(grad, x, weight, bias_sizes, stride, local_padding, dilation, transposed,
                                  output_padding, local_groups, mask);
}

}  // namespace moonhalo
