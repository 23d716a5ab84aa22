// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {
namespace {

// Elementwise operators that PyTorch does not tag as pointwise (mostly in-place forms and
// derivatives of activations).
std::optional<Plan> plan(const OpCall& call) { return find_rule({"moonhalo::pointwise", ""})->plan(call); }

// Its second result is a buffer of the input's shape on the CPU only.
std::optional<Plan> plan_log_sigmoid(const OpCall& call) {
  if (call.mesh()->device_type() != "cpu") return std::nullopt;
  return plan(call);
}

constexpr auto* kSource = "broadcasting as in PyTorch";
constexpr auto* kSupports = "any cut, broadcasting, in place";

constexpr Rule rule(std::string_view op) { return {.op = op, .plan = plan, .source = kSource, .supports = kSupports}; }

const Register rules{
    rule("aten::__ilshift__"),
    rule("aten::__irshift__"),
    rule("aten::_conj_physical"),
    rule("aten::_prelu_kernel"),
    rule("aten::_prelu_kernel_backward"),
    rule("aten::_standard_gamma_grad"),
    rule("aten::abs_"),
    rule("aten::celu_"),
    rule("aten::complex"),
    rule("aten::copy"),
    rule("aten::copysign_"),
    rule("aten::elu_"),
    rule("aten::elu_backward"),
    rule("aten::eq_"),
    rule("aten::floor_divide"),
    rule("aten::floor_divide_"),
    rule("aten::gcd_"),
    rule("aten::ge_"),
    rule("aten::gelu_"),
    rule("aten::gt_"),
    rule("aten::hardshrink_backward"),
    rule("aten::hardsigmoid_"),
    rule("aten::hardsigmoid_backward"),
    rule("aten::hardswish"),
    rule("aten::hardswish_"),
    rule("aten::hardswish_backward"),
    rule("aten::hardtanh_"),
    rule("aten::hardtanh_backward"),
    rule("aten::heaviside_"),
    rule("aten::lcm_"),
    rule("aten::le_"),
    rule("aten::leaky_relu"),
    rule("aten::leaky_relu_"),
    rule("aten::leaky_relu_backward"),
    {.op = "aten::log_sigmoid_forward", .plan = plan_log_sigmoid, .source = kSource, .supports = kSupports},
    rule("aten::log_sigmoid_backward"),
    rule("aten::lt_"),
    rule("aten::masked_fill.Tensor"),
    rule("aten::masked_fill_"),
    rule("aten::mish_"),
    rule("aten::mish_backward"),
    rule("aten::ne_"),
    rule("aten::polar"),
    rule("aten::rrelu_with_noise_backward"),
    rule("aten::rsub.Tensor"),
    rule("aten::softplus_backward"),
    rule("aten::softshrink_backward"),
    rule("aten::threshold_"),
    rule("aten::xlogy_.Scalar_Other"),
};

}  // namespace
}  // namespace moonhalo
