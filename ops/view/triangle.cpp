// SPDX-License-Identifier: Apache-2.0
// tril and triu: in a block that begins at row r and column c the diagonal is k + r - c.
#include <ATen/ATen.h>

#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_triangle(const OpCall& call) {
  const bool in_place = call.writes("self");
  const SpecPtr self = in_place ? without_partial(call.spec("self")) : resolve_nonlinear(call.spec("self"));
  const int64_t ndim = self->ndim();
  TORCH_CHECK_VALUE(ndim >= 2, call.name(), ": a tensor of ", ndim, " dims has no diagonal\n  have  ", call.describe());
  Plan plan = unary_plan(call, self, {self});
  const int64_t shift = self->offsets()[ndim - 2] - self->offsets()[ndim - 1];
  plan.argument_overrides = {{call.arg("diagonal"), c10::IValue(call.integer("diagonal") + shift)}};
  return plan;
}

const char* const kTriangleAny = "any cut";

const Register triangle_rules{
    {.op = {"aten::tril", "aten::tril_", "aten::triu", "aten::triu_"}, .plan = plan_triangle, .supports = kTriangleAny},
};

}  // namespace
}  // namespace moonhalo
