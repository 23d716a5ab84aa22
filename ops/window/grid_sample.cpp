// SPDX-License-Identifier: Apache-2.0
// grid_sample: every output reads the input wherever its grid point is, so the input's space is whole on every rank;
// batch, channels and the grid's space may be cut. An operator described by axes:
//
//     input [n, c, H, W] x grid [n, h, w, 2] -> [n, c, h, w]        grad_input is summed over h and w, grad_grid over c
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

using Dims = std::vector<int>;

// Axes: batch, channels, the grid's space.
struct Sampling {
  Axes axes;
  Dims input{0, 1}, grid{0}, output{0, 1};
  std::vector<int64_t> output_shape;

  Sampling(const OpCall& call, const ShardSpec& in, const ShardSpec& at) {
    const int64_t ndim = in.ndim(), space = ndim - 2;
    const auto &x = in.global_shape(), &g = at.global_shape();
    TORCH_CHECK_VALUE(at.ndim() == ndim && space >= 2 && g[0] == x[0] && g[ndim - 1] == space, call.name(),
                      ": a grid of shape ", shape_string(g), " for an input of shape ", shape_string(x), "\n  have  ",
                      call.describe(), "\n  fix   give the same batch, and points of ", space, " coordinates");
    output_shape = {x[0], x[1]};
    for (int64_t d = 0; d < space; ++d) {
      input.push_back(-1);
      grid.push_back(static_cast<int>(d) + 2);
      output.push_back(static_cast<int>(d) + 2);
      output_shape.push_back(g[d + 1]);
    }
    grid.push_back(-1);
    axes.kinds.assign(ndim, AxisKind::kKeep);
  }
};

// Spec of a gradient with the axes `dims`: Partial where the gradient of the output, held as `chosen`, is cut along
// others.
SpecPtr summed(const Layout& chosen, const Dims& dims, const std::vector<int64_t>& shape) {
  Layout layout(chosen.mesh, shape);
  layout.partials = chosen.partials;
  for (size_t axis = 0; axis < chosen.cuts.size(); ++axis) {
    const auto at = std::find(dims.begin(), dims.end(), static_cast<int>(axis));
    if (at != dims.end()) layout.cuts[at - dims.begin()] = chosen.cuts[axis];
    for (const int64_t m : chosen.cuts[axis].mesh_dims) {
      if (at == dims.end()) layout.partials[m] = ReduceOp::kSum;
    }
  }
  return intern(std::move(layout));
}

std::optional<Plan> plan_grid_sampler(const OpCall& call) {
  Sampling s(call, *call.spec("input"), *call.spec("grid"));
  s.axes.inputs = {s.input, s.grid};
  s.axes.linear = {PartialUse::kOneFactor, PartialUse::kResolve};
  s.axes.outputs = {s.output};
  s.axes.output_shapes = {s.output_shape};
  Plan plan = solve(call, s.axes);
  plan.run = [shape = plan.outputs[0]->local_shape(), at_input = call.arg("input")](LocalCall& call) {
    if (c10::multiply_integers(shape) > 0) return call.run();
    call.give(at::empty(shape, call.tensor(at_input).options()));
  };
  return plan;
}

std::optional<Plan> plan_grid_sampler_backward(const OpCall& call) {
  const SpecPtr &input = call.spec("input"), &grid = call.spec("grid");
  Sampling s(call, *input, *grid);
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == s.output_shape, call.name(),
                    ": the gradient of the output has shape ", shape_string(call.spec("grad_output")->global_shape()),
                    ", the output ", shape_string(s.output_shape));
  s.axes.inputs = {s.output, s.input, s.grid};
  s.axes.linear = {PartialUse::kOneFactor, PartialUse::kResolve, PartialUse::kResolve};
  const auto mask = call.value("output_mask").toBoolList();
  const bool needs_input_gradient = mask[0];
  s.axes.outputs = {s.output};
  s.axes.output_shapes = {s.output_shape};
  Plan plan = solve(call, s.axes);
  const Layout chosen = plan.outputs[0]->layout();
  plan.outputs = {needs_input_gradient ? summed(chosen, s.input, input->global_shape()) : nullptr,
                  summed(chosen, s.grid, grid->global_shape())};
  plan.run = [needs_input_gradient, at_grad_output = call.arg("grad_output"), at_input = call.arg("input"),
              at_grid = call.arg("grid")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad_output), x = call.tensor(at_input), g = call.tensor(at_grid);
    if (grad.numel() > 0) return call.run();
    call.give(needs_input_gradient ? at::zeros(x.sizes(), x.options()) : at::Tensor(),
              at::zeros(g.sizes(), g.options()));
  };
  return plan;
}

constexpr auto* kGridSampleSupports = "any cut of batch, channels and the grid; a cut of the input's space is gathered";

const Register grid_sample_rules{
    {.op = {"aten::grid_sampler_2d", "aten::grid_sampler_3d"},
     .plan = plan_grid_sampler,
     .supports = kGridSampleSupports},
    {.op = {"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"},
     .plan = plan_grid_sampler_backward,
     .supports = kGridSampleSupports},
};

}  // namespace
}  // namespace moonhalo
