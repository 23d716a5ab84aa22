// SPDX-License-Identifier: Apache-2.0
// _trilinear, the sum of products of three tensors that bilinear layers are made of: an operator described by axes.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_trilinear(const OpCall& call) {
  const char *const added[] = {"expand1", "expand2", "expand3"}, *const given[] = {"i1", "i2", "i3"};
  Axes axes;
  std::vector<int64_t> extents;
  // Every tensor with the dims of size one that are put in first.
  std::vector<std::vector<int>> places(3);
  for (int s = 0; s < 3; ++s) {
    const auto& shape = call.spec(given[s])->global_shape();
    const auto expanded = call.integers(added[s]);
    const auto ndim = shape.size() + expanded.size();
    TORCH_CHECK_VALUE(extents.empty() || extents.size() == ndim, call.name(), ": the tensors have ", extents.size(),
                      " and ", ndim, " dims\n  have  ", call.describe());
    extents.resize(ndim, 1);
    for (size_t d = 0, next = 0; d < ndim; ++d) {
      if (std::find(expanded.begin(), expanded.end(), static_cast<int64_t>(d)) != expanded.end()) continue;
      places[s].push_back(static_cast<int>(d));
      const int64_t size = shape[next++];
      TORCH_CHECK_VALUE(extents[d] == size || extents[d] == 1 || size == 1, call.name(), ": sizes ", extents[d],
                        " and ", size, " of dim ", d, " do not broadcast\n  have  ", call.describe());
      if (extents[d] == 1) extents[d] = size;
    }
  }
  const auto summed = call.integers("sumdim");
  std::vector<int> output;
  std::vector<int64_t> shape;
  for (size_t d = 0; d < extents.size(); ++d) {
    const bool sum = std::find(summed.begin(), summed.end(), static_cast<int64_t>(d)) != summed.end();
    axes.kinds.push_back(sum ? AxisKind::kReduce : AxisKind::kKeep);
    if (sum) continue;
    output.push_back(static_cast<int>(d));
    shape.push_back(extents[d]);
  }
  for (int s = 0; s < 3; ++s) {
    const auto& sizes = call.spec(given[s])->global_shape();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != extents[places[s][d]]) places[s][d] = -1;
    }
    axes.inputs.push_back(places[s]);
  }
  axes.linear.assign(3, PartialUse::kOneFactor);
  axes.outputs = {std::move(output)};
  axes.output_shapes = {std::move(shape)};
  Plan plan = solve(call, axes);
  plan.run = [shape = plan.outputs[0]->local_shape(), at_i1 = call.arg("i1"), at_i2 = call.arg("i2"),
              at_i3 = call.arg("i3")](LocalCall& call) {
    bool empty = false;
    for (const Arg arg : {at_i1, at_i2, at_i3}) empty |= call.tensor(arg).numel() == 0;
    if (empty) return call.give(at::zeros(shape, call.tensor(at_i1).options()));
    call.run();
  };
  return plan;
}

const Register trilinear_rules{
    {.op = "aten::_trilinear", .plan = plan_trilinear, .supports = "any cut; a cut of a summed dim leaves sums"},
};

}  // namespace
}  // namespace moonhalo
