// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/work_space.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace moonhalo {
namespace {

using torch::jit::Stack;

int64_t bytes_as(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

const at::Tensor& tensor(const Stack& values, size_t i) { return values.at(i).toTensor(); }

// Elementwise operators convert tensors whose dtype is not the one that they compute in. `compares`: the result has
// another one.
int64_t of_converted(const Stack& arguments, const Stack& results, bool compares) {
  if (arguments.size() < 2 || !arguments[0].isTensor() || !arguments[1].isTensor()) return 0;
  const std::array<at::Tensor, 2> both{tensor(arguments, 0), tensor(arguments, 1)};
  const at::ScalarType computed = compares ? at::result_type(both[0], both[1]) : tensor(results, 0).scalar_type();
  int64_t bytes = 0;
  for (const at::Tensor& one : both) {
    if (one.dim() > 0 && one.scalar_type() != computed) bytes += bytes_as(one, computed);
  }
  return bytes;
}

int64_t of_arithmetic(const Stack& arguments, const Stack& results) { return of_converted(arguments, results, false); }
int64_t of_comparison(const Stack& arguments, const Stack& results) { return of_converted(arguments, results, true); }

// A sum in another dtype than that of the input converts it as a whole.
int64_t of_sum_in(const at::Tensor& input, at::ScalarType dtype) {
  return input.scalar_type() == dtype ? 0 : bytes_as(input, dtype);
}
int64_t of_sum(const Stack& arguments, const Stack& results) {
  return of_sum_in(tensor(arguments, 0), tensor(results, 0).scalar_type());
}
// Means of two bytes are summed in float32.
int64_t of_mean(const Stack& arguments, const Stack& results) {
  const at::ScalarType dtype = tensor(results, 0).scalar_type();
  return of_sum_in(tensor(arguments, 0), at::isReducedFloatingType(dtype) ? at::kFloat : dtype);
}

// The loss of each element, before all are summed in the memory of the result.
int64_t of_loss(const Stack& arguments, const Stack& results) {
  const bool sums = arguments.at(2).toInt() != at::Reduction::None;
  return sums ? bytes_as(tensor(arguments, 0), tensor(results, 0).scalar_type()) : 0;
}

// The first argument is an input, or the gradient of a result.
int64_t of_first_copy(const Stack& arguments, const Stack&) { return bytes_of_contiguous_copy(tensor(arguments, 0)); }

int64_t of_row_major_copy(const Stack& arguments, const Stack&) {
  return bytes_of_row_major_copy(tensor(arguments, 0));
}

int64_t of_row_major_copies(const Stack& arguments, const Stack&) {
  return bytes_of_row_major_copy(tensor(arguments, 0)) + bytes_of_row_major_copy(tensor(arguments, 1));
}

// oneDNN's kernel of a contiguous input needs such a gradient.
int64_t of_gelu_gradient(const Stack& arguments, const Stack&) {
  return tensor(arguments, 1).is_contiguous() ? bytes_of_row_major_copy(tensor(arguments, 0)) : 0;
}

// BLAS takes matrices whose rows or columns are apart by a stride.
int64_t of_matrix(const at::Tensor& matrix) {
  const auto fits = [&](int64_t fast, int64_t slow) {
    return (matrix.stride(fast) == 1 || matrix.size(fast) == 1) &&
           (matrix.stride(slow) >= std::max<int64_t>(1, matrix.size(fast)) || matrix.size(slow) == 1);
  };
  return fits(1, 0) || fits(0, 1) ? 0 : bytes_as(matrix, matrix.scalar_type());
}

int64_t of_product(const Stack& arguments, const Stack&) {
  return of_matrix(tensor(arguments, 0)) + of_matrix(tensor(arguments, 1));
}

int64_t of_sum_and_product(const Stack& arguments, const Stack&) {
  return of_matrix(tensor(arguments, 1)) + of_matrix(tensor(arguments, 2));
}

// Matrices of a batch that do not fit are copied one by one.
int64_t of_batch_of_products(const Stack& arguments, const Stack&) {
  const auto of_item = [](const at::Tensor& batch) { return batch.size(0) == 0 ? 0 : of_matrix(batch.select(0, 0)); };
  return of_item(tensor(arguments, 0)) + of_item(tensor(arguments, 1));
}

}  // namespace

int64_t bytes_of_contiguous_copy(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_contiguous(tensor.suggest_memory_format())) return 0;
  return bytes_as(tensor, tensor.scalar_type());  // an expanded tensor is smaller itself
}

int64_t bytes_of_row_major_copy(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_contiguous() ? 0 : bytes_as(tensor, tensor.scalar_type());
}

WorkSpaceRule find_work_space_rule(const std::string& name) {
  static const std::unordered_map<std::string, WorkSpaceRule> rules{
      {"aten::add", of_arithmetic},
      {"aten::sub", of_arithmetic},
      {"aten::rsub", of_arithmetic},
      {"aten::mul", of_arithmetic},
      {"aten::div", of_arithmetic},
      {"aten::maximum", of_arithmetic},
      {"aten::minimum", of_arithmetic},
      {"aten::pow", of_arithmetic},
      {"aten::eq", of_comparison},
      {"aten::ne", of_comparison},
      {"aten::lt", of_comparison},
      {"aten::le", of_comparison},
      {"aten::gt", of_comparison},
      {"aten::ge", of_comparison},
      {"aten::sum", of_sum},
      {"aten::nansum", of_sum},
      {"aten::prod", of_sum},
      {"aten::mean", of_mean},
      {"aten::mse_loss", of_loss},
      {"aten::smooth_l1_loss", of_loss},
      {"aten::avg_pool2d", of_first_copy},
      {"aten::avg_pool3d", of_first_copy},
      {"aten::max_pool2d_with_indices", of_first_copy},
      {"aten::avg_pool2d_backward", of_first_copy},
      {"aten::avg_pool3d_backward", of_first_copy},
      {"aten::max_pool2d_with_indices_backward", of_first_copy},
      {"aten::adaptive_max_pool2d", of_first_copy},
      {"aten::adaptive_max_pool2d_backward", of_first_copy},
      {"aten::upsample_nearest2d_backward", of_first_copy},
      {"aten::upsample_bilinear2d_backward", of_first_copy},
      {"aten::upsample_bicubic2d_backward", of_first_copy},
      {"aten::replication_pad2d", of_first_copy},
      {"aten::pixel_shuffle", of_first_copy},
      {"aten::pixel_unshuffle", of_first_copy},
      {"aten::_softmax", of_row_major_copy},
      {"aten::_log_softmax", of_row_major_copy},
      {"aten::tril", of_row_major_copy},
      {"aten::triu", of_row_major_copy},
      {"aten::_softmax_backward_data", of_row_major_copies},
      {"aten::_log_softmax_backward_data", of_row_major_copies},
      {"aten::gelu_backward", of_gelu_gradient},
      {"aten::mm", of_product},
      {"aten::addmm", of_sum_and_product},
      {"aten::bmm", of_batch_of_products},
  };
  const auto found = rules.find(name);
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace moonhalo
