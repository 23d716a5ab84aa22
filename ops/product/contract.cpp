// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/product/contract.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

using Ints = std::vector<int64_t>;

at::Tensor call_operator(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef l, at::IntArrayRef r,
                         at::IntArrayRef o) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::contract", "").typed<Signature>();
  return op.call(left, right, l, r, o);
}

// On plain tensors. The equation's letters are the axes.
at::Tensor contract_plain(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef l, at::IntArrayRef r,
                          at::IntArrayRef o) {
  const size_t n = r.size();
  const bool linear = n == 2 && l.size() >= 2 && o.size() == l.size() && l.back() == r[1] && o.back() == r[0] &&
                      std::equal(l.begin(), l.end() - 1, o.begin());
  if (linear) return at::linear(left, right);
  std::string equation;
  const auto append = [&](at::IntArrayRef axes) {
    for (const int64_t axis : axes) equation += static_cast<char>(axis < 26 ? 'a' + axis : 'A' + axis - 26);
  };
  append(l);
  equation += ',';
  append(r);
  equation += "->";
  append(o);
  return at::einsum(equation, {left, right});
}

std::optional<Plan> plan_contract(const OpCall& call) {
  const Ints l = call.integers("left_axes"), r = call.integers("right_axes"), o = call.integers("out_axes");
  const auto& left = call.spec("left")->global_shape();
  const auto& right = call.spec("right")->global_shape();
  TORCH_INTERNAL_ASSERT(l.size() == left.size() && r.size() == right.size());
  Ints names;
  Axes axes;
  const auto numbered = [&](const Ints& list) {
    std::vector<int> result;
    for (const int64_t axis : list) {
      if (!contains(names, axis)) {
        names.push_back(axis);
        axes.kinds.push_back(contains(o, axis) ? AxisKind::kKeep : AxisKind::kReduce);
      }
      result.push_back(static_cast<int>(std::find(names.begin(), names.end(), axis) - names.begin()));
    }
    return result;
  };
  axes.inputs = {numbered(l), numbered(r)};
  axes.outputs = {numbered(o)};
  axes.linear = {PartialUse::kOneFactor, PartialUse::kOneFactor};
  Ints shape;
  for (const int64_t axis : o) {
    const auto in_left = std::find(l.begin(), l.end(), axis);
    shape.push_back(in_left != l.end() ? left[in_left - l.begin()]
                                       : right[std::find(r.begin(), r.end(), axis) - r.begin()]);
  }
  axes.output_shapes = {std::move(shape)};
  Plan plan = solve(call, axes);
  plan.run = [l, r, o, at_left = call.arg("left"), at_right = call.arg("right")](LocalCall& call) {
    at::Tensor out = contract_plain(call.tensor(at_left), call.tensor(at_right), l, r, o);
    call.give(std::move(out));
  };
  return plan;
}

struct Operands {
  at::Tensor left, right;
};

// The gradient of either operand is a contraction of the other with the gradient of the result. What is saved for that
// is `whole`, the operands with their tangents: the gradient has a tangent too.
struct Contract : torch::autograd::Function<Contract> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& left, const at::Tensor& right,
                            const Operands& whole, Ints l, Ints r, Ints o) {
    context->save_for_backward({whole.left, whole.right});
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor out = call_operator(left, right, l, r, o);
    context->saved_data["left"] = std::move(l);
    context->saved_data["right"] = std::move(r);
    context->saved_data["out"] = std::move(o);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const Ints l = context->saved_data["left"].toIntVector(), r = context->saved_data["right"].toIntVector(),
               o = context->saved_data["out"].toIntVector();
    at::Tensor left, right;
    // A product without a sum takes operands of two types; a gradient has the type of its own.
    const auto gradient = [&](int own, const Ints& other_axes, const Ints& own_axes) {
      const at::Tensor& other = saved[1 - own];
      const at::ScalarType wide = at::result_type(grads[0], other), type = saved[own].scalar_type();
      const at::Tensor whole = contract(grads[0].to(wide), other.conj().to(wide), o, other_axes, own_axes);
      return (whole.is_complex() && !c10::isComplexType(type) ? at::real(whole) : whole).to(type);
    };
    if (grads[0].defined() && context->needs_input_grad(0)) left = gradient(0, r, l);
    if (grads[0].defined() && context->needs_input_grad(1)) right = gradient(1, l, r);
    return {left, right, {}, {}, {}, {}};
  }
};

at::Tensor contract_autograd(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef l, at::IntArrayRef r,
                             at::IntArrayRef o) {
  const auto recorded = [](const at::Tensor& tensor) { return c10::GradMode::is_enabled() && tensor.requires_grad(); };
  const at::Tensor &left_tangent = left._fw_grad(/*level=*/0), &right_tangent = right._fw_grad(0);
  const bool dual = left_tangent.defined() || right_tangent.defined();
  if (!dual && !recorded(left) && !recorded(right)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_operator(left, right, l, r, o);
  }
  // The function below runs without recording, so the boundary is guarded here.
  for (const at::Tensor* tensor : {&left, &right}) {
    if (recorded(*tensor)) install_gradient_hook(*tensor);
  }
  const at::Tensor a = left_tangent.defined() ? left._fw_primal(/*level=*/0) : left;
  const at::Tensor b = right_tangent.defined() ? right._fw_primal(/*level=*/0) : right;
  const at::Tensor out = Contract::apply(a, b, Operands{left, right}, l.vec(), r.vec(), o.vec());
  if (!dual) return out;
  at::Tensor tangent;
  if (left_tangent.defined()) tangent = call_operator(left_tangent, b, l, r, o);
  if (right_tangent.defined()) {
    const at::Tensor addend = call_operator(a, right_tangent, l, r, o);
    tangent = tangent.defined() ? tangent + addend : addend;
  }
  out._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  return out;
}

const Register contract_rules{
    {.op = "moonhalo::contract",
     .plan = plan_contract,
     .source = "PyTorch einsum of two operands",
     .supports = "any cut; a cut contraction leaves sums, a Partial operand is passed on"},
};

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  library.def(
      "contract(Tensor left, Tensor right, int[] left_axes, int[] right_axes, int[] out_axes) -> "
      "Tensor");
  library.impl("contract", c10::DispatchKey::CPU, &contract_plain);
  library.impl("contract", c10::DispatchKey::CUDA, &contract_plain);
  library.impl("contract", c10::DispatchKey::Autograd, &contract_autograd);
}

}  // namespace

at::Tensor contract(const at::Tensor& left, const at::Tensor& right, Ints left_axes, Ints right_axes, Ints out_axes) {
  const auto extent = [](const at::Tensor& tensor, const Ints& axes, int64_t axis) {
    return tensor.size(std::find(axes.begin(), axes.end(), axis) - axes.begin());
  };
  TORCH_INTERNAL_ASSERT(left.dim() == static_cast<int64_t>(left_axes.size()) &&
                        right.dim() == static_cast<int64_t>(right_axes.size()));
  for (size_t d = 0; d < left_axes.size(); ++d) {
    const int64_t axis = left_axes[d];
    TORCH_CHECK_VALUE(
        !contains(right_axes, axis) || extent(right, right_axes, axis) == left.size(d),
        "contract: extents of a shared dim differ, ", left.size(d), " and ",
        contains(right_axes, axis) ? extent(right, right_axes, axis) : 0,
        "\n  have  tensors of shapes ", shape_string(left.sizes()), " and ",
        shape_string(right.sizes()));
  }
  return call_operator(left, right, left_axes, right_axes, out_axes);
}

at::Tensor cast_as_factor(const at::Tensor& tensor) {
  namespace autocast = at::autocast;
  const c10::DeviceType device = tensor.device().type();
  if (!autocast::is_autocast_available(device) || !autocast::is_autocast_enabled(device)) return tensor;
  return autocast::cached_cast(autocast::get_autocast_dtype(device), tensor, device);
}

}  // namespace moonhalo
