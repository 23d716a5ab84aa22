// SPDX-License-Identifier: Apache-2.0
// Operators of forward-mode derivatives on a tensor and its tangent. LibTorch keeps a tangent in the memory layout
// of its tensor, so that views and writes in place can be repeated on it; for blocks that means the same cut, and
// the dims that are not cut in the same order in memory. Every rank must come to the same answer. Operators that are
// intercepted above autograd (products of more than two dims, einsum, circular padding) set the tangents of their
// results themselves: contract.cpp, pad.cpp. Limit: a dual level belongs to the process, so thread ranks share one.
#include <ATen/ATen.h>

#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_alias(const OpCall& call) {
  const Arg self = call.arg({"self", "primal"});
  Plan plan = unary_plan(call, nullptr, {call.spec(self)});
  plan.run = [self](LocalCall& call) { call.give(at::alias(call.tensor(self))); };
  return plan;
}

// Also asks whether view operators give the same on both, which LibTorch reads off the (global) strides.
std::optional<Plan> plan_same_storage(const OpCall& call) {
  const TensorArgument &self = call.tensor("self"), &other = call.tensor("other");
  const SpecPtr spec = without_partial(self.spec);
  const bool identical = self.plain == other.plain && spec == without_partial(other.spec);
  Plan plan;
  plan.inputs.resize(call.slots().size());
  plan.outputs = {nullptr};
  plan.run = [identical, spec, at_self = call.arg("self"), at_other = call.arg("other")](LocalCall& call) {
    const at::Tensor a = call.tensor(at_self), b = call.tensor(at_other);
    bool same = identical;
    for (int64_t d = 0; same && d < spec->ndim(); ++d) {
      same = spec->is_cut(d) || spec->global_shape()[d] < 2 || a.stride(d) == b.stride(d);
    }
    call.give(same);
  };
  return plan;
}

std::optional<Plan> plan_zeros(const OpCall& call) {
  const TensorArgument& other = call.tensor("other");
  Plan plan;
  plan.inputs.resize(call.slots().size());
  plan.outputs = {other.plain ? nullptr : without_partial(other.spec)};
  plan.run = [at_self = call.arg("self"), at_other = call.arg("other")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self), like = call.tensor(at_other);
    call.give(at::empty_strided(like.sizes(), like.strides(), self.options()).zero_());
  };
  return plan;
}

const Register forward_mode_rules{
    {.op = "aten::_fw_primal", .plan = plan_alias, .supports = "any placement"},
    {.op = "aten::_make_dual", .plan = plan_alias, .supports = "any placement; a tangent takes the cut of its tensor"},
    {.op = "aten::_has_same_storage_numel", .plan = plan_same_storage, .supports = "any placement"},
    {.op = "aten::_new_zeros_with_same_feature_meta", .plan = plan_zeros, .supports = "any placement"},
};

}  // namespace
}  // namespace moonhalo
