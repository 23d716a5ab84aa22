// SPDX-License-Identifier: Apache-2.0
// The operator of neighbourhood attention, its derivative, and its rule: queries stay where they are, the keys and
// values that their windows reach are fetched, both in one exchange; backward, their gradients go back the same way.
#include "moonhalo/ops/neighborhood/operator.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/double_backward.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Ints = at::IntArrayRef;
using Bools = c10::List<bool>;
using Like = NeighborhoodExtra::Like;
using Results = std::tuple<at::Tensor, at::Tensor>;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

NeighborhoodOperand operand(const at::Tensor& t) { return {t.sizes(), t.scalar_type(), t.device()}; }

NeighborhoodCall checked(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Ints window,
                         Ints stride, Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  return checked_neighborhood(operand(query), operand(key), operand(value), window, stride, dilation, is_causal, scale);
}

using Extras = std::vector<std::tuple<const char*, Like, at::Tensor>>;

void check_extras(const char* op, const at::Tensor& query, const at::Tensor& value, const Extras& tensors) {
  std::vector<NeighborhoodExtra> extras;
  for (const auto& [name, like, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), op, ": ", name, " is undefined\n  have  query ", shape_string(query.sizes()),
                      "\n  fix   give zeros");
    extras.push_back({name, like, operand(tensor)});
  }
  check_neighborhood_extras(op, operand(query), operand(value), extras);
}

void check_backward(const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_logsumexp,
                    const at::Tensor& query, const at::Tensor& value, const at::Tensor& output,
                    const at::Tensor& logsumexp) {
  Extras extras = {{"grad_output", Like::kValue, grad_output},
                   {"output", Like::kValue, output},
                   {"logsumexp", Like::kLogsumexp, logsumexp}};
  if (grad_logsumexp && grad_logsumexp->defined())
    extras.emplace_back("grad_logsumexp", Like::kLogsumexp, *grad_logsumexp);
  check_extras("neighborhood_attention_backward", query, value, extras);
}

Results forward_local(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Ints window, Ints stride,
                      Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  return neighborhood_forward(query, key, value,
                              checked(query, key, value, window, stride, dilation, is_causal, scale));
}

Results forward_meta(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Ints window, Ints stride,
                     Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  checked(query, key, value, window, stride, dilation, is_causal, scale);
  const at::Tensor output = at::empty_like(value, query.options(), at::MemoryFormat::Contiguous);
  return {output, at::empty(output.sizes().slice(0, output.dim() - 1),
                            query.options().dtype(neighborhood_sum_type(query.scalar_type())))};
}

Gradients backward_local(const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_logsumexp,
                         const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& output, const at::Tensor& logsumexp, Ints window, Ints stride, Ints dilation,
                         const Bools& is_causal, std::optional<double> scale) {
  const auto call = checked(query, key, value, window, stride, dilation, is_causal, scale);
  check_backward(grad_output, grad_logsumexp, query, value, output, logsumexp);
  return neighborhood_backward(grad_output, grad_logsumexp.value_or(at::Tensor()), query, key, value, output, logsumexp,
                               call);
}

Gradients backward_meta(const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor& query,
                        const at::Tensor& key, const at::Tensor& value, const at::Tensor&, const at::Tensor&, Ints,
                        Ints, Ints, const Bools&, std::optional<double>) {
  const auto like = [](const at::Tensor& t) { return at::empty_like(t, at::MemoryFormat::Contiguous); };
  return {like(query), like(key), like(value)};
}

using Five = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Five second_local(const at::Tensor& cotangent_query, const at::Tensor& cotangent_key, const at::Tensor& cotangent_value,
                  const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query,
                  const at::Tensor& key, const at::Tensor& value, Ints window, Ints stride, Ints dilation,
                  const Bools& is_causal, std::optional<double> scale) {
  const auto call = checked(query, key, value, window, stride, dilation, is_causal, scale);
  check_extras("neighborhood_attention_double_backward", query, value,
               {{"cotangent_query", Like::kQuery, cotangent_query},
                {"cotangent_key", Like::kQuery, cotangent_key},
                {"cotangent_value", Like::kValue, cotangent_value},
                {"grad_output", Like::kValue, grad_output},
                {"grad_logsumexp", Like::kLogsumexp, grad_logsumexp}});
  auto [grad, sum, q, k, v] = neighborhood_second(
      {cotangent_query, cotangent_key, cotangent_value, grad_output, grad_logsumexp, query, key, value}, call);
  return {grad, sum, q, k, v};
}

Five second_meta(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor& grad_output,
                 const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
                 const at::Tensor& value, Ints, Ints, Ints, const Bools&, std::optional<double>) {
  const auto like = [](const at::Tensor& t) { return at::empty_like(t, at::MemoryFormat::Contiguous); };
  return {like(grad_output), like(grad_logsumexp), like(query), like(key), like(value)};
}

// Autograd

template <typename Signature>
const c10::TypedOperatorHandle<Signature>& handle(const char* name) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  return op;
}
Results call_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Ints window, Ints stride,
                     Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  return handle<decltype(forward_local)>("moonhalo::neighborhood_attention")
      .call(query, key, value, window, stride, dilation, is_causal, scale);
}
const auto& backward_handle() { return handle<decltype(backward_local)>("moonhalo::neighborhood_attention_backward"); }

bool differentiates(const at::Tensor& tensor) {
  return (c10::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
}

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, Ints window, Ints stride, Ints dilation, const Bools& is_causal,
                               std::optional<double> scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, logsumexp] = call_forward(query, key, value, window, stride, dilation, is_causal, scale);
    context->set_materialize_grads(false);
    context->save_for_backward({query, key, value, output, logsumexp});
    context->saved_data["window"] = window.vec();
    context->saved_data["stride"] = stride.vec();
    context->saved_data["dilation"] = dilation.vec();
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["scale"] = scale;
    return {output, logsumexp};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list result(8);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const auto saved = context->get_saved_variables();
    const auto numbers = [&](const char* name) { return context->saved_data[name].toIntVector(); };
    std::optional<at::Tensor> grad_logsumexp;
    if (grads[1].defined()) grad_logsumexp = grads[1];
    const at::Tensor grad_output = grads[0].defined() ? grads[0] : at::zeros_like(saved[3]);
    std::tie(result[0], result[1], result[2]) = backward_handle().call(
        grad_output, grad_logsumexp, saved[0], saved[1], saved[2], saved[3], saved[4], numbers("window"),
        numbers("stride"), numbers("dilation"), context->saved_data["is_causal"].toBoolList(),
        context->saved_data["scale"].toOptional<double>());
    return result;
  }
};

const auto& second_handle() {
  return handle<decltype(second_local)>("moonhalo::neighborhood_attention_double_backward");
}

// The derivative, itself differentiable: of `output` and `logsumexp` it is a function by way of query, key and value.
struct AttentionBackward : torch::autograd::Function<AttentionBackward> {
  static variable_list forward(AutogradContext* context, const at::Tensor& grad_output,
                               const std::optional<at::Tensor>& grad_logsumexp, const at::Tensor& query,
                               const at::Tensor& key, const at::Tensor& value, const at::Tensor& output,
                               const at::Tensor& logsumexp, Ints window, Ints stride, Ints dilation,
                               const Bools& is_causal, std::optional<double> scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [q, k, v] = backward_handle().call(grad_output, grad_logsumexp, query, key, value, output, logsumexp, window,
                                            stride, dilation, is_causal, scale);
    context->set_materialize_grads(false);
    context->save_for_backward(
        {grad_output, grad_logsumexp.value_or(at::Tensor()), query, key, value, logsumexp.detach()});
    context->saved_data["window"] = window.vec();
    context->saved_data["stride"] = stride.vec();
    context->saved_data["dilation"] = dilation.vec();
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["scale"] = scale;
    return {q, k, v};
  }
  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    variable_list result(12);
    const auto saved = context->get_saved_variables();
    const auto numbers = [&](const char* name) { return context->saved_data[name].toIntVector(); };
    const auto or_zeros = [](const at::Tensor& given, const at::Tensor& like) {
      return given.defined() ? given : at::zeros_like(like);
    };
    std::tie(result[0], result[1], result[2], result[3], result[4]) = second_handle().call(
        or_zeros(cotangents[0], saved[2]), or_zeros(cotangents[1], saved[3]), or_zeros(cotangents[2], saved[4]),
        saved[0], or_zeros(saved[1], saved[5]), saved[2], saved[3], saved[4], numbers("window"), numbers("stride"),
        numbers("dilation"), context->saved_data["is_causal"].toBoolList(),
        context->saved_data["scale"].toOptional<double>());
    if (!saved[1].defined()) result[1] = at::Tensor();
    return result;
  }
};

// Stands in the graph of a second derivative that was recorded, to say what cannot be had.
struct AttentionSecond : torch::autograd::Function<AttentionSecond> {
  static variable_list forward(AutogradContext*, const at::Tensor& cotangent_query, const at::Tensor& cotangent_key,
                               const at::Tensor& cotangent_value, const at::Tensor& grad_output,
                               const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, Ints window, Ints stride, Ints dilation, const Bools& is_causal,
                               std::optional<double> scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [grad, sum, q, k, v] =
        second_handle().call(cotangent_query, cotangent_key, cotangent_value, grad_output, grad_logsumexp, query, key,
                             value, window, stride, dilation, is_causal, scale);
    return {grad, sum, q, k, v};
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "neighborhood_attention: its third derivative is asked for",
        "\n  have  a gradient through neighborhood_attention_double_backward, which has no formula",
        "\n  fix   do not differentiate its second derivative (no create_graph there), or use dense attention with a "
        "mask");
  }
};

Results forward_autograd(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Ints window,
                         Ints stride, Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  if (!differentiates(query) && !differentiates(key) && !differentiates(value)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_forward(query, key, value, window, stride, dilation, is_causal, scale);
  }
  // The function below runs without recording, so the boundary is guarded here.
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    if (c10::GradMode::is_enabled() && tensor->requires_grad()) install_gradient_hook(*tensor);
  }
  const auto results = Attention::apply(query, key, value, window, stride, dilation, is_causal, scale);
  return {results[0], results[1]};
}

Gradients backward_autograd(const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_logsumexp,
                            const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& output, const at::Tensor& logsumexp, Ints window, Ints stride,
                            Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  bool records = grad_logsumexp && differentiates(*grad_logsumexp);
  for (const at::Tensor* tensor : {&grad_output, &query, &key, &value, &output, &logsumexp})
    records |= differentiates(*tensor);
  if (records && c10::GradMode::is_enabled()) {
    if (grad_output.requires_grad()) install_gradient_hook(grad_output);
    if (grad_logsumexp && grad_logsumexp->requires_grad()) install_gradient_hook(*grad_logsumexp);
  }
  if (!records) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return backward_handle().call(grad_output, grad_logsumexp, query, key, value, output, logsumexp, window, stride,
                                  dilation, is_causal, scale);
  }
  const auto results = AttentionBackward::apply(grad_output, grad_logsumexp, query, key, value, output, logsumexp,
                                                window, stride, dilation, is_causal, scale);
  return {results[0], results[1], results[2]};
}

Five second_autograd(const at::Tensor& cotangent_query, const at::Tensor& cotangent_key,
                     const at::Tensor& cotangent_value, const at::Tensor& grad_output, const at::Tensor& grad_logsumexp,
                     const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Ints window, Ints stride,
                     Ints dilation, const Bools& is_causal, std::optional<double> scale) {
  const auto r = AttentionSecond::apply(cotangent_query, cotangent_key, cotangent_value, grad_output, grad_logsumexp,
                                        query, key, value, window, stride, dilation, is_causal, scale);
  return {r[0], r[1], r[2], r[3], r[4]};
}

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  library.def(
      "neighborhood_attention(Tensor query, Tensor key, Tensor value, int[1] window, int[1] "
      "stride=1, int[1] dilation=1, "
      "bool[1] is_causal=False, float? scale=None) -> (Tensor output, Tensor logsumexp)");
  library.def(
      "neighborhood_attention_backward(Tensor grad_output, Tensor? grad_logsumexp, Tensor query, "
      "Tensor key, Tensor value, "
      "Tensor output, Tensor logsumexp, int[1] window, int[1] stride, int[1] dilation, bool[1] "
      "is_causal, float? scale) -> "
      "(Tensor grad_query, Tensor grad_key, Tensor grad_value)");
  library.def(
      "neighborhood_attention_double_backward(Tensor cotangent_query, Tensor cotangent_key, Tensor "
      "cotangent_value, Tensor grad_output, Tensor grad_logsumexp, Tensor query, Tensor key, "
      "Tensor "
      "value, int[1] window, int[1] stride, int[1] dilation, bool[1] is_causal, float? scale) -> "
      "(Tensor grad_grad_output, Tensor grad_grad_logsumexp, Tensor grad_query, Tensor grad_key, "
      "Tensor grad_value)");
  const char* const second = "neighborhood_attention_double_backward";
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::PrivateUse1}) {
    library.impl("neighborhood_attention", key, &forward_local);
    library.impl("neighborhood_attention_backward", key, &backward_local);
    library.impl(second, key, &second_local);
  }
  library.impl("neighborhood_attention", c10::DispatchKey::Meta, &forward_meta);
  library.impl("neighborhood_attention", c10::DispatchKey::Autograd, &forward_autograd);
  library.impl("neighborhood_attention_backward", c10::DispatchKey::Meta, &backward_meta);
  library.impl("neighborhood_attention_backward", c10::DispatchKey::Autograd, &backward_autograd);
  library.impl(second, c10::DispatchKey::Meta, &second_meta);
  library.impl(second, c10::DispatchKey::Autograd, &second_autograd);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                                          const at::Tensor& value, const Neighborhood& neighborhood,
                                                          std::optional<double> scale) {
  Bools is_causal;
  for (const bool causal : neighborhood.is_causal) is_causal.push_back(causal);
  return call_forward(query, key, value, neighborhood.window, neighborhood.stride, neighborhood.dilation, is_causal,
                      scale);
}

}  // namespace moonhalo
