// SPDX-License-Identifier: Apache-2.0
// LibTorch's fused attention on the CPU, where batch or heads are cut. Queries and keys are whole on every rank: over
// cut sequences scaled_dot_product_attention does not come here (attention/rules.cpp).
#include <ATen/Functions.h>

#include <algorithm>

#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

// Axes of [batch, heads, length, features]: the last two stay whole.
enum : int { kBatch, kHeads };

std::vector<int> sequence_axes() { return {kBatch, kHeads, -1, -1}; }

// A mask broadcasts over batch and heads where its size there is one, or it has no such dim.
std::vector<int> mask_axes(const SpecPtr& mask, const SpecPtr& query) {
  std::vector<int> axes(mask->ndim(), -1);
  for (int64_t d = 0; d + 2 < mask->ndim(); ++d) {
    const auto axis = static_cast<int>(d + 4 - mask->ndim());
    if (mask->global_shape()[d] == query->global_shape()[axis]) axes[d] = axis;
  }
  return axes;
}

// The axes of both directions: nothing random, four dims, and heads that match one to one.
std::optional<Axes> attention_axes(const OpCall& call) {
  if (call.value("dropout_p").toDouble() != 0) return std::nullopt;
  const SpecPtr query = call.spec("query"), key = call.spec("key"), value = call.spec("value");
  if (query->ndim() != 4 || key->ndim() != 4 || value->ndim() != 4) return std::nullopt;
  const bool same_heads = query->global_shape()[1] == key->global_shape()[1];
  Axes axes;
  axes.kinds = {AxisKind::kKeep, same_heads ? AxisKind::kKeep : AxisKind::kUncut};
  const Arg mask = call.arg("attn_mask");
  for (const TensorArgument& slot : call.slots()) {
    if (!slot.spec) {
      axes.inputs.emplace_back();
    } else if (slot.arg == mask) {
      axes.inputs.push_back(mask_axes(slot.spec, query));
    } else {
      axes.inputs.push_back(sequence_axes());
      axes.inputs.back().resize(slot.spec->ndim());  // logsumexp: [batch, heads, length]
    }
  }
  return axes;
}

// `result`, cut also as `source` is by mesh dims of one rank: its block stays what it is, and no tensor has to be
// copied only to get other placements.
SpecPtr with_undivided_cuts(const SpecPtr& result, const SpecPtr& source) {
  const DeviceMesh& mesh = *source->mesh();
  Layout layout = result->layout();
  for (int64_t d = 0; d < result->ndim(); ++d) {
    const Cut& cut = source->cut(d);
    const bool idle = std::all_of(cut.mesh_dims.begin(), cut.mesh_dims.end(),
                                  [&](int64_t m) { return mesh.size(m) == 1 && !layout.uses(m); });
    if (cut && idle && !layout.cuts[d] && cut.sizes[0] == result->global_shape()[d]) layout.cuts[d] = cut;
  }
  return intern(std::move(layout));
}

// The kernel takes no empty batch.
bool nothing_here(LocalCall& call, Arg query) { return call.tensor(query).numel() == 0; }

// It reads features as neighbours in memory: whole tensors that are otherwise do not come here, their blocks may.
void run_on_rows(LocalCall& call) {
  for (c10::IValue& value : call.values()) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() != 4) continue;
    const at::Tensor& block = value.toTensor();
    if (block.stride(-1) != 1 && block.size(-1) > 1) value = block.contiguous();
  }
  call.run();
}

std::optional<Plan> plan_flash_forward(const OpCall& call) {
  auto axes = attention_axes(call);
  if (!axes) return std::nullopt;
  const auto& query = call.spec("query")->global_shape();
  axes->outputs = {{kBatch, kHeads, -1, -1}, {kBatch, kHeads, -1}};
  axes->output_shapes = {{query[0], query[1], query[2], call.spec("value")->global_shape()[3]},
                         {query[0], query[1], query[2]}};
  Plan plan = solve(call, *axes);
  for (SpecPtr& output : plan.outputs) output = with_undivided_cuts(output, call.spec("query"));
  plan.memory_order = {{}, {0, 2, 1}};
  plan.run = [at_query = call.arg("query"), at_value = call.arg("value")](LocalCall& call) {
    if (!nothing_here(call, at_query)) return run_on_rows(call);
    const at::Tensor query = call.tensor(at_query), value = call.tensor(at_value);
    const auto sums = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    call.give(at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options()),
              at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(sums)));
  };
  return plan;
}

std::optional<Plan> plan_flash_backward(const OpCall& call) {
  auto axes = attention_axes(call);
  if (!axes) return std::nullopt;
  for (const char* input : {"query", "key", "value"}) {
    axes->outputs.push_back({kBatch, kHeads, -1, -1});
    axes->output_shapes.push_back(call.spec(input)->global_shape());
  }
  Plan plan = solve(call, *axes);
  for (size_t i = 0; i < 3; ++i)
    plan.outputs[i] = with_undivided_cuts(plan.outputs[i], call.spec(i == 0 ? "query" : i == 1 ? "key" : "value"));
  plan.memory_order.assign(3, {0, 2, 1, 3});
  plan.run = [at_query = call.arg("query"), at_key = call.arg("key"), at_value = call.arg("value")](LocalCall& call) {
    if (!nothing_here(call, at_query)) return run_on_rows(call);
    const auto empty_like = [&](Arg arg) { return at::empty_like(call.tensor(arg)); };
    call.give(empty_like(at_query), empty_like(at_key), empty_like(at_value));
  };
  return plan;
}

const char* const kBatchAndHeads =
    "batch and heads cut; cut sequences are made whole (scaled_dot_product_attention takes moonhalo::attention for "
    "them)";

const Register flash_attention_cpu_rules{
    {.op = "aten::_scaled_dot_product_flash_attention_for_cpu", .plan = plan_flash_forward, .supports = kBatchAndHeads},
    {.op = "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
     .plan = plan_flash_backward,
     .supports = kBatchAndHeads},
};

}  // namespace
}  // namespace moonhalo
