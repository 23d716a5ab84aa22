// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "engine/axes.h"
#include "ops/norm.h"

namespace moonhalo {
namespace {

//     input [N, C, spatial...]    weight, bias [C]    mean, rstd [N, groups]
//
// Any dim may be cut, channels also through the middle of a group: every rank sums per channel,
// adds its channels up to groups, and the ranks that share a sample add their groups.
struct GroupShape {
  SpecPtr spec;
  int64_t groups;
  int64_t count;  // elements behind a group's mean

  // Block as [n, c, hw].
  at::Tensor flat(const at::Tensor& block) const {
    int64_t hw = 1;
    for (int64_t d = 2; d < block.dim(); ++d) hw *= block.size(d);
    return widen(block).reshape({block.size(0), block.size(1), hw});
  }
  // Sums of the owned channels [..., c] per group [..., groups]. No product with zeros: a group's
  // NaN is its own.
  at::Tensor per_group(const at::Tensor& values) const {
    const int64_t begin = spec->offsets()[1], end = begin + values.size(-1);
    const int64_t size = spec->global_shape()[1] / groups;
    const int64_t first = begin / size, last = (end + size - 1) / size;
    const at::Tensor whole = at::constant_pad_nd(values, {begin - first * size, last * size - end});
    return at::constant_pad_nd(whole.unflatten(-1, {last - first, size}).sum(-1),
                               {first, groups - last});
  }
  // [n, groups] spread over the owned channels: [n, c, 1].
  at::Tensor spread(const at::Tensor& values) const {
    const int64_t begin = spec->offsets()[1];
    const at::Tensor channel =
        at::arange(begin, begin + spec->local_shape()[1], values.options().dtype(at::kLong));
    return values.index_select(1, channel.floor_divide(spec->global_shape()[1] / groups))
        .unsqueeze(2);
  }
};

at::Tensor times_weight(const at::Tensor& values, const at::Tensor& weight) {
  return weight.defined() ? values * per_channel(widen(weight), 3) : values;
}

struct GroupAxes {
  Axes axes;
  std::vector<int> every;
};

std::optional<GroupAxes> group_axes(const OpCall& call) {
  const SpecPtr input = call.spec("input");
  if (input->ndim() < 2) return std::nullopt;
  if (input->global_shape()[0] != call.integer("N") ||
      input->global_shape()[1] != call.integer("C"))
    return std::nullopt;
  GroupAxes group;
  group.axes.kinds.assign(input->ndim(), AxisKind::kKeep);
  group.axes.inputs.resize(call.slots().size());
  for (int64_t d = 0; d < input->ndim(); ++d) group.every.push_back(static_cast<int>(d));
  group.axes.inputs[call.slot("input")] = group.every;
  for (const char* name : {"weight", "bias"}) {
    if (call.has(name) && call.spec(name)) group.axes.inputs[call.slot(name)] = {1};
  }
  return group;
}

// Whether every rank can run the operator itself on its samples.
bool samples_are_whole(const ShardSpec& spec) {
  for (int64_t d = 1; d < spec.ndim(); ++d) {
    if (spec.is_cut(d)) return false;
  }
  const auto sizes = spec.block_sizes(0);
  return std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
}

GroupShape shape_of(const OpCall& call, const SpecPtr& spec) {
  const int64_t groups = call.integer("group");
  return {spec, groups, global_count(*spec, dims_from(spec->ndim(), 1)) / groups};
}

std::optional<Plan> plan_forward(const OpCall& call) {
  auto group = group_axes(call);
  if (!group) return std::nullopt;
  const auto& shape = call.spec("input")->global_shape();
  const std::vector<int64_t> statistics{shape[0], call.integer("group")};
  group->axes.outputs = {group->every, {0, -1}, {0, -1}};
  group->axes.output_shapes = {shape, statistics, statistics};
  Plan plan = solve(call, group->axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  if (samples_are_whole(*spec)) {
    plan.edits = {{call.index("N"), spec->local_shape()[0]}};
    plan.run = run_contiguous;
    return plan;
  }
  plan.run = [shape = shape_of(call, spec), ranks = CutGroup(spec, dims_from(spec->ndim(), 1)),
              eps = call.value("eps").toDouble()](const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor input = tensor_at(op, stack, 0), weight = tensor_at(op, stack, 1),
                     bias = tensor_at(op, stack, 2);
    const at::Tensor x = shape.flat(input);
    const at::Tensor mean = ranks.all_reduce(shape.per_group(at::sum(x, 2))).div_(shape.count);
    at::Tensor y = at::sub(x, shape.spread(mean));
    const at::Tensor m2 = ranks.all_reduce(shape.per_group(at::sum(y.square(), 2)));
    const at::Tensor rstd = m2.div_(shape.count).add_(eps).rsqrt_();
    const at::Tensor factor = times_weight(shape.spread(rstd), weight);
    if (bias.defined()) {
      at::addcmul_out(y, per_channel(widen(bias), 3), y, factor);
    } else {
      y.mul_(factor);
    }
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    finish(op, stack, y.view(input.sizes()).to(input.scalar_type()), mean.to(kept), rstd.to(kept));
  };
  return plan;
}

// With x^ the normalized input, g = dy * weight, and means over a group:
//     dx = rstd (g - mean(g) - x^ mean(g x^)),   dweight = sum over samples and points of dy x^,
//     dbias = that of dy.
std::optional<Plan> plan_backward(const OpCall& call) {
  auto group = group_axes(call);
  if (!group) return std::nullopt;
  group->axes.inputs[call.slot("grad_out")] = group->every;
  group->axes.inputs[call.slot("mean")] = group->axes.inputs[call.slot("rstd")] = {0, -1};
  group->axes.outputs = {group->every};
  group->axes.output_shapes = {call.spec("input")->global_shape()};
  Plan plan = solve(call, group->axes);
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const SpecPtr affine = reduced_spec(spec, dims_but(spec->ndim(), 1), false, ReduceOp::kSum);
  const auto mask = wanted_gradients(call);
  plan.outputs = masked(mask, {spec, affine, affine});
  if (samples_are_whole(*spec)) {
    plan.edits = {{call.index("N"), spec->local_shape()[0]}};
    plan.run = run_contiguous;
    return plan;
  }
  plan.run = [mask, shape = shape_of(call, spec),
              ranks = CutGroup(spec, dims_from(spec->ndim(), 1))](const c10::OperatorHandle& op,
                                                                  Stack& stack) {
    const at::Tensor input = tensor_at(op, stack, 1), weight = tensor_at(op, stack, 4);
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    const at::Tensor grad = shape.flat(tensor_at(op, stack, 0));
    at::Tensor x = shape.flat(input);
    const at::Tensor rstd = shape.spread(widen(tensor_at(op, stack, 3)));
    x = at::sub(x, shape.spread(widen(tensor_at(op, stack, 2))));
    const at::Tensor sums =
        at::stack({at::sum(grad, 2), at::sum(grad * x, 2).mul_(rstd.squeeze(2))});  // [2, n, c]
    at::Tensor dx, dweight, dbias;
    if (mask[0]) {
      const at::Tensor scaled = weight.defined() ? sums * weight : sums;
      const at::Tensor means = ranks.all_reduce(shape.per_group(scaled)).div_(shape.count);
      // Two passes over the block: what is alike for a channel is multiplied out before.
      const at::Tensor shift = (shape.spread(means[0]) * rstd).neg_(),
                       slope = (shape.spread(means[1]) * rstd.square()).neg_();
      dx = at::addcmul_out(x, shift, x, slope).addcmul_(grad, times_weight(rstd, weight));
      dx = dx.view(input.sizes()).to(input.scalar_type());
    }
    if (mask[1]) dweight = sums[1].sum(0).to(kept);
    if (mask[2]) dbias = sums[0].sum(0).to(kept);
    finish(op, stack, dx, dweight, dbias);
  };
  return plan;
}

constexpr auto* kSource = "PyTorch GroupNorm; Wu, He 2018";
constexpr auto* kSupports =
    "any cut, also through a group; two all-reduces of [N, groups] (backward: one)";

const Register rules{
    {.op = "aten::native_group_norm",
     .plan = plan_forward,
     .source = kSource,
     .supports = kSupports},
    {.op = "aten::native_group_norm_backward",
     .plan = plan_backward,
     .source = kSource,
     .supports = kSupports},
};

}  // namespace
}  // namespace moonhalo
