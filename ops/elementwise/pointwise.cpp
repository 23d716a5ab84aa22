// SPDX-License-Identifier: Apache-2.0
// Elementwise operators, found by LibTorch's own tag: any cut, with broadcasting, in place and out=.
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

template <size_t N>
bool among(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Says which tensors may stay sums that are still to be reduced.
std::vector<PartialUse> linearity(const OpCall& call) {
  const std::string name = call.name();
  static constexpr std::array<std::string_view, 5> kSums = {"aten::add.Tensor", "aten::sub.Tensor", "aten::add_.Tensor",
                                                            "aten::sub_.Tensor", "aten::rsub.Tensor"};
  static constexpr std::array<std::string_view, 4> kProducts = {"aten::mul.Tensor", "aten::mul_.Tensor",
                                                                "aten::mul.Scalar", "aten::mul_.Scalar"};
  static constexpr std::array<std::string_view, 6> kOfFirst = {
      "aten::div.Tensor", "aten::div_.Tensor", "aten::div.Scalar", "aten::div_.Scalar", "aten::neg", "aten::neg_"};
  std::vector<PartialUse> linear(call.slots().size(), PartialUse::kResolve);
  if (among(name, kSums)) linear.assign(linear.size(), PartialUse::kAllTerms);
  if (among(name, kProducts)) linear.assign(linear.size(), PartialUse::kOneFactor);
  if (among(name, kOfFirst)) linear[0] = PartialUse::kOneFactor;
  return linear;
}

// LibTorch's derivative of a mean divides its gradient after it was expanded, so every rank would write out as many
// equal numbers as the whole tensor has. What is divided there stays expanded, as a sum's gradient does. (Not in half
// precision: LibTorch multiplies expanded matrices of bfloat16 with sums of bfloat16.)
Run divide(Arg at_self) {
  return [at_self](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    at::Tensor distinct = x;
    bool expanded = false;
    const bool exact = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
    for (int64_t d = 0; exact && d < x.dim(); ++d) {
      if (x.stride(d) != 0 || x.size(d) < 2) continue;
      distinct = distinct.narrow(d, 0, 1);
      expanded = true;
    }
    const auto node = expanded ? torch::autograd::get_current_node() : nullptr;
    const bool kept = node && node->name().starts_with("MeanBackward");
    if (kept) call.value(at_self) = std::move(distinct);
    call.run();
    at::Tensor result = call.result();
    // LibTorch multiplies strides of empty tensors up to 0, which would read as dims that were expanded, on this rank
    // alone.
    if (result.numel() == 0) result = at::empty_like(result, at::MemoryFormat::Contiguous);
    call.give(kept ? result.expand(x.sizes()) : std::move(result));
  };
}

std::optional<Plan> plan_pointwise(const OpCall& call) {
  // The written tensor: self of an in-place operator.
  int target = -1;
  for (size_t s = 0; s < call.slots().size(); ++s) {
    if (call.writes(call.slots()[s].arg)) target = static_cast<int>(s);
  }
  Axes axes = broadcast_axes(call);
  axes.linear = linearity(call);
  if (target >= 0) {
    const SpecPtr& written = call.slots()[target].spec;
    const auto& shape = axes.output_shapes.empty() ? written->global_shape() : axes.output_shapes[0];
    TORCH_CHECK_NOT_IMPLEMENTED(shape == written->global_shape(), call.name(), ": the result has shape ",
                                shape_string(shape), ", the tensor written to ", shape_string(written->global_shape()),
                                "\n  have  ", call.describe(), "\n  fix   use the operator that returns a new tensor");
    if (axes.outputs.empty()) {
      axes.outputs.push_back(axes.inputs[target]);
      axes.output_shapes.push_back(shape);
    }
    axes.fixed_output = 0;
    axes.fixed_spec = written;
  }
  Plan made = solve(call, axes);
  if (call.name() == "aten::div.Scalar") made.run = divide(call.arg("self"));
  return made;
}

const Register pointwise_rules{
    {.op = "moonhalo::pointwise",
     .plan = plan_pointwise,
     .source = "at::Tag::pointwise; broadcasting as in PyTorch",
     .supports = "any cut, broadcasting, in place; sums and scalings keep Partial"},
    // Python's kernels without data call these: in forward mode LibTorch asks for the shape of a sum with zeros.
    {.op = {"prims::add", "prims::sub", "prims::mul", "prims::div"},
     .plan = plan_pointwise,
     .source = "torch._prims",
     .supports = "any cut"},
};

}  // namespace
}  // namespace moonhalo
