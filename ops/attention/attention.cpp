// SPDX-License-Identifier: Apache-2.0
// The operator moonhalo::attention, its derivative, and the derivative of that.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/ops/attention/attention.h"
#include "moonhalo/ops/attention/block_kernel.h"

namespace moonhalo {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor>;
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

uint64_t number_of(const MaybeTensor& key) {
  return key && key->defined() ? static_cast<uint64_t>(key->item<int64_t>()) : 0;
}

AttentionCall call_of(const at::Tensor& query, const at::Tensor& key, double dropout_p, bool is_causal,
                      std::optional<double> scale, const MaybeTensor& dropout_key) {
  AttentionCall call{scale_of(query, scale), is_causal,      dropout_p,
                     number_of(dropout_key), query.size(-2), key.size(-2)};
  const int64_t lines = c10::multiply_integers(query.sizes().slice(0, query.dim() - 2));
  for (int64_t i = 0; dropout_p > 0 && i < lines; ++i) call.lines.push_back(i);
  return call;
}

Results forward_cpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const MaybeTensor& attn_mask, double dropout_p, bool is_causal, std::optional<double> scale,
                    const MaybeTensor& dropout_key) {
  check_attention(query, key, value, attn_mask, dropout_p);
  const at::Tensor four = attention_packed_rows(query);
  const at::Tensor mask = attn_mask ? attention_mask_four_dims(*attn_mask, query) : at::Tensor();
  AttentionSums sums(four, value.size(-1));
  attend(call_of(query, key, dropout_p, is_causal, scale, dropout_key), {}, four, attention_packed_rows(key),
         attention_packed_rows(value), mask, attention_shift(attention_peaks(is_causal, {}, four, mask)), sums);
  std::vector<int64_t> shape = query.sizes().vec();
  shape.back() = value.size(-1);
  const at::Tensor output = sums.output.to(query.scalar_type()).reshape(shape);
  shape.pop_back();
  return {output, sums.logsumexp.reshape(shape)};
}

Gradients backward_cpu(const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key,
                       const at::Tensor& value, const MaybeTensor& attn_mask, const at::Tensor& output,
                       const at::Tensor& logsumexp, double dropout_p, bool is_causal, std::optional<double> scale,
                       const MaybeTensor& dropout_key, bool needs_mask) {
  const at::Tensor q = attention_packed_rows(query), k = attention_packed_rows(key), v = attention_packed_rows(value);
  const at::Tensor mask = attn_mask ? attention_mask_four_dims(*attn_mask, query) : at::Tensor();
  const auto zeros_of = [&](const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().dtype(attention_sum_type(t.scalar_type())));
  };
  const AttentionGradients g{zeros_of(q), zeros_of(k), zeros_of(v), needs_mask ? zeros_of(mask) : at::Tensor()};
  attend_backward(call_of(query, key, dropout_p, is_causal, scale, dropout_key), {},
                  attention_four_dims(grad_output).contiguous(), q, k, v, mask,
                  attention_shift(attention_peaks(is_causal, {}, q, mask)), attention_packed_rows(output),
                  logsumexp.reshape(q.sizes().slice(0, 3)), g);
  const auto as = [](const at::Tensor& gradient, const at::Tensor& t) {
    return gradient.to(t.scalar_type()).reshape(t.sizes());
  };
  return {as(g.query, query), as(g.key, key), as(g.value, value),
          needs_mask ? attention_mask_gradient(g.mask, *attn_mask, query) : at::Tensor()};
}

template <typename Signature>
const c10::TypedOperatorHandle<Signature>& handle(const char* name) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
  return op;
}
const auto& forward_handle() { return handle<decltype(forward_cpu)>("moonhalo::attention"); }
const auto& backward_handle() { return handle<decltype(backward_cpu)>("moonhalo::attention_backward"); }

// Autograd

struct Arguments {
  at::Tensor query, key, value;
  MaybeTensor mask;
  double dropout_p;
  bool is_causal;
  std::optional<double> scale;
  MaybeTensor dropout_key;
};

// The gradients by operators that can be differentiated again, with all scores. Of LibTorch's two kernels for plain
// tensors, one has no second derivative; here every call has one.
variable_list differentiable_gradients(const Arguments& a, const at::Tensor& grad_output, bool needs_mask) {
  const int64_t queries = a.query.size(-2), keys = a.key.size(-2);
  const int64_t heads = a.query.dim() > 2 ? a.query.size(-3) : 1;
  const bool groups = a.query.dim() > 2 && a.key.size(-3) != heads;
  const auto type = attention_sum_type(a.query.scalar_type());
  const auto for_all_heads = [&](const at::Tensor& t) {
    return groups ? t.repeat_interleave(heads / t.size(-3), -3) : t;
  };
  const auto over_groups = [&](const at::Tensor& t) {
    return groups ? t.unflatten(-3, {a.key.size(-3), heads / a.key.size(-3)}).sum(-3) : t;
  };
  const at::Tensor query = a.query.to(type), key = for_all_heads(a.key.to(type)),
                   value = for_all_heads(a.value.to(type));
  const at::Tensor grad = grad_output.to(type);
  const double scale = scale_of(a.query, a.scale);
  at::Tensor scores = query.matmul(key.transpose(-1, -2)) * scale;
  if (a.mask && a.mask->scalar_type() == at::kBool) {
    scores = scores.masked_fill(a.mask->logical_not(), kUnseen);
  } else if (a.mask) {
    scores = scores + a.mask->to(type);
  }
  if (a.is_causal) scores = scores.masked_fill(at::ones({queries, keys}, at::kBool).triu(1), kUnseen);
  const at::Tensor weights = at::_safe_softmax(scores, -1);
  at::Tensor dropped = weights, by_weights = grad.matmul(value.transpose(-1, -2));
  if (a.dropout_p > 0) {
    const ElementwiseRandom elementwise;  // as the kernel draws, wherever this runs
    const ReplayedKey replayed(number_of(a.dropout_key));
    const double kept = 1 - a.dropout_p;
    const at::Tensor noise = at::empty_like(weights.detach()).bernoulli_(kept) * (kept > 0 ? 1 / kept : 0);
    dropped = weights * noise;
    by_weights = by_weights * noise;
  }
  const at::Tensor by_scores = weights * (by_weights - (by_weights * weights).sum(-1, /*keepdim=*/true));
  variable_list result(8);
  result[0] = (by_scores.matmul(key) * scale).to(a.query.scalar_type());
  result[1] = over_groups(by_scores.transpose(-1, -2).matmul(query) * scale).to(a.key.scalar_type());
  result[2] = over_groups(dropped.transpose(-1, -2).matmul(grad)).to(a.value.scalar_type());
  if (needs_mask) result[3] = by_scores.sum_to_size(a.mask->sizes()).to(a.mask->scalar_type());
  return result;
}

struct Attention : torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const MaybeTensor& mask, double dropout_p, bool is_causal,
                               std::optional<double> scale, const MaybeTensor& dropout_key) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, logsumexp] = forward_handle().call(query, key, value, mask, dropout_p, is_causal, scale, dropout_key);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({logsumexp});
    context->save_for_backward(
        {query, key, value, mask.value_or(at::Tensor()), dropout_key.value_or(at::Tensor()), output, logsumexp});
    context->saved_data["dropout_p"] = dropout_p;
    context->saved_data["is_causal"] = is_causal;
    context->saved_data["scale"] = scale;
    return {output, logsumexp};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list result(8);
    if (!grads[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    const auto maybe = [](const at::Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; };
    const Arguments a{saved[0],
                      saved[1],
                      saved[2],
                      maybe(saved[3]),
                      context->saved_data["dropout_p"].toDouble(),
                      context->saved_data["is_causal"].toBool(),
                      context->saved_data["scale"].toOptional<double>(),
                      maybe(saved[4])};
    const bool needs_mask = a.mask && context->needs_input_grad(3);
    if (c10::GradMode::is_enabled()) return differentiable_gradients(a, grads[0], needs_mask);
    std::tie(result[0], result[1], result[2], result[3]) =
        backward_handle().call(grads[0], a.query, a.key, a.value, a.mask, saved[5], saved[6], a.dropout_p, a.is_causal,
                               a.scale, a.dropout_key, needs_mask);
    return result;
  }
};

Results forward_autograd(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const MaybeTensor& mask, double dropout_p, bool is_causal, std::optional<double> scale,
                         const MaybeTensor& dropout_key) {
  bool records = false;
  for (const at::Tensor* t : {&query, &key, &value, mask ? &*mask : &query}) {
    TORCH_CHECK_NOT_IMPLEMENTED(!t->_fw_grad(/*level=*/0).defined(),
                                "attention: forward-mode derivatives are asked for\n  have  ",
                                "a tangent\n  fix   call scaled_dot_product_attention, which is decomposed then");
    // The function below runs without recording, so the boundary is guarded here.
    if (c10::GradMode::is_enabled() && t->requires_grad()) {
      install_gradient_hook(*t);
      records = true;
    }
  }
  if (!records) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return forward_handle().call(query, key, value, mask, dropout_p, is_causal, scale, dropout_key);
  }
  const auto results = Attention::apply(query, key, value, mask, dropout_p, is_causal, scale, dropout_key);
  return {results[0], results[1]};
}

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
      "dropout_p=0.0, bool is_causal=False, "
      "float? scale=None, Tensor? dropout_key=None) -> (Tensor output, Tensor logsumexp)");
  library.def(
      "attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor? "
      "attn_mask, Tensor output, Tensor "
      "logsumexp, float dropout_p, bool is_causal, float? scale, Tensor? dropout_key, bool "
      "wants_mask) -> (Tensor grad_query, Tensor "
      "grad_key, Tensor grad_value, Tensor grad_mask)");
  library.impl("attention", c10::DispatchKey::CPU, &forward_cpu);
  library.impl("attention", c10::DispatchKey::Autograd, &forward_autograd);
  library.impl("attention_backward", c10::DispatchKey::CPU, &backward_cpu);
}

}  // namespace

std::string attention_shapes(const AttentionOperand& query, const AttentionOperand& key, const AttentionOperand& value,
                             const std::optional<AttentionOperand>& mask) {
  return "\n  have  query " + shape_string(query.shape) + ", key " + shape_string(key.shape) + ", value " +
         shape_string(value.shape) + (mask ? ", mask " + shape_string(mask->shape) : "");
}

bool attention_groups_fit(int64_t heads, int64_t key_heads) {
  return key_heads > 0 ? heads > 0 && heads % key_heads == 0 : heads == 0;
}

void check_attention_tensors(const char* name, const AttentionOperand& query, const AttentionOperand& key,
                             const AttentionOperand& value, const std::optional<AttentionOperand>& mask,
                             double dropout_p) {
  const auto have = [&] { return attention_shapes(query, key, value, mask); };
  const auto rows = [](const AttentionOperand& t) { return t.shape[t.shape.size() - 2]; };
  TORCH_CHECK_VALUE(query.shape.size() >= 2 && key.shape.size() >= 2 && value.shape.size() >= 2, name,
                    ": tensors of fewer than two dims", have(), "\n  fix   pass [..., rows, features]");
  TORCH_CHECK_TYPE(query.type == key.type && key.type == value.type && at::isFloatingType(query.type), name,
                   ": query is ", query.type, ", key ", key.type, ", value ", value.type, have(),
                   "\n  fix   pass tensors of one floating point type");
  TORCH_CHECK_VALUE(query.shape.back() == key.shape.back() && rows(key) == rows(value), name, ": ", query.shape.back(),
                    " features of queries are multiplied by ", key.shape.back(), " of keys, ", rows(key),
                    " keys are multiplied by ", rows(value), " values", have(),
                    "\n  fix   pass keys like the queries, and a value for each");
  TORCH_CHECK_VALUE(dropout_p >= 0 && dropout_p <= 1, name, ": the probability ", dropout_p,
                    " of dropout is not in [0, 1]", have(), "\n  fix   pass one that is");
  if (mask)
    TORCH_CHECK_TYPE(mask->type == at::kBool || mask->type == at::kFloat || mask->type == query.type, name,
                     ": the mask is ", mask->type, have(), "\n  fix   pass bool, or the query's type");
}

void check_attention(const AttentionOperand& query, const AttentionOperand& key, const AttentionOperand& value,
                     const std::optional<AttentionOperand>& mask, double dropout_p) {
  check_attention_tensors("attention", query, key, value, mask, dropout_p);
  const size_t lead = query.shape.size() - 2;
  bool fits = key.shape.size() == lead + 2 && value.shape.size() == lead + 2 &&
              key.shape.slice(0, lead) == value.shape.slice(0, lead);
  for (size_t d = 0; fits && d < lead; ++d)
    fits = d + 1 < lead ? key.shape[d] == query.shape[d] : attention_groups_fit(query.shape[d], key.shape[d]);
  TORCH_CHECK_VALUE(fits, "attention: dims before the rows do not match", attention_shapes(query, key, value, mask),
                    "\n  fix   pass as many batches, and heads of keys and values that divide those of queries");
  if (!mask) return;
  std::vector<int64_t> scores = query.shape.slice(0, lead + 1).vec();
  scores.push_back(key.shape[lead]);
  TORCH_CHECK_VALUE(at::is_expandable_to(mask->shape, scores), "attention: a mask ", shape_string(mask->shape),
                    " does not fit scores ", shape_string(scores), attention_shapes(query, key, value, mask),
                    "\n  fix   pass a mask that broadcasts to the scores");
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const MaybeTensor& attn_mask, double dropout_p, bool is_causal,
                                             std::optional<double> scale, const MaybeTensor& dropout_key) {
  return forward_handle().call(query, key, value, attn_mask, dropout_p, is_causal, scale, dropout_key);
}

}  // namespace moonhalo
