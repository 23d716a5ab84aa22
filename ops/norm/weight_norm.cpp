// SPDX-License-Identifier: Apache-2.0
// Weight normalisation, w = g v / |v|, the norm over all dims but one: one all-reduce of a number per slice where the
// other dims are cut.
#include <ATen/ATen.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

struct Slices {
  SpecPtr v, g;
  std::vector<int64_t> dims;  // over which norms are taken
};

Slices slices_of(const OpCall& call, const SpecPtr& v) {
  const int64_t dim = call.dim("dim", v->ndim());
  Slices slices{without_partial(v), nullptr, all_dims(v->ndim())};
  slices.dims.erase(slices.dims.begin() + dim);
  slices.g = reduced_spec(slices.v, slices.dims, true);
  return slices;
}

void check(const OpCall& call, const Slices& slices, const SpecPtr& g) {
  TORCH_CHECK_VALUE(g->global_shape() == slices.g->global_shape(), call.name(), ": the scales have shape ",
                    shape_string(g->global_shape()), " instead of ", shape_string(slices.g->global_shape()),
                    "\n  have  ", call.describe());
}

std::optional<Plan> plan_weight_norm(const OpCall& call) {
  const Slices slices = slices_of(call, call.spec("v"));
  check(call, slices, call.spec("g"));
  Plan plan{.inputs = {slices.v, slices.g}, .outputs = {slices.v, slices.g}};
  if (!slices.v->has_cut()) return plan;
  plan.run = [dims = slices.dims, group = CutGroup(slices.v, slices.dims), at_v = call.arg("v"),
              at_g = call.arg("g")](LocalCall& call) {
    const at::Tensor given = call.tensor(at_v), g = call.tensor(at_g);
    const at::ScalarType wide = wide_type(given.scalar_type());
    const at::Tensor v = given.to(wide);
    const at::Tensor norms = group.all_reduce(at::sum(v.square(), dims, true)).sqrt_();
    call.give((v * (g.to(wide) / norms)).to(given.scalar_type()), norms);
  };
  return plan;
}

// With the sum s over a slice of dw v:   dg = s / |v|,   dv = g / |v| (dw - v s / |v|^2).
std::optional<Plan> plan_weight_norm_backward(const OpCall& call) {
  const Slices slices = slices_of(call, call.spec("saved_v"));
  Plan plan{.inputs = {slices.v, slices.v, slices.g, slices.g}, .outputs = {slices.v, slices.g}};
  if (!slices.v->has_cut()) return plan;
  plan.run = [dims = slices.dims, group = CutGroup(slices.v, slices.dims), at_saved_v = call.arg("saved_v"),
              at_saved_g = call.arg("saved_g"), at_grad_w = call.arg("grad_w"),
              at_saved_norms = call.arg("saved_norms")](LocalCall& call) {
    const at::Tensor given = call.tensor(at_saved_v), scales = call.tensor(at_saved_g);
    const at::ScalarType wide = wide_type(given.scalar_type());
    const at::Tensor grad = call.tensor(at_grad_w).to(wide), v = given.to(wide), g = scales.to(wide);
    const at::Tensor norms = call.tensor(at_saved_norms).to(wide);
    const at::Tensor sums = group.all_reduce(at::sum(grad * v, dims, true));
    const at::Tensor grad_v = (g / norms) * (grad - v * (sums / norms.square()));
    call.give(grad_v.to(given.scalar_type()), (sums / norms).to(scales.scalar_type()));
  };
  return plan;
}

constexpr auto* kWeightNormSource = "PyTorch weight_norm; Salimans, Kingma 2016";
constexpr auto* kWeightNormSupports = "any cut";

const Register weight_norm_rules{
    {.op = "aten::_weight_norm_interface",
     .plan = plan_weight_norm,
     .source = kWeightNormSource,
     .supports = kWeightNormSupports,
     .traffic = Traffic::kAllReduce},
    {.op = "aten::_weight_norm_interface_backward",
     .plan = plan_weight_norm_backward,
     .source = kWeightNormSource,
     .supports = kWeightNormSupports,
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
