// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/work_space.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace moonhalo {
namespace {

using torch::jit::Stack;

template <size_t kCount>
bool is_one_of(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t bytes_as(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

// Elementwise operators of two tensors convert those whose dtype is not the one that they compute in.
int64_t of_converted(const Stack& arguments, const at::Tensor& result, bool compares) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) tensors.push_back(argument.toTensor());
  }
  if (tensors.size() < 2) return 0;
  const at::ScalarType computed = compares ? at::result_type(tensors[0], tensors[1]) : result.scalar_type();
  int64_t bytes = 0;
  for (size_t i = 0; i < 2; ++i) {
    if (tensors[i].dim() > 0 && tensors[i].scalar_type() != computed) bytes += bytes_as(tensors[i], computed);
  }
  return bytes;
}

// Sums and means in another dtype than that of the input convert it as a whole; means of two bytes are summed in
// float32.
int64_t of_reduced(std::string_view name, const at::Tensor& input, const at::Tensor& result) {
  at::ScalarType summed = result.scalar_type();
  if (name == "aten::mean" && at::isReducedFloatingType(summed)) summed = at::kFloat;
  return input.scalar_type() == summed ? 0 : bytes_as(input, summed);
}

int64_t of_copied(const Stack& arguments) {
  int64_t bytes = 0;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) bytes += bytes_of_contiguous_copy(argument.toTensor());
  }
  return bytes;
}

}  // namespace

int64_t bytes_of_contiguous_copy(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous(tensor.suggest_memory_format())) return 0;
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());  // an expanded tensor is smaller itself
}

int64_t kernel_work_space(const c10::OperatorHandle& op, const Stack& arguments, const Stack& results) {
  static constexpr std::array<std::string_view, 8> kArithmetic{
      "aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::div", "aten::maximum", "aten::minimum", "aten::pow"};
  static constexpr std::array<std::string_view, 6> kComparisons{"aten::eq", "aten::ne", "aten::lt",
                                                                "aten::le", "aten::gt", "aten::ge"};
  static constexpr std::array<std::string_view, 4> kReductions{"aten::sum", "aten::mean", "aten::nansum", "aten::prod"};
  static constexpr std::array<std::string_view, 2> kLosses{"aten::mse_loss", "aten::smooth_l1_loss"};
  static constexpr std::array<std::string_view, 7> kPools{"aten::avg_pool2d",
                                                          "aten::avg_pool3d",
                                                          "aten::max_pool2d_with_indices",
                                                          "aten::avg_pool2d_backward",
                                                          "aten::avg_pool3d_backward",
                                                          "aten::max_pool2d_with_indices_backward",
                                                          "aten::max_pool3d_with_indices_backward"};
  const std::string& name = op.operator_name().name;
  if (arguments.empty() || !arguments[0].isTensor() || results.empty() || !results[0].isTensor()) return 0;
  const at::Tensor &input = arguments[0].toTensor(), &result = results[0].toTensor();
  if (is_one_of(name, kArithmetic)) return of_converted(arguments, result, false);
  if (is_one_of(name, kComparisons)) return of_converted(arguments, result, true);
  if (is_one_of(name, kPools)) return of_copied(arguments);
  if (is_one_of(name, kReductions)) return of_reduced(name, input, result);
  // The loss of each element, before all are summed in the memory of the result.
  if (is_one_of(name, kLosses) && arguments.at(2).toInt() != at::Reduction::None)
    return bytes_as(input, result.scalar_type());
  return 0;
}

}  // namespace moonhalo
