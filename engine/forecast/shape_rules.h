// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo {

/// The arguments of a call, whose tensors are meta tensors, and the results that a rule gives.
class ShapeCall {
 public:
  /// `count`: of the results of an operator whose results' number depends on values, if it is known.
  ShapeCall(const std::string& name, const torch::jit::Stack& arguments, std::optional<int64_t> count)
      : name_(name), arguments_(arguments), count_(count) {}

  size_t size() const { return arguments_.size(); }
  const c10::IValue& value(size_t i) const { return arguments_.at(i); }
  const at::Tensor& tensor(size_t i) const { return arguments_.at(i).toTensor(); }
  std::vector<int64_t> ints(size_t i) const { return arguments_.at(i).toIntVector(); }
  /// The number of elements that a result has whose shape depends on values (AssumedCount). Throws if none is assumed.
  int64_t count() const;

  /// Appends a result with row-major strides.
  void give(at::IntArrayRef sizes, at::ScalarType dtype) { give(sizes, dtype, at::MemoryFormat::Contiguous); }
  void give(at::IntArrayRef sizes, at::ScalarType dtype, at::MemoryFormat format);
  /// Appends a result whose matrices are in column-major order.
  void give_columns(at::IntArrayRef sizes, at::ScalarType dtype);
  /// Appends a result that is such a meta tensor; undefined ones stay undefined.
  void give(const at::Tensor& meta) { results_.emplace_back(meta); }
  /// Appends a result with the sizes and dtype of `meta` and row-major strides, or an undefined one unless `given`.
  void give_like(const at::Tensor& meta, bool given = true);

  /// The kernel allocates `bytes` beside its results, and frees them before it ends.
  void use_work_space(int64_t bytes) { work_space_ += bytes; }
  int64_t work_space() const { return work_space_; }

  const at::Tensor& result(size_t i) const { return results_.at(i).toTensor(); }
  torch::jit::Stack take_results() { return std::move(results_); }

 private:
  const std::string& name_;
  const torch::jit::Stack& arguments_;
  std::optional<int64_t> count_;
  torch::jit::Stack results_;
  int64_t work_space_ = 0;
};

using ShapeRule = void (*)(ShapeCall& call);

/// The rule of an operator, or null. `name` is "aten::max", or with its overload "aten::where.self". An operator that
/// writes its results has the rule of the one that returns them. Only operators have a rule whose meta kernel in
/// LibTorch's C++ library is missing or fails.
const ShapeRule* find_shape_rule(const std::string& name);

using ShapeRules = std::vector<std::pair<std::string, ShapeRule>>;
/// Rules by the kind of operator: layers of neural networks; derivatives; elementwise operators and reductions; all
/// else.
const ShapeRules& layer_shape_rules();
const ShapeRules& backward_shape_rules();
const ShapeRules& elementwise_shape_rules();
const ShapeRules& other_shape_rules();

/// Replaces a rule while it exists, for tests that plant mistakes.
class ReplacedShapeRule {
 public:
  ReplacedShapeRule(const std::string& name, ShapeRule rule);
  ~ReplacedShapeRule();
  ReplacedShapeRule(const ReplacedShapeRule&) = delete;
  ReplacedShapeRule& operator=(const ReplacedShapeRule&) = delete;

 private:
  std::string name_;
  ShapeRule before_;
};

}  // namespace moonhalo
