// SPDX-License-Identifier: Apache-2.0
// Plans a kind of call that was not cached: finds its rule, and lays out how each tensor is moved.
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/dispatch/pointwise_rule.h"
#include "moonhalo/engine/dispatch/result_strides.h"
#include "moonhalo/engine/dispatch/trivial_mesh_dims.h"
#include "moonhalo/engine/tensor/call_origin.h"

namespace moonhalo {

// Over mesh dims of size 1 nothing is cut, whatever the placements say: what a rule does on whole tensors is done
// there.
void Dispatch::reuse_plan_without_trivial_dims(const Rule& rule, const OpCall& call, Plan& plan) {
  OpCall whole = call;
  bool changed = false;
  for (TensorArgument& slot : whole.slots_) {
    if (!slot.spec) continue;
    SpecPtr spec = without_trivial_mesh_dims(slot.spec);
    changed |= spec != slot.spec;
    slot.spec = std::move(spec);
  }
  if (!changed) return;
  if (auto other = rule.plan(whole)) reuse_plan(plan, std::move(*other), call);
}

Plan Dispatch::plan(const OperatorFacts& facts, const OpCall& call) {
  const Rule* rule = facts.rule;
  if (rule == nullptr && facts.pointwise && !facts.random) rule = pointwise_rule();
  if (rule != nullptr) {
    if (auto made = rule->plan(call)) {
      if (made->run || !made->argument_overrides.empty()) reuse_plan_without_trivial_dims(*rule, call, *made);
      return std::move(*made);
    }
  }
  Plan gather = gather_plan(facts, call, settings().fallback);
  if (call.mesh()->rank() == 0 && gathered.find(call.name()) == gathered.end()) {
    TORCH_WARN(call.name(),
               ": no sharding rule for these placements; its tensors are gathered on every rank (shown once)\n  have  ",
               call.describe());
  }
  return gather;
}

std::shared_ptr<Decision> Dispatch::decide(const OperatorFacts& facts, const c10::OperatorHandle& op,
                                           const Stack& stack) {
  ++counts.planned;
  auto decision = std::make_shared<Decision>();
  decision->key = key_.get().vec();
  decision->keeps_value = keeps_value(op.operator_name().name);
  decision->tag = fingerprint_of(op.operator_name().name, at::ArrayRef(stack).slice(stack.size() - facts.arguments),
                                 facts.pointwise && !facts.rule);
  const OpCall call(op, stack);
  decision->plan = plan(facts, call);
  const Plan& made = decision->plan;
  TORCH_INTERNAL_ASSERT(made.inputs.size() == call.slots().size(), call.name(), ": the plan names ", made.inputs.size(),
                        " inputs of ", call.slots().size());
  for (size_t s = 0; s < call.slots().size(); ++s) {
    const TensorArgument& slot = call.slots()[s];
    Decision::Move move{
        slot.arg.index, slot.item, slot.spec, made.inputs[s], nullptr, false, facts.written[slot.arg.index]};
    if (slot.spec && move.required && move.required != slot.spec) {
      move.redistribution = std::make_unique<Redistribution>(slot.spec, move.required);
      move.resolves = !slot.plain && (slot.spec->has_partial() ? move.required == without_partial(slot.spec)
                                                               : move.written && slot.spec->is_replicate());
      TORCH_INTERNAL_ASSERT(!move.written || move.resolves, call.name(), ": the plan moves a tensor that is written");
    }
    decision->may_send |= move.redistribution != nullptr;
    decision->moves.push_back(std::move(move));
  }
  decision->may_send |= static_cast<bool>(made.run);
  const std::string& name = op.operator_name().name;
  decision->foreign = made.gathered || !(name.starts_with("aten::") || name.starts_with("moonhalo::"));
  decision->strides = result_strides(op, stack, facts, made);
  decision->any_order = layout_is_unspecified(op, stack, facts, decision->strides);
  return decision;
}

}  // namespace moonhalo
