// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/shape_rules.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <unordered_map>

#include "moonhalo/engine/forecast/fake_tensor.h"

namespace moonhalo {
namespace {

std::unordered_map<std::string, ShapeRule>& rules() {
  static std::unordered_map<std::string, ShapeRule> all = [] {
    std::unordered_map<std::string, ShapeRule> table;
    for (const ShapeRules* part :
         {&layer_shape_rules(), &backward_shape_rules(), &elementwise_shape_rules(), &other_shape_rules()})
      table.insert(part->begin(), part->end());
    return table;
  }();
  return all;
}

}  // namespace

int64_t ShapeCall::count() const {
  const auto assumed = count_ ? count_ : AssumedCount::current();
  TORCH_CHECK_NOT_IMPLEMENTED(
      assumed, name_, ": the shape of the result depends on values that are not computed\n  have  fake tensors ",
      "without an assumed number of elements\n  fix   assume a number around the call (moonhalo help assume; ",
      "AssumedCount in C++)");
  return *assumed;
}

void ShapeCall::give(at::IntArrayRef sizes, at::ScalarType dtype, at::MemoryFormat format) {
  results_.emplace_back(at::detail::empty_meta(sizes, dtype, format));
}

void ShapeCall::give_columns(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<int64_t> transposed = sizes.vec();
  if (sizes.size() < 2) return give(sizes, dtype);
  std::swap(transposed[sizes.size() - 1], transposed[sizes.size() - 2]);
  give(at::empty(transposed, at::dtype(dtype).device(at::kMeta)).mT());
}

void ShapeCall::give_like(const at::Tensor& meta, bool given) {
  given ? give(meta.sizes(), meta.scalar_type()) : give(at::Tensor());
}

const ShapeRule* find_shape_rule(const std::string& name) {
  const auto found = rules().find(name);
  return found == rules().end() ? nullptr : &found->second;
}

ReplacedShapeRule::ReplacedShapeRule(const std::string& name, ShapeRule rule)
    : name_(name), before_(std::exchange(rules().at(name), rule)) {}

ReplacedShapeRule::~ReplacedShapeRule() { rules().at(name_) = before_; }

}  // namespace moonhalo
