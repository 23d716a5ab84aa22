// SPDX-License-Identifier: Apache-2.0
// Products of matrices and vectors. A cut of rows or columns stays; a cut contraction leaves sums
// (Partial).
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {
namespace {

// "mk,kn->mn": one letter per dim. `adds`: the first tensor is added to the product, broadcast
// against it.
struct Product {
  std::string_view op, dims;
  bool adds = false;
};

constexpr Product kProducts[] = {
    {"aten::mm", "mk,kn->mn"},
    {"aten::bmm", "bmk,bkn->bmn"},
    {"aten::mv", "mk,k->m"},
    {"aten::dot", "k,k->"},
    {"aten::vdot", "k,k->"},
    {"aten::addmm", "mk,kn->mn", true},
    {"aten::baddbmm", "bmk,bkn->bmn", true},
    {"aten::addbmm", "bmk,bkn->mn", true},
    {"aten::addmv", "mk,k->m", true},
    {"aten::addr", "m,n->mn", true},
};

const Product& product_of(const OpCall& call) {
  const std::string& name = call.op.operator_name().name;
  for (const Product& product : kProducts) {
    if (name == product.op || name == std::string(product.op) + "_") return product;
  }
  TORCH_INTERNAL_ASSERT(false, "no product named ", name);
}

std::optional<Plan> plan_product(const OpCall& call) {
  const Product& product = product_of(call);
  const bool in_place = call.op.schema().is_mutable();

  const auto comma = product.dims.find(','), arrow = product.dims.find("->");
  const std::string_view left = product.dims.substr(0, comma), out = product.dims.substr(arrow + 2);
  const std::string_view right = product.dims.substr(comma + 1, arrow - comma - 1);
  Axes axes;
  std::string letters;
  const auto axis_of = [&](char letter) {
    if (letters.find(letter) == std::string::npos) {
      letters += letter;
      axes.kinds.push_back(out.find(letter) == std::string_view::npos ? AxisKind::kReduce : AxisKind::kKeep);
    }
    return static_cast<int>(letters.find(letter));
  };
  const auto axes_of = [&](std::string_view dims) {
    std::vector<int> result;
    for (const char letter : dims) result.push_back(axis_of(letter));
    return result;
  };
  std::vector<int64_t> extents;
  const auto measure = [&](size_t slot, std::string_view dims) {
    const auto& shape = call.slots()[slot].spec->global_shape();
    TORCH_CHECK_VALUE(shape.size() == dims.size(), call.name(), ": a tensor of ", shape.size(),
                      " dims where one of ", dims.size(), " is expected\n  have  ",
                      call.describe());
    for (size_t d = 0; d < dims.size(); ++d) {
      const auto axis = static_cast<size_t>(axis_of(dims[d]));
      if (axis == extents.size()) extents.push_back(shape[d]);
      TORCH_CHECK_VALUE(extents[axis] == shape[d], call.name(), ": extents of ", extents[axis],
                        " and ", shape[d], " do not fit\n  have  ", call.describe());
    }
  };
  const size_t first = product.adds ? 1 : 0;
  measure(first, left);
  measure(first + 1, right);
  std::vector<int64_t> output_shape;
  for (const char letter : out) output_shape.push_back(extents[axis_of(letter)]);
  // LibTorch's addmv reads an added tensor of another dtype as if it were of the matrix's; the other products refuse
  // it.
  TORCH_CHECK_TYPE(out != "m" || !product.adds || call.tensor("self").dtype == call.slots()[first].dtype, call.name(),
                   ": the added tensor is ", call.tensor("self").dtype, ", the matrix ", call.slots()[first].dtype, "\n  have  ",
                   call.describe(), "\n  fix   convert them to one type");
  if (product.adds) {
    std::vector<int> dims;
    const auto& shape = call.spec("self")->global_shape();
    const bool wide = shape.size() > out.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t extent = wide ? 0 : output_shape[out.size() - shape.size() + d];
      TORCH_CHECK_VALUE(!wide && (shape[d] == extent || (shape[d] == 1 && !in_place)), call.name(),
                        ": the added tensor does not broadcast to the product\n  have  ",
                        call.describe(), "\n  fix   ",
                        in_place ? "write to a tensor of the product's shape " : "give one that broadcasts to ",
                        shape_string(output_shape));
      const size_t at = out.size() - shape.size() + d;
      dims.push_back(shape[d] == output_shape[at] ? axis_of(out[at]) : -1);
    }
    axes.inputs.push_back(std::move(dims));
    axes.linear.push_back(PartialUse::kResolve);
  }
  axes.inputs.push_back(axes_of(left));
  axes.inputs.push_back(axes_of(right));
  axes.linear.insert(axes.linear.end(), 2, in_place ? PartialUse::kResolve : PartialUse::kOneFactor);
  axes.outputs.push_back(axes_of(out));
  axes.output_shapes.push_back(output_shape);
  if (in_place) {
    axes.fixed_output = 0;
    axes.fixed_spec = without_partial(call.spec("self"));
  }
  Plan plan = solve(call, axes);
  // LibTorch's kernels cut the fractions of factors of integers off, but with nothing to multiply they refuse them:
  // what one rank alone would do.
  const bool nothing = std::find(extents.begin(), extents.end(), 0) != extents.end();
  if (product.adds && !nothing && at::isIntegralType(call.tensor("self").dtype, /*includeBool=*/false) &&
      call.name().find("addr") == std::string::npos) {
    for (const char* factor : {"beta", "alpha"}) {
      const at::Scalar number = call.value(factor).toScalar();
      if (number.isFloatingPoint()) plan.edits.emplace_back(call.arg(factor), number.to<int64_t>());
    }
  }
  if (product.adds && plan.outputs[0]->has_partial()) {
    // Every rank adds its share of the product, but only one of them the added tensor.
    Layout added = plan.inputs[0]->layout();
    for (int64_t m = 0; m < call.mesh()->ndim(); ++m) added.partials[m] = plan.outputs[0]->partial(m);
    plan.inputs[0] = intern(std::move(added));
  }
  if (product.adds && call.spec("self")->global_shape() != output_shape) {
    // Kernels disagree about what broadcasts to a block without rows.
    plan.run = [shape = plan.outputs[0]->local_shape(), at_self = call.arg("self")](LocalCall& call) {
      c10::IValue& added = call.value(at_self);
      added = added.toTensor().expand(shape);
      call.run();
    };
  }
  return plan;
}

constexpr const char* kSupports = "any cut; a cut contraction leaves sums, a Partial operand is passed on";

const Register rules{
    {.op = "aten::mm", .plan = plan_product, .source = "PyTorch mm", .supports = kSupports},
    {.op = "aten::bmm", .plan = plan_product, .source = "PyTorch bmm", .supports = kSupports},
    {.op = "aten::mv", .plan = plan_product, .source = "PyTorch mv", .supports = kSupports},
    {.op = "aten::dot", .plan = plan_product, .source = "PyTorch dot", .supports = kSupports},
    {.op = "aten::vdot", .plan = plan_product, .source = "PyTorch vdot", .supports = kSupports},
    {.op = "aten::addmm", .plan = plan_product, .source = "PyTorch addmm", .supports = kSupports},
    {.op = "aten::addmm_", .plan = plan_product, .source = "PyTorch addmm", .supports = kSupports},
    {.op = "aten::baddbmm", .plan = plan_product, .source = "PyTorch baddbmm", .supports = kSupports},
    {.op = "aten::baddbmm_", .plan = plan_product, .source = "PyTorch baddbmm", .supports = kSupports},
    {.op = "aten::addbmm", .plan = plan_product, .source = "PyTorch addbmm", .supports = kSupports},
    {.op = "aten::addbmm_", .plan = plan_product, .source = "PyTorch addbmm", .supports = kSupports},
    {.op = "aten::addmv", .plan = plan_product, .source = "PyTorch addmv", .supports = kSupports},
    {.op = "aten::addmv_", .plan = plan_product, .source = "PyTorch addmv", .supports = kSupports},
    {.op = "aten::addr", .plan = plan_product, .source = "PyTorch addr", .supports = kSupports},
    {.op = "aten::addr_", .plan = plan_product, .source = "PyTorch addr", .supports = kSupports},
};

}  // namespace
}  // namespace moonhalo
