// SPDX-License-Identifier: Apache-2.0
// Operators of forward-mode derivatives on a tensor and its tangent. LibTorch keeps a tangent in the memory layout
// of its tensor, so that views and writes in place can be repeated on it; for blocks that means the same cut, and
// the dims that are not cut in the same order in memory. Every rank must come to the same answer. Operators that are
// intercepted above autograd (products of more than two dims, einsum, circular padding) set the tangents of their
// results themselves: contract.cpp, pad.cpp. Limit: a dual level belongs to the process, so thread ranks share one.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

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

// vmap calls it for a tangent that has more dims in front than its tensor: one for each level of vmap.
std::optional<Plan> plan_zeros(const OpCall& call) {
  const TensorArgument& other = call.tensor("other");
  const int64_t batch_dims = call.integer("self_num_batch_dims");
  const auto& self_shape = call.spec("self")->global_shape();
  const std::vector<int64_t> batch(self_shape.begin(), self_shape.begin() + batch_dims);
  std::vector<int64_t> shape = batch, source(batch_dims, -1);
  for (int64_t d = 0; d < other.spec->ndim(); ++d) {
    shape.push_back(other.spec->global_shape()[d]);
    source.push_back(d);
  }
  Plan plan;
  plan.inputs.resize(call.slots().size());
  plan.outputs = {other.plain ? nullptr : with_cuts_of(without_partial(other.spec), shape, source)};
  plan.run = [batch, at_self = call.arg("self"), at_other = call.arg("other")](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self), like = call.tensor(at_other);
    std::vector<int64_t> sizes = like.sizes().vec(), strides = like.strides().vec();
    int64_t step = 1;
    for (int64_t d = 0; d < like.dim(); ++d) step += std::max<int64_t>(sizes[d] - 1, 0) * strides[d];
    for (auto size = batch.rbegin(); size != batch.rend(); ++size) {
      sizes.insert(sizes.begin(), *size);
      strides.insert(strides.begin(), step);
      step *= *size;
    }
    call.give(at::empty_strided(sizes, strides, self.options()).zero_());
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
