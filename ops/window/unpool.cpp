// SPDX-License-Identifier: Apache-2.0
// Pooling by random windows and the way back from pooled maxima: positions count inside a plane, so planes are whole
// and batch and channels stay cut.
#include <ATen/ATen.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"

namespace moonhalo {
namespace {

using Shape = std::vector<int64_t>;

// All slots and results have the batch and channels of `self` first and then dims of their own: `own[s]` many for slot
// s.
Plan plan_planes(const OpCall& call, const std::vector<int64_t>& own, const std::vector<Shape>& results,
                 const std::vector<at::ScalarType>& dtypes) {
  const SpecPtr& self = call.spec("self");
  const int64_t planes = self->ndim() - own[call.slot("self")];
  TORCH_CHECK_VALUE(planes == 1 || planes == 2, call.name(), ": an input of ", self->ndim(), " dims\n  have  ",
                    call.describe(), "\n  fix   give channels, or batch and channels, and ", own[call.slot("self")],
                    " dims of space");
  Axes axes;
  axes.kinds.assign(planes, AxisKind::kKeep);
  const auto place = [&](const Shape& shape, int64_t space) {
    std::vector<int> dims(shape.size(), -1);
    const int64_t leading = static_cast<int64_t>(shape.size()) - space;
    for (int64_t axis = 0; axis < planes; ++axis) {
      const int64_t d = leading - planes + axis;
      if (d >= 0 && shape[d] == self->global_shape()[axis]) dims[d] = static_cast<int>(axis);
    }
    return dims;
  };
  for (size_t s = 0; s < own.size(); ++s) axes.inputs.push_back(place(call.slots()[s].spec->global_shape(), own[s]));
  for (const Shape& shape : results) {
    axes.outputs.push_back(place(shape, static_cast<int64_t>(shape.size()) - planes));
    axes.output_shapes.push_back(shape);
  }
  Plan plan = solve(call, axes);
  const SpecPtr kept = plan.inputs[call.slot("self")];
  bool empty = false;  // kernels refuse a block without planes
  for (int64_t d = 0; d < planes; ++d) empty |= kept->local_shape()[d] == 0 && kept->global_shape()[d] > 0;
  if (!empty) {
    // A block may be a part of the channels, and kernels read positions one behind the other.
    plan.run = [](LocalCall& call) {
      for (c10::IValue& value : call.values()) {
        if (value.isTensor()) value = value.toTensor().contiguous();
      }
      call.run();
    };
    return plan;
  }
  plan.run = [outputs = plan.outputs, dtypes, at = call.arg("self")](LocalCall& call) {
    const auto options = call.tensor(at).options();
    call.give();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto dtype = dtypes[i] == at::kLong ? at::kLong : c10::typeMetaToScalarType(options.dtype());
      call.add(at::empty(outputs[i]->local_shape(), options.dtype(dtype)));
    }
  };
  return plan;
}

Shape pooled(const OpCall& call, int64_t space) {
  Shape shape = call.spec("self")->global_shape();
  const auto size = call.integers("output_size");
  TORCH_CHECK_VALUE(static_cast<int64_t>(size.size()) == space && static_cast<int64_t>(shape.size()) > space,
                    call.name(), ": output_size and the input do not fit\n  have  ", call.describe(), "\n  fix   give ",
                    space, " sizes, and an input with channels and ", space, " dims of space");
  std::copy(size.begin(), size.end(), shape.end() - space);
  return shape;
}

template <int64_t kSpace>
std::optional<Plan> plan_fractional(const OpCall& call) {
  call.output_shapes();  // LibTorch's words for arguments that do not fit
  const Shape shape = pooled(call, kSpace);
  return plan_planes(call, {kSpace, 1}, {shape, shape}, {at::kFloat, at::kLong});
}

template <int64_t kSpace>
std::optional<Plan> plan_fractional_backward(const OpCall& call) {
  return plan_planes(call, {kSpace, kSpace, kSpace}, {call.spec("self")->global_shape()}, {at::kFloat});
}

template <int64_t kSpace>
std::optional<Plan> plan_unpool(const OpCall& call) {
  const auto &self = call.spec("self")->global_shape(), &indices = call.spec("indices")->global_shape();
  TORCH_CHECK_VALUE(self == indices, call.name(), ": indices of shape ", shape_string(indices), " for values of shape ",
                    shape_string(self), "\n  have  ", call.describe(), "\n  fix   give one index for each value");
  return plan_planes(call, {kSpace, kSpace}, {pooled(call, kSpace)}, {at::kFloat});
}

constexpr auto* kUnpoolSupports = "any cut of batch and channels; a cut of space is gathered";

const Register unpool_rules{
    {.op = "aten::fractional_max_pool2d", .plan = plan_fractional<2>, .supports = kUnpoolSupports},
    {.op = "aten::fractional_max_pool3d", .plan = plan_fractional<3>, .supports = kUnpoolSupports},
    {.op = "aten::fractional_max_pool2d_backward", .plan = plan_fractional_backward<2>, .supports = kUnpoolSupports},
    {.op = "aten::fractional_max_pool3d_backward", .plan = plan_fractional_backward<3>, .supports = kUnpoolSupports},
    {.op = "aten::max_unpool2d", .plan = plan_unpool<2>, .supports = kUnpoolSupports},
    {.op = "aten::max_unpool3d", .plan = plan_unpool<3>, .supports = kUnpoolSupports},
};

}  // namespace
}  // namespace moonhalo
