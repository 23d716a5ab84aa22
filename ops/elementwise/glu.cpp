// SPDX-License-Identifier: Apache-2.0
// glu: the first half of a dim times the sigmoid of the second. Along a cut dim each rank fetches the two runs of rows
// that make up its part of the result, and sends their gradients back (PackedDim).
#include <ATen/ATen.h>

#include <memory>

#include "moonhalo/ops/support/packed_dim.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

SpecPtr halved(const SpecPtr& self, int64_t dim) {
  const int64_t rows = self->global_shape()[dim] / 2;
  Cut cut = self->cut(dim);
  if (cut) cut.sizes = balanced_sizes(rows, static_cast<int64_t>(cut.sizes.size()));
  return with_cut(self, dim, std::move(cut), rows);
}

struct Halves {
  SpecPtr self, result;
  int64_t dim = 0;
  std::shared_ptr<const PackedDim> packed;  // null where the dim is whole

  at::Tensor fetch(const at::Tensor& local) const { return packed->unpack(local).flatten(dim, dim + 1); }
};

Halves halves_of(const OpCall& call, const char* argument = "self") {
  const SpecPtr self = without_partial(call.spec(argument));
  TORCH_CHECK_VALUE(self->ndim() > 0, call.name(), ": a tensor without dims has no halves\n  have  ", call.describe());
  Halves halves{.self = self, .dim = call.dim("dim", self->ndim())};
  const int64_t rows = self->global_shape()[halves.dim];
  TORCH_CHECK_VALUE(rows % 2 == 0, call.name(), ": dim ", halves.dim, " has ", rows,
                    " rows, which is not even\n  have  ", call.describe(), "\n  fix   choose a dim of even extent");
  halves.result = halved(self, halves.dim);
  if (!self->is_cut(halves.dim)) return halves;
  const SpecPtr parts = with_parts(self, halves.dim, 2, halves.result->cut(halves.dim).sizes);
  halves.packed = std::make_shared<const PackedDim>(self, parts, halves.dim);
  return halves;
}

std::optional<Plan> plan_glu(const OpCall& call) {
  const Halves halves = halves_of(call);
  Plan plan = unary_plan(call, halves.self, {halves.result});
  if (!halves.packed) return plan;
  plan.run = [halves, at_self = call.arg("self")](LocalCall& call) {
    call.give(at::glu(halves.fetch(call.tensor(at_self)), halves.dim));
  };
  return plan;
}

std::optional<Plan> plan_glu_backward(const OpCall& call) {
  const Halves halves = halves_of(call);
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == halves.result->global_shape(), call.name(),
                    ": the gradient has not the shape of the result\n  have  ", call.describe());
  Plan plan;
  plan.inputs = {halves.result, halves.self};
  plan.outputs = {halves.self};
  if (!halves.packed) return plan;
  plan.run = [halves, at_grad_output = call.arg("grad_output"), at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad_output);
    const at::Tensor both = at::glu_backward(grad, halves.fetch(call.tensor(at_self)), halves.dim);
    call.give(halves.packed->pack(both.unflatten(halves.dim, {2, grad.size(halves.dim)})));
  };
  return plan;
}

// The derivative of glu along dx. `glu` is its result.
std::optional<Plan> plan_glu_jvp(const OpCall& call) {
  const Halves halves = halves_of(call, "x");
  Plan plan{.inputs = {halves.result, halves.self, halves.self}, .outputs = {halves.result}};
  if (!halves.packed) return plan;
  plan.run = [halves, at_glu = call.arg("glu"), at_x = call.arg("x"), at_dx = call.arg("dx")](LocalCall& call) {
    const auto fetched = [&](Arg arg) { return halves.fetch(call.tensor(arg)); };
    const at::Tensor x = fetched(at_x), dx = fetched(at_dx);
    call.give(at::glu_jvp(call.tensor(at_glu), x, dx, halves.dim));
  };
  return plan;
}

const char* const kAny = "any cut";

const Register glu_rules{
    {.op = "aten::glu", .plan = plan_glu, .supports = kAny, .traffic = Traffic::kHalo},
    {.op = "aten::glu_backward", .plan = plan_glu_backward, .supports = kAny, .traffic = Traffic::kHalo},
    {.op = "aten::glu_jvp", .plan = plan_glu_jvp, .supports = kAny, .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
