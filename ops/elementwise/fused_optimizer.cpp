// SPDX-License-Identifier: Apache-2.0
// Fused optimizers and the scaler of gradients: elementwise over lists. Each parameter's gradient and states are
// brought to the parameter's own cut for the step, and states return to theirs.
#include <ATen/ATen.h>

#include <vector>

#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/redistribution.h"

namespace moonhalo {
namespace {

struct Move {
  Arg arg;
  int item;
  SpecPtr own, required;
  bool back;  // the outcome is put back
};

struct Moved {
  at::Tensor before, now;
};

// Puts copies held as required into the lists. Moves are sorted by argument.
std::vector<Moved> move_items(LocalCall& call, const std::vector<Move>& moves) {
  std::vector<Moved> moved;
  for (size_t m = 0; m < moves.size();) {
    const Arg arg = moves[m].arg;
    c10::IValue& value = call.value(arg);
    std::vector<at::Tensor> items = value.toTensorVector();
    for (; m < moves.size() && moves[m].arg == arg; ++m) {
      at::Tensor& item = items[moves[m].item];
      at::Tensor now = redistribute_local(item, moves[m].own, moves[m].required);
      if (now.is_alias_of(item)) now = now.clone();
      moved.push_back({item, now});
      item = now;
    }
    value = c10::List<at::Tensor>(items);
  }
  return moved;
}

std::optional<Plan> plan_step(const OpCall& call) {
  if (call.op.schema().returns().size() > 0) return std::nullopt;  // the variant that makes new tensors
  Plan plan;
  std::vector<Move> moves;
  const bool scales = call.has("grad_scale") && call.spec("grad_scale");
  const Arg grads = call.find({"grads"});
  for (const TensorArgument& slot : call.slots()) {
    if (!slot.spec) {
      plan.inputs.push_back(nullptr);
      continue;
    }
    const SpecPtr own = without_partial(slot.spec);
    const SpecPtr parameter = slot.item < 0 ? nullptr : without_partial(call.spec("self", slot.item));
    const bool written = call.writes(slot.arg) && !(slot.arg == grads && !scales);
    const bool same_shape = parameter && parameter->global_shape() == own->global_shape();
    const SpecPtr required = same_shape ? parameter : replicated(call.mesh(), own->global_shape());
    // The dispatcher leaves what the schema calls written where it is, so those items move in the run.
    const bool stays = call.writes(slot.arg);
    plan.inputs.push_back(stays ? own : required);
    if (stays && own != required) moves.push_back({slot.arg, slot.item, own, required, written});
  }
  if (moves.empty()) return plan;
  plan.run = [moves](LocalCall& call) {
    const std::vector<Moved> moved = move_items(call, moves);
    call.run();
    for (size_t m = 0; m < moves.size(); ++m) {
      if (!moves[m].back) continue;
      moved[m].before.copy_(redistribute_local(moved[m].now, moves[m].required, moves[m].own));
    }
  };
  return plan;
}

// Unscales gradients in place and tells whether any, on any rank, was infinite or no number.
std::optional<Plan> plan_unscale(const OpCall& call) {
  Plan plan;
  for (const TensorArgument& slot : call.slots())
    plan.inputs.push_back(slot.spec ? without_partial(slot.spec) : nullptr);
  const SpecPtr found = plan.inputs[call.slot("found_inf")];
  TORCH_CHECK_NOT_IMPLEMENTED(found->is_replicate(), call.name(), ": found_inf is cut\n  have  ", call.describe(),
                              "\n  fix   keep it replicated, it is one number");
  plan.run = [mesh = call.mesh(), at_found = call.arg("found_inf")](LocalCall& call) {
    at::Tensor found = call.tensor(at_found);
    call.run();
    at::Tensor any = found.clone().contiguous();
    mesh->group().all_reduce(any, ReduceOp::kMax);
    found.copy_(any);
  };
  return plan;
}

constexpr auto* kFusedOptimizerSupports = "any cut of every tensor; states of a parameter's own cut do not move";

const Register fused_optimizer_rules{
    {.op = {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_"},
     .plan = plan_step,
     .supports = kFusedOptimizerSupports,
     .traffic = Traffic::kRedistribute},
    {.op = "aten::_amp_foreach_non_finite_check_and_unscale_",
     .plan = plan_unscale,
     .supports = "any cut",
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
