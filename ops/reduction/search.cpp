// SPDX-License-Identifier: Apache-2.0
// Places in sorted boundaries and membership of sets. The values looked up stay as they are cut. A rank that holds some
// of the boundaries counts how many of its own stand before a value; the counts add up. A rank that holds some of a
// set answers for these.
#include <ATen/ATen.h>

#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

std::vector<int> axes_from(int first, int64_t count) {
  std::vector<int> axes;
  for (int d = 0; d < static_cast<int>(count); ++d) axes.push_back(first + d);
  return axes;
}

// `values` is null for a number.
std::optional<Plan> plan_places(const OpCall& call, const char* boundaries, const SpecPtr& values) {
  const SpecPtr& edges = call.spec(boundaries);
  const bool lines = edges->ndim() > 1;
  TORCH_CHECK_VALUE(edges->ndim() > 0 && (!lines || (values && values->ndim() == edges->ndim())), call.name(),
                    ": the boundaries must be one sorted line, or one per line of the values\n  have  ",
                    call.describe());
  const int64_t ndim = values ? values->ndim() : 0;
  Axes axes;
  axes.kinds.assign(ndim, AxisKind::kKeep);
  axes.kinds.push_back(call.has("sorter") && call.spec("sorter") ? AxisKind::kUncut : AxisKind::kReduce);
  axes.inputs.resize(call.slots().size());
  const std::vector<int> dims = axes_from(0, ndim);
  if (values) axes.inputs[call.slot("self")] = dims;
  std::vector<int> edge_dims = dims;
  edge_dims.resize(edges->ndim());
  for (int64_t d = 0; d + 1 < edges->ndim(); ++d) {
    TORCH_CHECK_VALUE(edges->global_shape()[d] == values->global_shape()[d], call.name(),
                      ": as many lines of boundaries as of values are expected\n  have  ", call.describe());
  }
  edge_dims.back() = static_cast<int>(ndim);
  axes.inputs[call.slot(boundaries)] = edge_dims;
  if (call.has("sorter") && call.spec("sorter")) axes.inputs[call.slot("sorter")] = edge_dims;
  axes.outputs = {dims};
  axes.output_shapes = {values ? values->global_shape() : std::vector<int64_t>{}};
  return solve(call, axes);
}

std::optional<Plan> plan_searchsorted(const OpCall& call) {
  return plan_places(call, "sorted_sequence", call.slot("self") < 0 ? nullptr : call.spec("self"));
}

std::optional<Plan> plan_bucketize(const OpCall& call) {
  return plan_places(call, "boundaries", call.slot("self") < 0 ? nullptr : call.spec("self"));
}

// Present is present anywhere; with `invert`, absent is absent everywhere.
std::optional<Plan> plan_isin(const OpCall& call) {
  const int elements = call.has("elements") ? call.slot("elements") : -1;
  const int tests = call.has("test_elements") ? call.slot("test_elements") : -1;
  const SpecPtr values = elements < 0 ? nullptr : call.slots()[elements].spec;
  const int64_t ndim = values ? values->ndim() : 0;
  Axes axes;
  axes.kinds.assign(ndim, AxisKind::kKeep);
  axes.reduce = call.flag("invert") ? ReduceOp::kMin : ReduceOp::kMax;
  axes.inputs.resize(call.slots().size());
  axes.outputs = {axes_from(0, ndim)};
  axes.output_shapes = {values ? values->global_shape() : std::vector<int64_t>{}};
  if (values) axes.inputs[elements] = axes.outputs[0];
  if (tests >= 0) {
    const int64_t count = call.slots()[tests].spec->ndim();
    axes.inputs[tests] = axes_from(static_cast<int>(ndim), count);
    axes.kinds.insert(axes.kinds.end(), count, AxisKind::kReduce);
  }
  return solve(call, axes);
}

constexpr auto* kSearchSupports = "any cut of the values; cut boundaries leave counts that add up";

const Register search_rules{
    {.op = "aten::searchsorted", .plan = plan_searchsorted, .supports = kSearchSupports},
    {.op = "aten::bucketize", .plan = plan_bucketize, .supports = kSearchSupports},
    {.op = "aten::isin", .plan = plan_isin, .supports = "any cut of elements and of the set"},
};

}  // namespace
}  // namespace moonhalo
