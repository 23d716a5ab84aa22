// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/conv_local.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/exchange/halo_exchange.h"

namespace moonhalo {

std::vector<int64_t> LocalConv::padding_with(const std::vector<int64_t>& of_cut_dims) const {
  std::vector<int64_t> result = padding;
  for (size_t i = 0; i < result.size(); ++i) {
    if (of_cut_dims[i] >= 0) result[i] = of_cut_dims[i];
  }
  return result;
}

// The result for an empty share of a contraction.
at::Tensor LocalConv::bias_alone(const at::Tensor& input, const std::optional<at::Tensor>& bias) const {
  at::Tensor out = at::zeros(output_shape, input.options());
  std::vector<int64_t> along_channels(output_shape.size(), 1);
  along_channels[1] = output_shape[1];
  return bias && bias->defined() ? out.add_(bias->view(along_channels)) : out;
}

at::Tensor LocalConv::forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                              const HaloCachePtr& cache) const {
  if (strips) return forward_in_strips(input, weight, bias, cache);
  if (spread) return forward_in_parts(input, weight, bias, cache);
  const at::Tensor x = halo ? gather(*halo, input, 0, cache) : input;
  if (c10::multiply_integers(output_shape) == 0) return at::empty(output_shape, x.options());
  if (x.numel() == 0 || weight.numel() == 0) return bias_alone(x, bias);
  at::Tensor out = convolve(x, weight, bias, padding);
  for (size_t i = 0; i < stride.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    if (out.size(dim) != output_shape[dim]) out = out.narrow(dim, crop_before[i], output_shape[dim]);
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
                                         const at::Tensor& weight, std::array<bool, 3> mask,
                                         const HaloCachePtr& cache) const {
  if (strips) return backward_in_strips(grad_output, input, weight, mask, cache);
  if (halo && mask[0] && mask[1]) return backward_in_turns(grad_output, input, weight, mask, cache);
  at::Tensor x = input;
  if (halo && mask[1]) x = gather(*halo, input, 0, cache);
  if (halo && !mask[1]) x = at::empty(halo->needed_shape(), input.options());  // only its shape matters
  Gradients gradients = convolve_backward(uncrop(grad_output), x, weight, padding, mask);
  if (mask[0] && halo) std::get<0>(gradients) = scatter_add(*halo, std::get<0>(gradients));
  return gradients;
}

// The input's gradient needs no borrowed row, and goes home while that of the weight is computed.
LocalConv::Gradients LocalConv::backward_in_turns(const at::Tensor& grad_output, const at::Tensor& input,
                                                  const at::Tensor& weight, std::array<bool, 3> mask,
                                                  const HaloCachePtr& cache) const {
  HaloExchange arriving, leaving;
  arriving.add_gather(*halo, input, 0, cache);
  arriving.start();
  const at::Tensor grad = uncrop(grad_output);
  const at::Tensor shape_alone = at::empty(halo->needed_shape(), input.options());
  const auto of_input = convolve_backward(grad, shape_alone, weight, padding, {true, false, false});
  arriving.trace("interior");
  arriving.wait();
  leaving.add_scatter_add(*halo, std::get<0>(of_input));
  leaving.start();
  Gradients gradients = convolve_backward(grad, arriving.gathered(0), weight, padding, {false, true, mask[2]});
  leaving.trace("interior");
  leaving.wait();
  std::get<0>(gradients) = leaving.scattered(0);
  return gradients;
}

at::Tensor LocalConv::forward_in_strips(const at::Tensor& input, const at::Tensor& weight,
                                        const std::optional<at::Tensor>& bias, const HaloCachePtr& cache) const {
  HaloExchange edges;
  for (const ConvStrips::Strip& strip : strips->strips) edges.add_gather(*strip.halo, input, 0, cache);
  edges.start();
  const bool nothing = c10::multiply_integers(output_shape) == 0 || input.numel() == 0 || weight.numel() == 0;
  at::Tensor out = nothing ? bias_alone(input, bias) : convolve(input, weight, bias, padding_with(strips->padding));
  TORCH_INTERNAL_ASSERT(out.sizes() == at::IntArrayRef(output_shape), "a local convolution made ",
                        out.sizes(), " instead of ", at::IntArrayRef(output_shape));
  edges.trace("interior");
  edges.wait();
  for (size_t i = 0; i < strips->strips.size(); ++i) {
    const ConvStrips::Strip& strip = strips->strips[i];
    if (strip.rows == 0 || nothing) continue;
    const at::Tensor edge = convolve(strip.fill(edges.gathered(i)), weight, std::nullopt, padding_with(strip.padding));
    out.narrow(strip.dim, strip.first_output, strip.outputs).add_(edge);
  }
  edges.trace("edges");
  return out;
}

at::Tensor LocalConv::forward_in_parts(const at::Tensor& input, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias, const HaloCachePtr& cache) const {
  HaloExchange edges;
  for (const BorrowedBox& box : spread->borrowed) edges.add_gather(*box.map, input, 0, cache);
  edges.start();
  const bool nothing = c10::multiply_integers(output_shape) == 0 || weight.numel() == 0;
  // What a box gives, and the outputs of the block that it gives to.
  const auto give = [&](const ConvSpread::Part& part, const at::Tensor& x, const std::optional<at::Tensor>& added) {
    at::Tensor rows = convolve(x, weight, added, padding_with(part.padding));
    for (size_t i = 0; i < stride.size(); ++i) {
      const auto dim = static_cast<int64_t>(i) + 2;
      if (rows.size(dim) != part.count[i]) rows = rows.narrow(dim, part.crop[i], part.count[i]);
    }
    return rows;
  };
  const auto place = [&](const ConvSpread::Part& part, at::Tensor block) {
    for (size_t i = 0; i < stride.size(); ++i)
      block = block.narrow(static_cast<int64_t>(i) + 2, part.first[i], part.count[i]);
    return block;
  };
  at::Tensor out;
  const ConvSpread::Part& owned = spread->owned;
  if (!nothing && owned.gives && input.numel() > 0 &&
      std::equal(owned.count.begin(), owned.count.end(), output_shape.begin() + 2)) {
    out = give(owned, input, bias);
  } else {
    out = bias_alone(input, bias);
    if (!nothing && owned.gives && input.numel() > 0) place(owned, out).add_(give(owned, input, std::nullopt));
  }
  edges.trace("interior");
  edges.wait();
  for (size_t i = 0; i < spread->parts.size(); ++i) {
    const ConvSpread::Part& part = spread->parts[i];
    const at::Tensor rows = edges.gathered(i);
    if (nothing || !part.gives || rows.numel() == 0) continue;
    place(part, out).add_(give(part, rows, std::nullopt));
  }
  edges.trace("edges");
  return out;
}

// The gradients of borrowed rows need the output's gradient alone: they go home together with the
// rows that the weight's gradient needs, while the owned rows are worked on.
LocalConv::Gradients LocalConv::backward_in_strips(const at::Tensor& grad_output, const at::Tensor& input,
                                                   const at::Tensor& weight, std::array<bool, 3> mask,
                                                   const HaloCachePtr& cache) const {
  HaloExchange edges;
  const auto works = [&](const ConvStrips::Strip& strip) { return strip.rows > 0 && grad_output.numel() > 0; };
  const auto strip_gradients = [&](const ConvStrips::Strip& strip, const at::Tensor& filled, bool of_input) {
    return convolve_backward(grad_output.narrow(strip.dim, strip.first_output, strip.outputs), filled, weight,
                             padding_with(strip.padding), {of_input, !of_input, false});
  };
  const size_t count = strips->strips.size();
  std::vector<size_t> arriving(count), leaving(count);
  for (size_t i = 0; i < count; ++i) {
    const ConvStrips::Strip& strip = strips->strips[i];
    if (mask[1]) arriving[i] = edges.add_gather(*strip.halo, input, 0, cache);
    if (!mask[0]) continue;
    at::Tensor back;
    if (works(strip)) {
      std::vector<int64_t> shape = strip.halo->needed_shape();
      shape[strip.dim] = strip.rows;
      // Only the shape of the strip matters.
      back = strip.gradient(std::get<0>(strip_gradients(strip, at::empty(shape, input.options()), /*of_input=*/true)));
    } else {
      back = at::zeros(strip.halo->needed_shape(), input.options());
    }
    leaving[i] = edges.add_scatter_add(*strip.halo, back);
  }
  edges.start();
  Gradients gradients = convolve_backward(grad_output, input, weight, padding_with(strips->padding), mask);
  edges.trace("interior");
  edges.wait();
  for (size_t i = 0; i < count; ++i) {
    const ConvStrips::Strip& strip = strips->strips[i];
    if (mask[1] && works(strip)) {
      const auto of_strip = strip_gradients(strip, strip.fill(edges.gathered(arriving[i])), false);
      std::get<1>(gradients).add_(std::get<1>(of_strip));
    }
    if (mask[0]) edges.scattered(leaving[i], std::get<0>(gradients));
  }
  edges.trace("edges");
  return gradients;
}

}  // namespace moonhalo
