// SPDX-License-Identifier: Apache-2.0
// conv_tbc, a convolution of sequences [time, batch, channels]: time and the channels that are summed over are
// whole, batch and the channels that come out stay cut. Its derivative is a composite that writes into views; with a
// ShardTensor it is intercepted above autograd and made that of a convolution.
#include <ATen/ATen.h>
#include <ATen/ops/conv_tbc_backward_native.h>

#include <array>
#include <tuple>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/support/above_autograd.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_conv_tbc(const OpCall& call) {
  const auto &x = call.spec("self")->global_shape(), &w = call.spec("weight")->global_shape(),
             &b = call.spec("bias")->global_shape();
  const int64_t padding = call.integer("pad");
  TORCH_CHECK_VALUE(
      x.size() == 3 && w.size() == 3 && b.size() == 1 && x[2] == w[1] && b[0] == w[2] && padding >= 0 &&
          x[0] + 2 * padding >= w[0],
      "conv_tbc: an input of shape ", shape_string(x), ", a weight of ", shape_string(w), " and a bias of ",
      shape_string(b), " do not fit\n  have  ", call.describe(),
      "\n  fix   give [time, batch, in], [kernel, in, out] and [out], with a kernel no longer than the padded time");
  Axes axes{.kinds = {AxisKind::kKeep, AxisKind::kKeep}};  // batch, output channels
  axes.inputs = {{-1, 0, -1}, {-1, -1, 1}, {1}};
  axes.outputs = {{-1, 0, 1}};
  axes.output_shapes = {{x[0] + 2 * padding - w[0] + 1, x[1], w[2]}};
  return solve(call, axes);
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Gradients backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                   int64_t pad) {
  if (!is_shard_tensor(grad) && !is_shard_tensor(input) && !is_shard_tensor(weight)) {
    return at::native::conv_tbc_backward(grad, input, weight, bias, pad);
  }
  auto [x, w, b] =
      at::convolution_backward(grad.permute({1, 2, 0}), input.permute({1, 2, 0}), weight.permute({2, 1, 0}),
                               bias.sizes(), 1, pad, 1, false, 0, 1, std::array<bool, 3>{true, true, true});
  return {x.permute({2, 0, 1}), w.permute({2, 1, 0}), b};
}

void intercept(torch::Library& library) { library.impl("conv_tbc_backward", &backward); }

const InterceptAboveAutograd interception(&intercept);

constexpr auto* kConvTbcSupports = "any cut of batch and output channels; others are gathered";

const Register conv_tbc_rules{
    {.op = "aten::conv_tbc", .plan = plan_conv_tbc, .supports = kConvTbcSupports},
};

}  // namespace
}  // namespace moonhalo
