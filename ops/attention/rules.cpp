// SPDX-License-Identifier: Apache-2.0
// Rules of moonhalo::attention, and the way there: at::scaled_dot_product_attention is intercepted above autograd,
// where its composite would run, and comes here when a sequence is cut.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/dispatch/trivial_mesh_dims.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/attention/attention.h"
#include "moonhalo/ops/attention/ring.h"
#include "moonhalo/ops/support/above_autograd.h"

namespace moonhalo {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

std::shared_ptr<const AttentionRing> ring_of(const OpCall& call, const AttentionSpecs& specs) {
  AttentionCall numbers;
  const auto scale = call.value("scale").toOptional<double>();
  numbers.scale = scale.value_or(1 / std::sqrt(static_cast<double>(specs.query->global_shape().back())));
  numbers.is_causal = call.flag("is_causal");
  numbers.dropout_p = call.value("dropout_p").toDouble();
  return std::make_shared<const AttentionRing>(specs, numbers);
}

AttentionSpecs given_to(const OpCall& call) {
  AttentionSpecs given;
  given.query = call.spec("query");
  given.key = call.spec("key");
  given.value = call.spec("value");
  given.mask = call.spec("attn_mask");
  return given;
}

void want(const OpCall& call, Plan& plan, const char* name, const SpecPtr& spec) {
  plan.inputs.resize(call.slots().size());
  const int slot = call.slot(name);
  if (slot >= 0 && call.slots()[slot].spec) plan.inputs[slot] = spec;
}

uint64_t seed_number(const at::Tensor& number) {
  return number.defined() ? static_cast<uint64_t>(number.item<int64_t>()) : 0;
}

void require_inputs(const OpCall& call, Plan& plan, const AttentionSpecs& specs) {
  want(call, plan, "query", specs.query);
  want(call, plan, "key", specs.key);
  want(call, plan, "value", specs.value);
  want(call, plan, "attn_mask", specs.mask);
  want(call, plan, "dropout_key", replicated(call.mesh(), {}));
}

void check(const OpCall& call) {
  const auto given = [&](const char* name) -> std::optional<AttentionOperand> {
    const int slot = call.slot(name);
    if (slot < 0 || !call.slots()[slot].spec) return std::nullopt;
    return AttentionOperand(call.slots()[slot].spec->global_shape(), call.slots()[slot].dtype);
  };
  check_attention(*given("query"), *given("key"), *given("value"), given("attn_mask"),
                  call.value("dropout_p").toDouble());
}

std::optional<Plan> plan_forward(const OpCall& call) {
  check(call);
  const auto ring = ring_of(call, choose_attention_specs(given_to(call)));
  Plan plan;
  require_inputs(call, plan, ring->specs());
  plan.outputs = {ring->output_spec(), ring->specs().logsumexp};
  plan.run = [ring, at_query = call.arg("query"), at_key = call.arg("key"), at_value = call.arg("value"),
              at_attn_mask = call.arg("attn_mask"), at_number = call.arg("dropout_key")](LocalCall& call) {
    auto [output, logsumexp] = ring->forward(call.tensor(at_query), call.tensor(at_key), call.tensor(at_value),
                                             call.tensor(at_attn_mask), seed_number(call.tensor(at_number)));
    call.give(std::move(output), std::move(logsumexp));
  };
  return plan;
}

std::optional<Plan> plan_backward(const OpCall& call) {
  const auto ring = ring_of(call, choose_attention_specs(given_to(call)));
  const bool needs_mask = call.flag("wants_mask");
  Plan plan;
  require_inputs(call, plan, ring->specs());
  want(call, plan, "grad_output", ring->specs().output);
  want(call, plan, "output", ring->specs().output);
  want(call, plan, "logsumexp", ring->specs().logsumexp);
  plan.outputs = {ring->grad_query_spec(), ring->grad_key_spec(), ring->grad_value_spec(),
                  needs_mask ? ring->grad_mask_spec() : SpecPtr()};
  plan.run = [ring, needs_mask, at_grad_output = call.arg("grad_output"), at_query = call.arg("query"),
              at_key = call.arg("key"), at_value = call.arg("value"), at_attn_mask = call.arg("attn_mask"),
              at_output = call.arg("output"), at_logsumexp = call.arg("logsumexp"),
              at_number = call.arg("dropout_key")](LocalCall& call) {
    auto gradients = ring->backward(call.tensor(at_grad_output), call.tensor(at_query), call.tensor(at_key),
                                    call.tensor(at_value), call.tensor(at_attn_mask), call.tensor(at_output),
                                    call.tensor(at_logsumexp), seed_number(call.tensor(at_number)), needs_mask);
    call.give(std::move(gradients.query), std::move(gradients.key), std::move(gradients.value),
              std::move(gradients.mask));
  };
  return plan;
}

// The way here

bool is_cut(const at::Tensor& tensor, int64_t from_the_end) {
  if (!is_shard_tensor(tensor) || tensor.dim() < from_the_end) return false;
  return without_trivial_mesh_dims(spec(tensor))->is_cut(tensor.dim() - from_the_end);
}

bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

void check(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
           double dropout_p, bool enable_gqa) {
  constexpr const char* kName = "scaled_dot_product_attention";
  check_attention_tensors(kName, query, key, value, mask, dropout_p);
  if (!enable_gqa) return;
  for (const at::Tensor* t : {&key, &value}) {
    TORCH_CHECK_VALUE(query.dim() >= 3 && t->dim() >= 3 && attention_groups_fit(query.size(-3), t->size(-3)), kName,
                      ": heads of keys or values do not divide those of queries",
                      attention_shapes(query, key, value, mask), "\n  fix   pass a divisor, or leave enable_gqa out");
  }
}

// Dims before the sequence as those of the others, by broadcasting.
at::Tensor with_lead(const at::Tensor& t, const std::vector<int64_t>& lead, bool keeps_heads) {
  std::vector<int64_t> shape = lead;
  if (keeps_heads && !shape.empty()) shape.back() = t.size(-3);
  shape.insert(shape.end(), {t.size(-2), t.size(-1)});
  return t.sizes() == at::IntArrayRef(shape) ? t : t.expand(shape);
}

at::Tensor attend_cut(const at::Tensor& query, at::Tensor key, at::Tensor value, const MaybeTensor& mask,
                      double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  check(query, key, value, mask, dropout_p, enable_gqa);
  if (enable_gqa && key.size(-3) != value.size(-3)) {
    key = key.repeat_interleave(query.size(-3) / key.size(-3), -3);
    value = value.repeat_interleave(query.size(-3) / value.size(-3), -3);
  }
  const bool groups = enable_gqa && key.size(-3) != query.size(-3);
  const auto lead_of = [&](const at::Tensor& t) {
    std::vector<int64_t> lead = t.sizes().slice(0, t.dim() - 2).vec();
    if (groups) lead.back() = query.size(-3);
    return lead;
  };
  std::vector<int64_t> lead = at::infer_size(at::infer_size(lead_of(query), lead_of(key)), lead_of(value));
  if (mask) {
    std::vector<int64_t> shape = lead;
    shape.insert(shape.end(), {query.size(-2), key.size(-2)});
    TORCH_CHECK_VALUE(at::is_expandable_to(mask->sizes(), shape), "scaled_dot_product_attention: a mask ",
                      shape_string(mask->sizes()), " does not fit scores ", shape_string(shape), "\n  have  query ",
                      shape_string(query.sizes()), ", key ", shape_string(key.sizes()),
                      "\n  fix   pass a mask that broadcasts to the scores");
  }
  MaybeTensor number;
  // at::dropout draws as rarely: not where all or nothing is kept, nor for no scores.
  const int64_t scores = c10::multiply_integers(lead) * query.size(-2) * key.size(-2);
  if (dropout_p > 0 && dropout_p < 1 && scores > 0)
    number = at::scalar_tensor(static_cast<int64_t>(ElementRandom(std::nullopt).key()), at::kLong);
  return std::get<0>(attention(with_lead(query, lead, false), with_lead(key, lead, groups),
                               with_lead(value, lead, groups), mask, dropout_p, is_causal, scale, number));
}

at::Tensor composite(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
                     double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  MaybeTensor numbers = mask;
  if (mask && mask->scalar_type() == at::kBool)
    numbers =
        at::zeros_like(*mask, mask->options().dtype(query.scalar_type())).masked_fill(mask->logical_not(), kUnseen);
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, numbers, dropout_p, is_causal, {}, scale, enable_gqa));
}

// Over mesh dims of size 1 nothing is cut: LibTorch's fused kernel gets whole sequences, and the output is cut as the
// query is called.
at::Tensor attend_whole(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const MaybeTensor& mask, double dropout_p, bool is_causal, std::optional<double> scale,
                        bool enable_gqa) {
  // The fused kernel's rule takes such cuts as they are. What it does not take goes through operators that know no
  // sequences.
  const bool fused = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !mask && dropout_p == 0 && !enable_gqa;
  const auto whole = [fused](const at::Tensor& t) {
    return is_shard_tensor(t) && !fused ? redistribute(t, without_trivial_mesh_dims(spec(t))) : t;
  };
  const at::Tensor output = at::native::scaled_dot_product_attention(whole(query), whole(key), whole(value),
                                                                     mask ? MaybeTensor(whole(*mask)) : mask, dropout_p,
                                                                     is_causal, scale, enable_gqa);
  if (!is_shard_tensor(query) || !is_shard_tensor(output) || without_trivial_mesh_dims(spec(query)) == spec(query))
    return output;
  Layout layout = spec(output)->layout();
  const int64_t lead = output.dim() - query.dim();
  for (int64_t d = 0; d + 1 < query.dim(); ++d) {
    if (without_trivial_mesh_dims(spec(query))->cut(d) == layout.cuts[lead + d])
      layout.cuts[lead + d] = spec(query)->cut(d);
  }
  return redistribute(output, intern(std::move(layout)));
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const MaybeTensor& attn_mask, double dropout_p, bool is_causal,
                                        std::optional<double> scale, bool enable_gqa) {
  const MaybeTensor mask = attn_mask && attn_mask->defined() ? attn_mask : std::nullopt;
  // LibTorch's kernel is given all heads where their numbers differ: here they may stay cut.
  const bool groups = enable_gqa && (is_cut(query, 3) || is_cut(key, 3));
  const bool cut = groups || is_cut(query, 2) || is_cut(key, 2) || is_cut(value, 2) ||
                   (mask && (is_cut(*mask, 1) || is_cut(*mask, 2)));
  // Forward-mode derivatives are those of the operators that LibTorch's composite is made of: its fused kernel has
  // none. On devices the ring has no kernel, and LibTorch's fused ones, some of which draw numbers, have no rule.
  if (!query.device().is_cpu() || has_tangent(query) || has_tangent(key) || has_tangent(value) ||
      (mask && has_tangent(*mask)))
    return composite(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  if (!cut) return attend_whole(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  return attend_cut(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
}

void intercept(torch::Library& library) { library.impl("scaled_dot_product_attention", &scaled_dot_product_attention); }

const InterceptAboveAutograd interception(&intercept);

constexpr const char* kSource = "PyTorch scaled_dot_product_attention; Liu et al., Ring Attention, 2023";
constexpr const char* kSupports = "batch, heads, queries, keys cut, uneven, by several mesh dims; causal work balanced";

const Register attention_rules{
    {.op = "moonhalo::attention",
     .plan = plan_forward,
     .source = kSource,
     .supports = kSupports,
     .traffic = Traffic::kRing | Traffic::kAllReduce},
    {.op = "moonhalo::attention_backward",
     .plan = plan_backward,
     .source = kSource,
     .supports = kSupports,
     .traffic = Traffic::kRing | Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
