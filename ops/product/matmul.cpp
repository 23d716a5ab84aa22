// SPDX-License-Identifier: Apache-2.0
// Products of matrices and vectors. A cut of rows or columns stays; a cut contraction leaves sums (Partial).
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/ops/product/contract.h"
#include "moonhalo/ops/support/letters.h"

namespace moonhalo {
namespace {

// The extents of the letters of a product's factors, which are tensors of the call from `first` on.
LetterExtents extents_of(const OpCall& call, const Letters& dims, size_t first) {
  LetterExtents extents;
  for (size_t i = 0; i < dims.inputs.size(); ++i) {
    const std::string_view letters = dims.inputs[i];
    const auto& shape = call.slots()[first + i].spec->global_shape();
    TORCH_CHECK_VALUE(shape.size() == letters.size(), call.name(), ": a tensor of ", shape.size(),
                      " dims where one of ", letters.size(), " is expected\n  have  ", call.describe());
    for (size_t d = 0; d < letters.size(); ++d) {
      TORCH_CHECK_VALUE(extents.match_extent(letters[d], shape[d]), call.name(), ": extents of ",
                        extents.at(letters[d]), " and ", shape[d], " do not fit\n  have  ", call.describe());
    }
  }
  return extents;
}

// The axes of the tensor that is added to the product, broadcast against it; -1 where it is.
std::vector<int> added_axes(const OpCall& call, const std::vector<int>& numbers, const std::vector<int64_t>& product) {
  const bool in_place = call.op.schema().is_mutable();
  const auto& shape = call.spec("self")->global_shape();
  const bool wide = shape.size() > product.size();
  std::vector<int> added;
  for (size_t d = 0; d < shape.size(); ++d) {
    const size_t at = product.size() - shape.size() + d;
    TORCH_CHECK_VALUE(!wide && (shape[d] == product[at] || (shape[d] == 1 && !in_place)), call.name(),
                      ": the added tensor does not broadcast to the product\n  have  ", call.describe(), "\n  fix   ",
                      in_place ? "write to a tensor of the product's shape " : "give one that broadcasts to ",
                      shape_string(product));
    added.push_back(shape[d] == product[at] ? numbers[at] : -1);
  }
  return added;
}

// LibTorch's kernels cut the fractions of factors of integers off, but with nothing to multiply they refuse them: what
// one rank alone would do.
void cut_fractions_off(const OpCall& call, const LetterExtents& extents, Plan& plan) {
  const bool nothing = std::count(extents.extents().begin(), extents.extents().end(), 0) > 0;
  if (nothing || !at::isIntegralType(call.tensor("self").dtype, /*includeBool=*/false) ||
      call.name().find("addr") != std::string::npos)
    return;
  for (const char* factor : {"beta", "alpha"}) {
    const at::Scalar number = call.value(factor).toScalar();
    if (number.isFloatingPoint()) plan.argument_overrides.emplace_back(call.arg(factor), number.to<int64_t>());
  }
}

// Plans the product of two tensors whose dims have a letter each. `adds`: the first tensor of the call is added to it,
// broadcast against it.
std::optional<Plan> plan_product(const OpCall& call, const Letters& dims, bool adds) {
  const bool in_place = call.op.schema().is_mutable();
  const std::string_view out = dims.outputs->front();
  const size_t first = adds ? 1 : 0;
  const LetterExtents extents = extents_of(call, dims, first);
  Axes axes;
  for (const char letter : extents.letters())
    axes.kinds.push_back(out.find(letter) == std::string_view::npos ? AxisKind::kReduce : AxisKind::kKeep);
  std::vector<int64_t> output_shape;
  for (const char letter : out) output_shape.push_back(extents.at(letter));
  // LibTorch's addmv reads an added tensor of another dtype as if it were of the matrix's; the other products refuse
  // it.
  TORCH_CHECK_TYPE(out != "m" || !adds || call.tensor("self").dtype == call.slots()[first].dtype, call.name(),
                   ": the added tensor is ", call.tensor("self").dtype, ", the matrix ", call.slots()[first].dtype,
                   "\n  have  ", call.describe(), "\n  fix   convert them to one type");
  if (adds) {
    axes.inputs.push_back(added_axes(call, extents.numbers(out), output_shape));
    axes.linear.push_back(PartialUse::kResolve);
  }
  for (const std::string_view letters : dims.inputs) axes.inputs.push_back(extents.numbers(letters));
  axes.linear.insert(axes.linear.end(), 2, in_place ? PartialUse::kResolve : PartialUse::kOneFactor);
  axes.outputs.push_back(extents.numbers(out));
  axes.output_shapes.push_back(output_shape);
  if (in_place) {
    axes.fixed_output = 0;
    axes.fixed_spec = without_partial(call.spec("self"));
  }
  if (call.name().find("addr") == std::string::npos) refuse_integers_of_cuda(call);
  Plan plan = solve(call, axes);
  if (!adds) return plan;
  cut_fractions_off(call, extents, plan);
  if (plan.outputs[0]->has_partial()) plan.inputs[0] = with_partials_of(plan.inputs[0], plan.outputs[0]);
  if (call.spec("self")->global_shape() != output_shape) {
    // Kernels disagree about what broadcasts to a block without rows.
    plan.run = [shape = plan.outputs[0]->local_shape(), at_self = call.arg("self")](LocalCall& call) {
      c10::IValue& added = call.value(at_self);
      added = added.toTensor().expand(shape);
      call.run();
    };
  }
  return plan;
}

Rule einsum_rule(OperatorNames op, std::string_view dims, bool adds = false) {
  return {.op = std::move(op),
          .plan = [dims = Letters(dims), adds](const OpCall& call) { return plan_product(call, dims, adds); },
          .supports = "any cut; a cut contraction leaves sums, a Partial operand is passed on"};
}

const Register matmul_rules{
    einsum_rule("aten::mm", "mk,kn->mn"),
    einsum_rule("aten::bmm", "bmk,bkn->bmn"),
    einsum_rule("aten::mv", "mk,k->m"),
    einsum_rule({"aten::dot", "aten::vdot"}, "k,k->"),
    einsum_rule({"aten::addmm", "aten::addmm_"}, "mk,kn->mn", /*adds=*/true),
    einsum_rule({"aten::baddbmm", "aten::baddbmm_"}, "bmk,bkn->bmn", /*adds=*/true),
    einsum_rule({"aten::addbmm", "aten::addbmm_"}, "bmk,bkn->mn", /*adds=*/true),
    einsum_rule({"aten::addmv", "aten::addmv_"}, "mk,k->m", /*adds=*/true),
    einsum_rule({"aten::addr", "aten::addr_"}, "m,n->mn", /*adds=*/true),
};

}  // namespace
}  // namespace moonhalo
