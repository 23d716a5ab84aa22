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
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/call_origin.h"

namespace moonhalo {
namespace {

/// A tensor of a call that is moved together with others.
struct JoinedMove {
  Arg arg;
  int item;
  std::shared_ptr<const IntervalMap> map;
};

// True if rows of the tensor are all that moves. What may be cached is fetched by itself (unsharded_cache.h).
bool moves_rows_alone(const OpCall& call, const OperatorFacts& facts, const TensorArgument& slot,
                      const SpecPtr& required) {
  if (!slot.spec || !required || required == slot.spec || slot.plain || facts.written[slot.arg.index]) return false;
  if (slot.spec->has_partial() || required->has_partial() || slot.spec->has_stored()) return false;
  const auto& type = call.op.schema().arguments()[slot.arg.index].type();
  return slot.item < 0 || type->isSubtypeOf(*c10::ListType::ofTensors());
}

// The tensors of one dtype that move, by slot, if there are several.
std::map<size_t, JoinedMove> find_joined_moves(const OpCall& call, const OperatorFacts& facts, const Plan& plan) {
  std::map<size_t, JoinedMove> joined;
  if (facts.view || plan.gathered) return joined;
  std::vector<size_t> slots;
  for (size_t s = 0; s < call.slots().size(); ++s) {
    const TensorArgument& slot = call.slots()[s];
    if (!moves_rows_alone(call, facts, slot, plan.inputs[s])) continue;
    if (slots.empty() || slot.dtype == call.slots()[slots[0]].dtype) slots.push_back(s);
  }
  if (slots.size() < 2) return joined;
  for (const size_t s : slots) {
    const TensorArgument& slot = call.slots()[s];
    auto map = std::make_shared<const IntervalMap>(
        slot.spec, [&](int64_t rank) { return requests_for(block_box(*plan.inputs[s], rank)); });
    if (map->exchanges()) joined.emplace(s, JoinedMove{slot.arg, slot.item, std::move(map)});
  }
  if (joined.size() < 2) joined.clear();
  return joined;
}

at::Tensor joined_tensor(LocalCall& call, const JoinedMove& move) {
  const c10::IValue& value = call.value(move.arg);
  return move.item < 0 ? value.toTensor() : value.toTensorVector()[move.item];
}

void replace_tensor(LocalCall& call, const JoinedMove& move, at::Tensor moved) {
  c10::IValue& value = call.value(move.arg);
  if (move.item < 0) {
    value = std::move(moved);
    return;
  }
  c10::List<at::Tensor> list(value.toTensorVector());  // that of the call may be the caller's
  list.set(move.item, std::move(moved));
  value = std::move(list);
}

// Moves these tensors in one exchange before the local call.
Run run_after_moves(const std::map<size_t, JoinedMove>& moves, Run run) {
  std::vector<JoinedMove> joined;
  for (const auto& [slot, move] : moves) joined.push_back(move);
  return [joined = std::move(joined), run = std::move(run)](LocalCall& call) {
    std::vector<at::Tensor> blocks;
    for (const JoinedMove& move : joined) blocks.push_back(joined_tensor(call, move));
    if (blocks[0].is_meta()) {  // LibTorch asks for a shape
      for (const JoinedMove& move : joined)
        replace_tensor(call, move, at::empty(move.map->needed_shape(), blocks[0].options()));
    } else {
      const TrafficScope moving(Traffic::kInputs);
      HaloExchange exchange;
      for (size_t i = 0; i < joined.size(); ++i) exchange.add_gather(*joined[i].map, blocks[i]);
      exchange.start();
      exchange.wait();
      for (size_t i = 0; i < joined.size(); ++i) replace_tensor(call, joined[i], exchange.gathered(i));
    }
    run ? run(call) : call.run();
  };
}

}  // namespace

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
  Plan& made = decision->plan;
  TORCH_INTERNAL_ASSERT(made.inputs.size() == call.slots().size(), call.name(), ": the plan names ", made.inputs.size(),
                        " inputs of ", call.slots().size());
  const auto joined = find_joined_moves(call, facts, made);
  if (!joined.empty()) made.run = run_after_moves(joined, std::move(made.run));
  for (size_t s = 0; s < call.slots().size(); ++s) {
    const TensorArgument& slot = call.slots()[s];
    Decision::Move move{
        slot.arg.index, slot.item, slot.spec, made.inputs[s], nullptr, false, facts.written[slot.arg.index]};
    if (move.is_moved() && !joined.contains(s)) {
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
