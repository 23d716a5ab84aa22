// SPDX-License-Identifier: Apache-2.0
// Views that rearrange, add or drop whole dims: every dim of the result takes the cut of the dim it comes from.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// Gradients of replicated weights are Partial and pass through t(), so transpositions leave them lazy.
Plan rearranged(const OpCall& call, const std::vector<int64_t>& source, const std::vector<int64_t>& shape) {
  return unary_plan(call, nullptr, {with_cuts_of(call.spec("self"), shape, source)});
}

std::optional<Plan> plan_permute(const OpCall& call) {
  const SpecPtr& self = call.spec("self");
  std::vector<int64_t> source = call.integers("dims");
  for (int64_t& d : source) d = d < 0 ? d + self->ndim() : d;
  return rearranged(call, source, *call.output_shapes()[0]);
}

std::optional<Plan> plan_transpose(const OpCall& call) {
  const SpecPtr& self = call.spec("self");
  std::vector<int64_t> source = all_dims(self->ndim());
  const auto shape = *call.output_shapes()[0];
  if (call.has("dim0")) {
    if (self->ndim() > 0) std::swap(source[call.dim("dim0", self->ndim())], source[call.dim("dim1", self->ndim())]);
  } else {
    std::reverse(source.begin(), source.end());
  }
  return rearranged(call, source, shape);
}

std::optional<Plan> plan_same(const OpCall& call) { return unary_plan(call, nullptr, {call.spec("self")}); }

std::optional<Plan> plan_unsqueeze(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  std::vector<int64_t> source = all_dims(self->ndim());
  const auto shape = *call.output_shapes()[0];
  source.insert(source.begin() + call.dim("dim", self->ndim() + 1), -1);
  return unary_plan(call, self, {with_cuts_of(self, shape, source)});
}

std::optional<Plan> plan_squeeze(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  std::vector<int64_t> asked;
  if (!call.has("dim")) {
    asked = all_dims(self->ndim());
  } else if (call.value("dim").isInt()) {
    if (self->ndim() > 0) asked = {call.dim("dim", self->ndim())};
  } else {
    for (const int64_t d : call.integers("dim")) asked.push_back(d < 0 ? d + self->ndim() : d);
  }
  std::vector<int64_t> dropped, source;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    const bool drop = self->global_shape()[d] == 1 && std::find(asked.begin(), asked.end(), d) != asked.end();
    (drop ? dropped : source).push_back(d);
  }
  const SpecPtr required = without_cuts(self, dropped);
  Plan plan = unary_plan(call, required, {with_cuts_of(required, shape, source)});
  // A block may have one row where the tensor has several, so the dims are named.
  const bool fresh = call.name().find("_copy") != std::string::npos;
  plan.run = [dropped, fresh, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    const at::Tensor squeezed = dropped.empty() ? local.alias() : local.squeeze(dropped);
    call.give(fresh ? squeezed.clone() : squeezed);
  };
  return plan;
}

std::optional<Plan> plan_expand(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const int64_t added = static_cast<int64_t>(shape.size()) - self->ndim();
  std::vector<int64_t> source(shape.size(), -1), stretched;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (self->global_shape()[d] == shape[d + added]) {
      source[d + added] = d;
    } else {
      stretched.push_back(d);
    }
  }
  const SpecPtr required = without_cuts(self, stretched);
  const SpecPtr result = with_cuts_of(required, shape, source);
  Plan plan = unary_plan(call, required, {result});
  if (call.name() == "aten::expand_copy") {
    plan.argument_overrides = {{call.arg("size"), int_list(result->local_shape())}};
  } else {
    // Called as a function: a list unpacked from the stack costs more than the view.
    plan.run = [result, at_self = call.arg("self")](LocalCall& call) {
      at::Tensor view = call.tensor(at_self).expand(result->local_shape());
      call.give(std::move(view));
    };
  }
  return plan;
}

std::optional<Plan> plan_view_as_real(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  std::vector<int64_t> source = all_dims(self->ndim());
  source.push_back(-1);
  return unary_plan(call, self, {with_cuts_of(self, shape, source)});
}

// True if the pairs are as complex numbers do. A block may begin at an odd place where the whole does not.
bool holds_complex(const at::Tensor& pairs) {
  const at::IntArrayRef strides = pairs.strides();
  return pairs.storage_offset() % 2 == 0 && strides.back() == 1 &&
         std::all_of(strides.begin(), strides.end() - 1, [](int64_t stride) { return stride % 2 == 0; });
}

std::optional<Plan> plan_view_as_complex(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const SpecPtr required = without_cuts(self, {self->ndim() - 1});
  Plan plan = unary_plan(call, required, {with_cuts_of(required, shape, all_dims(self->ndim() - 1))});
  const bool fresh = call.name() == "aten::view_as_complex_copy";
  plan.run = [fresh, at_self = call.arg("self")](LocalCall& call) {
    at::Tensor pairs = call.tensor(at_self);
    if (fresh) {
      pairs = pairs.clone(at::MemoryFormat::Contiguous);
    } else if (!holds_complex(pairs)) {
      mark_copied(pairs = pairs.clone(at::MemoryFormat::Contiguous));
    }
    call.give(at::view_as_complex(pairs));
  };
  return plan;
}

// The lazy bits would hide from whatever reads a block's memory, so they are carried out at once.
template <at::Tensor (*physical)(const at::Tensor&)>
std::optional<Plan> plan_lazy_bit(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  Plan plan = unary_plan(call, self, {self});
  plan.breaks_alias = true;
  plan.run = [at_self = call.arg("self")](LocalCall& call) {
    at::Tensor result = physical(call.tensor(at_self));
    mark_copied(result, physical,
                [](const at::Tensor& copy, const at::Tensor& original) { original.copy_(physical(copy)); });
    call.give(std::move(result));
  };
  return plan;
}

const char* const kDimsAny = "any cut";

const Register dims_rules{
    {.op = {"aten::permute", "aten::permute_copy"}, .plan = plan_permute, .supports = kDimsAny},
    {.op = {"aten::transpose.int", "aten::transpose_copy.int", "aten::t", "aten::t_copy"},
     .plan = plan_transpose,
     .supports = kDimsAny},
    {.op = {"aten::alias", "aten::alias_copy", "aten::detach", "aten::detach_copy"},
     .plan = plan_same,
     .supports = kDimsAny},
    {.op = {"aten::unsqueeze", "aten::unsqueeze_copy"}, .plan = plan_unsqueeze, .supports = kDimsAny},
    {.op = {"aten::squeeze", "aten::squeeze_copy"}, .plan = plan_squeeze, .supports = kDimsAny},
    {.op = {"aten::expand", "aten::expand_copy"}, .plan = plan_expand, .supports = kDimsAny},
    {.op = {"aten::view_as_real", "aten::view_as_real_copy"}, .plan = plan_view_as_real, .supports = kDimsAny},
    {.op = {"aten::view_as_complex_copy", "aten::view_as_complex"},
     .plan = plan_view_as_complex,
     .supports = "any cut; one of the last dim is gathered"},
    {.op = "aten::_conj_copy", .plan = plan_lazy_bit<at::conj_physical>, .supports = "any cut"},
    {.op = "aten::_neg_view_copy", .plan = plan_lazy_bit<at::neg>, .supports = "any cut"},
    {.op = "aten::_conj", .plan = plan_lazy_bit<at::conj_physical>, .supports = "any cut; carried out at once"},
    {.op = "aten::_neg_view", .plan = plan_lazy_bit<at::neg>, .supports = "any cut; carried out at once"},
};

}  // namespace
}  // namespace moonhalo
