// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/trivial_mesh_dims.h"

#include <algorithm>

namespace moonhalo {
namespace {

// Null stands for what the call brings.
SpecPtr given(const SpecPtr& required, const TensorArgument& slot) {
  const SpecPtr& spec = required ? required : slot.spec;
  return spec ? without_trivial_mesh_dims(spec) : spec;
}

bool same_inputs(const Plan& plan, const Plan& other, const OpCall& call) {
  for (size_t s = 0; s < call.slots().size(); ++s) {
    if (given(plan.inputs[s], call.slots()[s]) != given(other.inputs[s], call.slots()[s])) return false;
  }
  return true;
}

// A result that is passed on as it is may be made by `run`, placements and all: only an absent gradient is known to be
// none.
bool same_outputs(const Plan& plan, const Plan& other, const OpCall& call) {
  if (plan.outputs.empty() || plan.outputs.size() != other.outputs.size()) return false;
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const SpecPtr &mine = plan.outputs[o], &theirs = other.outputs[o];
    if (!mine != !theirs || (!mine && !call.has("output_mask"))) return false;
    if (mine && without_trivial_mesh_dims(mine) != without_trivial_mesh_dims(theirs)) return false;
  }
  return true;
}

}  // namespace

SpecPtr without_trivial_mesh_dims(const SpecPtr& spec) {
  const DeviceMesh& mesh = *spec->mesh();
  const auto idle = [&](int64_t mesh_dim) { return mesh.size(mesh_dim) == 1 && spec->layout().uses(mesh_dim); };
  bool any = false;
  for (int64_t m = 0; m < mesh.ndim(); ++m) any |= idle(m);
  if (!any) return spec;
  Layout layout = spec->layout();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (mesh.size(m) == 1) layout.partials[m].reset();
  }
  for (Cut& cut : layout.cuts) {
    std::erase_if(cut.mesh_dims, [&](int64_t m) { return mesh.size(m) == 1; });
    if (!cut) cut.sizes.clear();
  }
  return intern(std::move(layout));
}

void reuse_plan(Plan& plan, Plan other, const OpCall& call) {
  if (!same_inputs(plan, other, call) || !same_outputs(plan, other, call)) return;
  plan.argument_overrides = std::move(other.argument_overrides);
  plan.run = std::move(other.run);
  plan.breaks_alias = other.breaks_alias;
}

}  // namespace moonhalo
