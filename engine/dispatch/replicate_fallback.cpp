// SPDX-License-Identifier: Apache-2.0
// Calls that no rule covers: every rank gets the whole of every tensor and does the same work, or the call is refused.
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/tensor/memory_order.h"

namespace moonhalo {
namespace {

// A tensor that is written is gathered into a copy, and the owned block of the outcome put back.
Run write_back(std::vector<std::pair<Arg, SpecPtr>> targets) {
  return [targets = std::move(targets)](LocalCall& call) {
    std::vector<std::pair<at::Tensor, at::Tensor>> written;  // block, gathered copy
    for (const auto& [arg, spec] : targets) {
      c10::IValue& value = call.value(arg);
      at::Tensor block = value.toTensor();
      at::Tensor full = redistribute_local(block, spec, replicated(spec->mesh(), spec->global_shape()));
      full = full.is_alias_of(block) ? full.clone() : laid_as(full, block.strides());
      value = full;
      written.emplace_back(std::move(block), std::move(full));
    }
    call.run();
    for (size_t i = 0; i < written.size(); ++i) {
      const SpecPtr& spec = targets[i].second;
      auto& [block, full] = written[i];
      TORCH_CHECK_NOT_IMPLEMENTED(full.sizes() == at::IntArrayRef(spec->global_shape()), call.op.operator_name().name,
                                  ": a ShardTensor cannot be resized in place\n  have  ", spec->to_string(),
                                  "\n  fix   use the operator that returns a new tensor");
      block.copy_(redistribute_local(full, replicated(spec->mesh(), spec->global_shape()), spec));
    }
  };
}

}  // namespace

Plan gather_plan(const OperatorFacts& facts, const OpCall& call, Fallback fallback) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !facts.random, call.name(),
      ": no rule for this random operator; gathered, ranks would draw different values\n  have  ", call.describe(),
      "\n  fix   use dropout, rand_like, randn_like, bernoulli or an in-place "
      "initialiser, or draw a plain tensor from a seeded generator and distribute it");
  TORCH_CHECK_NOT_IMPLEMENTED(
      fallback == Fallback::kReplicate, call.name(), ": no rule for these placements\n  have  ", call.describe(),
      "\n  fix   redistribute the cut dims first, or set_fallback(replicate) to ", "gather its tensors");
  Plan plan;
  plan.gathered = true;
  plan.breaks_alias = facts.view;
  std::vector<std::pair<Arg, SpecPtr>> targets;
  for (const TensorArgument& slot : call.slots()) {
    if (!slot.spec) {
      plan.inputs.push_back(nullptr);
    } else if (!facts.written[slot.arg.index]) {
      plan.inputs.push_back(replicated(call.mesh(), slot.spec->global_shape()));
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(slot.item < 0, call.name(),
                                  ": no rule for writing to a list of ShardTensors\n  have  ", call.describe(),
                                  "\n  fix   write to the tensors one by one");
      plan.inputs.push_back(without_partial(slot.spec));
      targets.emplace_back(slot.arg, plan.inputs.back());
    }
  }
  if (!targets.empty()) plan.run = write_back(std::move(targets));
  return plan;
}

}  // namespace moonhalo
