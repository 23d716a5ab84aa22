// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/product/contract.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
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
using Bias = std::optional<at::Tensor>;

at::Tensor call_operator(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef l, at::IntArrayRef r,
                         at::IntArrayRef o, const Bias& bias) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, const Bias&);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::contract", "").typed<Signature>();
  return op.call(left, right, l, r, o, bias);
}

// True if LibTorch's linear is this contraction: the last axis of the left operand is contracted with the second of
// a matrix.
bool is_linear(at::IntArrayRef l, at::IntArrayRef r, at::IntArrayRef o) {
  return r.size() == 2 && l.size() >= 2 && o.size() == l.size() && l.back() == r[1] && o.back() == r[0] &&
         std::equal(l.begin(), l.end() - 1, o.begin());
}

// True if the last axis of the left operand is contracted with the first of a matrix, as in the gradient of linear's
// input.
bool is_times_matrix(at::IntArrayRef l, at::IntArrayRef r, at::IntArrayRef o) {
  return r.size() == 2 && l.size() >= 2 && o.size() == l.size() && l.back() == r[0] && o.back() == r[1] &&
         std::equal(l.begin(), l.end() - 1, o.begin());
}

// True if all axes but the last of two operands are contracted, in the same order, as in the gradient of linear's
// weight.
bool is_product_of_rows(at::IntArrayRef l, at::IntArrayRef r, at::IntArrayRef o) {
  return l.size() >= 2 && r.size() == l.size() && o.size() == 2 && o[0] == l.back() && o[1] == r.back() &&
         o[0] != o[1] && std::equal(l.begin(), l.end() - 1, r.begin());
}

// On plain tensors. The equation's letters are the axes. Products of matrices need no einsum, which takes longer to
// find out what it does than a small product takes.
at::Tensor contract_plain(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef l, at::IntArrayRef r,
                          at::IntArrayRef o, const Bias& bias) {
  if (is_linear(l, r, o)) return at::linear(left, right, bias);
  TORCH_INTERNAL_ASSERT(!bias);
  if (left.scalar_type() == right.scalar_type()) {
    // As einsum does it, so that the bits are the same: mm sums in an order that depends on the number of rows.
    const auto product = [](const at::Tensor& a, const at::Tensor& b) {
      return at::bmm(a.unsqueeze(0), b.unsqueeze(0)).squeeze(0);
    };
    const auto rows_of = [](const at::Tensor& tensor) { return tensor.flatten(0, -2).contiguous(); };
    if (is_times_matrix(l, r, o))
      return product(rows_of(left), right).unflatten(0, left.sizes().slice(0, l.size() - 1));
    if (is_product_of_rows(l, r, o)) return product(rows_of(left).t(), rows_of(right));
  }
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

// LibTorch's einsum multiplies matrices [shared axes, left axes, right axes] and permutes the product. Without a sum it
// multiplies elements, whose order in memory depends on the operands'.
Ints order_of_product(const Ints& l, const Ints& r, const Ints& o) {
  const bool sums = std::any_of(l.begin(), l.end(), [&](int64_t axis) { return !contains(o, axis); });
  Ints order;
  if (!sums || is_linear(l, r, o)) return order;
  const auto append = [&](bool in_left, bool in_right) {
    for (size_t d = 0; d < o.size(); ++d) {
      if (contains(l, o[d]) == in_left && contains(r, o[d]) == in_right) order.push_back(static_cast<int64_t>(d));
    }
  };
  append(true, true);
  append(true, false);
  append(false, true);
  return order;
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
  const int bias = call.slot("bias");
  if (bias >= 0) {
    axes.inputs.push_back({axes.outputs[0].back()});
    axes.linear.push_back(PartialUse::kResolve);
  }
  Ints shape;
  for (const int64_t axis : o) {
    const auto in_left = std::find(l.begin(), l.end(), axis);
    shape.push_back(in_left != l.end() ? left[in_left - l.begin()]
                                       : right[std::find(r.begin(), r.end(), axis) - r.begin()]);
  }
  axes.output_shapes = {std::move(shape)};
  if (std::find(axes.kinds.begin(), axes.kinds.end(), AxisKind::kReduce) != axes.kinds.end())
    refuse_integers_of_cuda(call);
  Plan plan = solve(call, axes);
  plan.memory_order = {order_of_product(l, r, o)};
  if (bias >= 0 && plan.outputs[0]->has_partial())
    plan.inputs[bias] = with_partials_of(plan.inputs[bias], plan.outputs[0]);
  plan.run = [l, r, o, at_left = call.arg("left"), at_right = call.arg("right"),
              at_bias = call.arg("bias")](LocalCall& call) {
    const Bias bias = call.value(at_bias).toOptional<at::Tensor>();
    at::Tensor out = contract_plain(call.tensor(at_left), call.tensor(at_right), l, r, o, bias);
    call.give(std::move(out));
  };
  return plan;
}

struct Operands {
  at::Tensor left, right;
};

// The gradient of either operand is a contraction of the other with the gradient of the result. What is saved for
// that is `whole`, the operands with their tangents: the gradient has a tangent too. That of a bias is not a view,
// as LibTorch's is: a view of sums makes them over the ranks at once, one message for each bias.
struct Contract : torch::autograd::Function<Contract> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& left, const at::Tensor& right,
                            const Bias& bias, const Operands& whole, Ints l, Ints r, Ints o) {
    context->save_for_backward({whole.left, whole.right});
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor out = call_operator(left, right, l, r, o, bias);
    context->saved_data["bias"] = bias.has_value();
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
    at::Tensor left, right, bias;
    // A product without a sum takes operands of two types; a gradient has the type of its own.
    const auto gradient = [&](int own, const Ints& other_axes, const Ints& own_axes) {
      const at::Tensor& other = saved[1 - own];
      const at::ScalarType wide = at::result_type(grads[0], other), type = saved[own].scalar_type();
      const at::Tensor grad = grads[0].to(wide), factor = other.conj().to(wide);
      // The operand that has the outer rows first, so that they are row by row as parameters do.
      const auto alone = std::find_if(own_axes.begin(), own_axes.end(),
                                      [&](int64_t axis) { return !contains(o, axis) || !contains(other_axes, axis); });
      const bool turned = alone != own_axes.end() && !contains(o, *alone);
      const at::Tensor whole =
          turned ? contract(factor, grad, other_axes, o, own_axes) : contract(grad, factor, o, other_axes, own_axes);
      return (whole.is_complex() && !c10::isComplexType(type) ? at::real(whole) : whole).to(type).contiguous();
    };
    if (grads[0].defined() && context->needs_input_grad(0)) left = gradient(0, r, l);
    if (grads[0].defined() && context->needs_input_grad(1)) right = gradient(1, l, r);
    if (grads[0].defined() && context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {
      Ints rows(grads[0].dim() - 1);
      std::iota(rows.begin(), rows.end(), 0);
      bias = grads[0].sum(rows);
    }
    return {left, right, bias, {}, {}, {}, {}};
  }
};

at::Tensor contract_autograd(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef l, at::IntArrayRef r,
                             at::IntArrayRef o, const Bias& bias) {
  const auto recorded = [](const at::Tensor& tensor) { return c10::GradMode::is_enabled() && tensor.requires_grad(); };
  const auto tangent_of = [](const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0); };
  const auto primal_of = [](const at::Tensor& tensor, bool dual) { return dual ? tensor._fw_primal(0) : tensor; };
  const at::Tensor left_tangent = tangent_of(left), right_tangent = tangent_of(right),
                   bias_tangent = bias ? tangent_of(*bias) : at::Tensor();
  const bool dual = left_tangent.defined() || right_tangent.defined() || bias_tangent.defined();
  if (!dual && !recorded(left) && !recorded(right) && !(bias && recorded(*bias))) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_operator(left, right, l, r, o, bias);
  }
  // The function below runs without recording, so the boundary is guarded here.
  for (const at::Tensor* tensor : {&left, &right, bias ? &*bias : nullptr}) {
    if (tensor != nullptr && recorded(*tensor)) install_gradient_hook(*tensor);
  }
  const at::Tensor a = primal_of(left, left_tangent.defined()), b = primal_of(right, right_tangent.defined());
  const Bias c = bias ? Bias(primal_of(*bias, bias_tangent.defined())) : std::nullopt;
  const at::Tensor out = Contract::apply(a, b, c, Operands{left, right}, l.vec(), r.vec(), o.vec());
  if (!dual) return out;
  at::Tensor tangent;
  const auto add = [&tangent](const at::Tensor& addend) { tangent = tangent.defined() ? tangent + addend : addend; };
  if (left_tangent.defined()) add(call_operator(left_tangent, b, l, r, o, std::nullopt));
  if (right_tangent.defined()) add(call_operator(a, right_tangent, l, r, o, std::nullopt));
  if (bias_tangent.defined()) add(at::zeros_like(out) + bias_tangent);
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
      "contract(Tensor left, Tensor right, int[] left_axes, int[] right_axes, int[] out_axes, Tensor? bias=None) -> "
      "Tensor");
  library.impl("contract", c10::DispatchKey::CPU, &contract_plain);
  library.impl("contract", c10::DispatchKey::CUDA, &contract_plain);
  library.impl("contract", c10::DispatchKey::Autograd, &contract_autograd);
}

}  // namespace

void refuse_integers_of_cuda(const OpCall& call) {
  if (call.mesh()->device_type().rfind("cuda", 0) != 0) return;
  for (const TensorArgument& slot : call.slots()) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isIntegralType(slot.dtype, /*includeBool=*/true), call.name(),
                                ": CUDA has no product of matrices of ", slot.dtype, "\n  have  ", call.describe(),
                                "\n  fix   convert them to a floating type, or compute on the CPU");
  }
}

at::Tensor contract(const at::Tensor& left, const at::Tensor& right, Ints left_axes, Ints right_axes, Ints out_axes,
                    const Bias& bias) {
  const auto extent = [](const at::Tensor& tensor, const Ints& axes, int64_t axis) {
    return tensor.size(std::find(axes.begin(), axes.end(), axis) - axes.begin());
  };
  TORCH_INTERNAL_ASSERT(left.dim() == static_cast<int64_t>(left_axes.size()) &&
                        right.dim() == static_cast<int64_t>(right_axes.size()));
  for (size_t d = 0; d < left_axes.size(); ++d) {
    const int64_t axis = left_axes[d];
    TORCH_CHECK_VALUE(!contains(right_axes, axis) || extent(right, right_axes, axis) == left.size(d),
                      "contract: extents of a shared dim differ, ", left.size(d), " and ",
                      contains(right_axes, axis) ? extent(right, right_axes, axis) : 0, "\n  have  tensors of shapes ",
                      shape_string(left.sizes()), " and ", shape_string(right.sizes()));
  }
  return call_operator(left, right, left_axes, right_axes, out_axes, bias);
}

at::Tensor cast_as_factor(const at::Tensor& tensor) {
  namespace autocast = at::autocast;
  const c10::DeviceType device = tensor.device().type();
  if (!autocast::is_autocast_available(device) || !autocast::is_autocast_enabled(device)) return tensor;
  return autocast::cached_cast(autocast::get_autocast_dtype(device), tensor, device);
}

}  // namespace moonhalo
