// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "moonhalo/engine/dispatch/pointwise_rule.h"

namespace moonhalo {
namespace {

// Elementwise operators that PyTorch does not tag as pointwise (mostly in-place forms and
// derivatives of activations).
std::optional<Plan> plan(const OpCall& call) { return pointwise_rule()->plan(call); }

// Its second result is a buffer that only the CPU's derivative reads; elsewhere it is empty, and the output stands for
// it, since shapes of results are those of the rule.
std::optional<Plan> plan_log_sigmoid(const OpCall& call) {
  std::optional<Plan> made = plan(call);
  if (call.mesh()->device_type() == "cpu" || !made) return made;
  made->run = [](LocalCall& local) {
    local.run();
    const at::Tensor output = local.result(0), buffer = local.result(1);
    local.give(output, buffer.sizes() == output.sizes() ? buffer : output.detach());
  };
  return made;
}

constexpr auto* kElementwiseSource = "broadcasting as in PyTorch";
constexpr auto* kElementwiseSupports = "any cut, broadcasting, in place";

const Register elementwise_rules{
    {.op = {"aten::__ilshift__",
            "aten::__irshift__",
            "aten::_conj_physical",
            "aten::_prelu_kernel",
            "aten::_prelu_kernel_backward",
            "aten::_standard_gamma_grad",
            "aten::abs_",
            "aten::celu_",
            "aten::complex",
            "aten::copy",
            "aten::copysign_",
            "aten::elu_",
            "aten::elu_backward",
            "aten::eq_",
            "aten::floor_divide",
            "aten::floor_divide_",
            "aten::gcd_",
            "aten::ge_",
            "aten::gelu_",
            "aten::gt_",
            "aten::hardshrink_backward",
            "aten::hardsigmoid_",
            "aten::hardsigmoid_backward",
            "aten::hardswish",
            "aten::hardswish_",
            "aten::hardswish_backward",
            "aten::hardtanh_",
            "aten::hardtanh_backward",
            "aten::heaviside_",
            "aten::lcm_",
            "aten::le_",
            "aten::leaky_relu",
            "aten::leaky_relu_",
            "aten::leaky_relu_backward",
            "aten::log_sigmoid_backward",
            "aten::lt_",
            "aten::masked_fill.Tensor",
            "aten::masked_fill_",
            "aten::mish_",
            "aten::mish_backward",
            "aten::ne_",
            "aten::polar",
            "aten::rrelu_with_noise_backward",
            "aten::rsub.Tensor",
            "aten::softplus_backward",
            "aten::softshrink_backward",
            "aten::threshold_",
            "aten::xlogy_.Scalar_Other"},
     .plan = plan,
     .source = kElementwiseSource,
     .supports = kElementwiseSupports},
    {.op = "aten::log_sigmoid_forward",
     .plan = plan_log_sigmoid,
     .source = kElementwiseSource,
     .supports = kElementwiseSupports},
};

}  // namespace
}  // namespace moonhalo
