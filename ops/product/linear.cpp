// SPDX-License-Identifier: Apache-2.0
// linear, matmul, einsum and tensordot are composite: LibTorch merges dims ([batch, rows, features] -> [batch *
// rows, features]) before it multiplies, and a cut inside a merged dim would be lost. They are intercepted above
// autograd, on the keys where their composite kernels would run, and carried out as contractions when a ShardTensor
// takes part; plain tensors go on to LibTorch's own kernel. What autocast does to linear and matmul is done by then;
// what it does to the mm and bmm that einsum and tensordot are made of is done here.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/einsum_native.h>
#include <ATen/ops/kron_native.h>
#include <ATen/ops/linalg_matrix_power_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/max_pool1d_native.h>
#include <ATen/ops/tensordot_native.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/out_argument.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/ops/product/contract.h"
#include "moonhalo/ops/support/above_autograd.h"

namespace moonhalo {
namespace {

using Ints = std::vector<int64_t>;

// The axis numbers first, first + 1, ...
Ints axes_from(int64_t first, int64_t count) {
  Ints axes(count);
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

// LibTorch's kernels for sparse factors come before ours and read memory.
void check_dense(const char* name, std::initializer_list<std::reference_wrapper<const at::Tensor>> factors) {
  for (const at::Tensor& factor : factors) check_strided(factor, name);
}

// While nothing is recorded, a weight that is replicated over the input's mesh may as well be plain: its transpose is
// then no operator of Moonhalo.
const at::Tensor& plain_if_replicated(const at::Tensor& weight, const at::Tensor& input) {
  const ShardTensorImpl* impl = weight.defined() ? shard_impl(weight) : nullptr;
  if (impl == nullptr || !is_shard_tensor(input) || c10::GradMode::is_enabled()) return weight;
  if (weight._fw_grad(/*level=*/0).defined()) return weight;
  const SpecPtr& held = impl->spec();
  // From the layout, which is the same on every rank: a rank may hold all rows of a weight that is cut.
  const auto& cuts = held->layout().cuts;
  const bool whole =
      !held->has_partial() && std::none_of(cuts.begin(), cuts.end(), [](const Cut& cut) { return bool(cut); });
  return whole && held->mesh() == spec(input)->mesh() ? fresh_block(weight, "linear") : weight;
}

// Returns true if LibTorch's kernel of a linear layer adds this bias by itself.
bool is_row_of(const at::Tensor& bias, const at::Tensor& input, const at::Tensor& weight) {
  return bias.dim() == 1 && bias.size(0) == weight.size(0) && bias.scalar_type() == weight.scalar_type() &&
         bias.scalar_type() == input.scalar_type();
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& given, const std::optional<at::Tensor>& bias) {
  const at::Tensor& weight = plain_if_replicated(given, input);
  const bool has_bias = bias && bias->defined();
  const bool sharded = is_shard_tensor(input) || is_shard_tensor(weight) || (has_bias && is_shard_tensor(*bias));
  if (sharded) check_dense("linear", {input, weight});
  // With two dims nothing is merged, and LibTorch's addmm is one operator; but it views a bias's gradient, and a view
  // makes the sum over the ranks at once, one message for each bias.
  const bool sums_bias = has_bias && is_shard_tensor(*bias) && bias->requires_grad() && c10::GradMode::is_enabled();
  if (!sharded || (input.dim() == 2 && weight.dim() == 2 && !sums_bias)) return at::native::linear(input, weight, bias);
  TORCH_CHECK_VALUE(input.dim() >= 1 && (weight.dim() == 2 || weight.dim() == 1) && input.size(-1) == weight.size(-1),
                    "linear: the input has ", input.dim() > 0 ? input.size(-1) : 0, " features, the weight takes ",
                    weight.dim() > 0 ? weight.size(-1) : 0, "\n  have  input ", shape_string(input.sizes()),
                    ", weight ", shape_string(weight.sizes()));
  const int64_t ndim = input.dim();
  const Ints l = axes_from(0, ndim), o = axes_from(0, ndim - 1);
  if (weight.dim() == 1) {
    const at::Tensor out = contract(input, weight, l, {ndim - 1}, o);
    return has_bias ? out + *bias : out;
  }
  Ints with_features = o;
  with_features.push_back(ndim);
  const bool fused = has_bias && ndim >= 2 && is_row_of(*bias, input, weight);
  const at::Tensor out = contract(input, weight, l, {ndim, ndim - 1}, with_features, fused ? bias : std::nullopt);
  return has_bias && !fused ? out + *bias : out;
}

// Axes of matmul's operands: dims of size one that correspond to a larger one are dropped, since they broadcast.
at::Tensor matmul(const at::Tensor& left, const at::Tensor& right) {
  const bool sharded = is_shard_tensor(left) || is_shard_tensor(right);
  if (sharded) check_dense("matmul", {left, right});
  // Up to two dims nothing is merged: LibTorch's mm, mv and dot.
  const bool merges = left.dim() > 2 || right.dim() > 2;
  if (!sharded || !merges) return at::native::matmul(left, right);
  TORCH_CHECK_VALUE(left.dim() > 0 && right.dim() > 0, "matmul: both tensors need at least one dim\n  have  shapes ",
                    shape_string(left.sizes()), " and ", shape_string(right.sizes()));
  const int64_t contracted = right.dim() == 1 ? 0 : right.dim() - 2;
  TORCH_CHECK_VALUE(left.size(-1) == right.size(contracted), "matmul: ", left.size(-1), " columns are multiplied by ",
                    right.size(contracted), " rows\n  have  shapes ", shape_string(left.sizes()), " and ",
                    shape_string(right.sizes()));
  const int64_t left_batch = std::max<int64_t>(left.dim() - 2, 0), right_batch = std::max<int64_t>(right.dim() - 2, 0);
  const int64_t batch = std::max(left_batch, right_batch), rows = batch, inner = batch + 1, columns = batch + 2;
  at::Tensor a = left, b = right;
  Ints l, r, o;
  // From the last batch dim to the first, so that squeezing does not move the dims still to come.
  for (int64_t axis = batch - 1; axis >= 0; --axis) {
    const int64_t in_left = axis - (batch - left_batch), in_right = axis - (batch - right_batch);
    const int64_t size_left = in_left < 0 ? 1 : left.size(in_left),
                  size_right = in_right < 0 ? 1 : right.size(in_right);
    TORCH_CHECK_VALUE(size_left == size_right || size_left == 1 || size_right == 1, "matmul: batch dims of ", size_left,
                      " and ", size_right, " do not broadcast\n  have  shapes ", shape_string(left.sizes()), " and ",
                      shape_string(right.sizes()));
    if (in_left >= 0 && size_left == 1 && size_right != 1) {
      a = a.squeeze(in_left);
    } else if (in_left >= 0) {
      l.insert(l.begin(), axis);
    }
    if (in_right >= 0 && size_right == 1 && (size_left != 1 || in_left >= 0)) {
      b = b.squeeze(in_right);
    } else if (in_right >= 0) {
      r.insert(r.begin(), axis);
    }
    o.insert(o.begin(), axis);
  }
  if (left.dim() > 1) {
    l.push_back(rows);
    o.push_back(rows);
  }
  l.push_back(inner);
  r.push_back(inner);
  if (right.dim() > 1) {
    r.push_back(columns);
    o.push_back(columns);
  }
  return contract(a, b, l, r, o);
}

// LibTorch's kernels write through views of `out`, or ask whether those share its storage.
at::Tensor& write_product(const char* name, at::TensorList factors, at::Tensor& out,
                          const std::function<at::Tensor()>& product) {
  bool records = out.requires_grad();
  for (const at::Tensor& factor : factors) records |= factor.requires_grad();
  TORCH_CHECK_VALUE(!(c10::GradMode::is_enabled() && records), name,
                    ": an out= tensor takes no gradient\n  have  a tensor that requires grad\n  fix   leave out= out, "
                    "or call it under no_grad");
  if (is_shard_tensor(out)) notice_new_shape(*shard_impl(out));
  write_result(name, product(), out, /*out=*/true);
  return out;
}

bool any_sharded(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  return is_shard_tensor(left) || is_shard_tensor(right) || is_shard_tensor(out);
}

at::Tensor& matmul_out(const at::Tensor& left, const at::Tensor& right, at::Tensor& out) {
  if (!any_sharded(left, right, out)) return at::native::matmul_out(left, right, out);
  return write_product("matmul", {left, right}, out, [&] { return moonhalo::matmul(left, right); });
}

at::Tensor& kron_out(const at::Tensor& left, const at::Tensor& right, at::Tensor& out) {
  if (!any_sharded(left, right, out)) return at::native::kron_out(left, right, out);
  return write_product("kron", {left, right}, out, [&] { return at::kron(left, right); });
}

at::Tensor& matrix_power_out(const at::Tensor& self, int64_t n, at::Tensor& out) {
  if (!is_shard_tensor(self) && !is_shard_tensor(out)) return at::native::linalg_matrix_power_out(self, n, out);
  return write_product("linalg_matrix_power", {self}, out, [&] { return at::linalg_matrix_power(self, n); });
}

// The axes of one term of an equation, letters as they are and the dims of an ellipsis as ..., -2,
// -1; nullopt for what only LibTorch's own einsum reads. `ndim`: of the operand.
std::optional<Ints> term_axes(std::string_view term, int64_t ndim) {
  Ints axes;
  int64_t letters = 0;
  for (const char c : term) letters += c != ' ' && c != '.';
  for (size_t i = 0; i < term.size(); ++i) {
    const char letter = term[i];
    if (letter == ' ') continue;
    if (term.substr(i, 3) == "...") {
      if (contains(axes, -1)) return std::nullopt;
      for (int64_t axis = letters - ndim; axis < 0; ++axis) axes.push_back(axis);
      i += 2;
      continue;
    }
    const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (!is_letter) return std::nullopt;
    axes.push_back(letter);
  }
  return axes;
}

struct Equation {
  std::vector<Ints> terms;
  Ints out;
};

std::optional<Equation> parse(std::string_view text, at::TensorList operands) {
  Equation equation;
  const auto arrow = text.find("->");
  std::string_view inputs = text.substr(0, arrow);
  while (true) {
    const auto comma = inputs.find(',');
    const size_t index = equation.terms.size();
    if (index == operands.size()) return std::nullopt;
    const auto axes = term_axes(inputs.substr(0, comma), operands[index].dim());
    if (!axes) return std::nullopt;
    equation.terms.push_back(*axes);
    if (comma == std::string_view::npos) break;
    inputs = inputs.substr(comma + 1);
  }
  if (equation.terms.size() != operands.size()) return std::nullopt;
  std::map<int64_t, int64_t> extents, uses;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].dim() != static_cast<int64_t>(equation.terms[i].size())) return std::nullopt;
    for (size_t d = 0; d < equation.terms[i].size(); ++d) {
      const int64_t axis = equation.terms[i][d];
      ++uses[axis];
      int64_t& extent = extents.emplace(axis, 1).first->second;
      if (extent != 1 && operands[i].size(d) != 1 && extent != operands[i].size(d)) return std::nullopt;
      if (extent == 1) extent = operands[i].size(d);
    }
  }
  if (arrow == std::string_view::npos) {  // an ellipsis, then the letters that occur once, in order
    for (const auto& [axis, count] : uses) {
      if (count == 1 || axis < 0) equation.out.push_back(axis);
    }
  } else {
    std::string_view result = text.substr(arrow + 2);
    const int64_t ellipsis = uses.empty() ? 0 : std::max<int64_t>(-uses.begin()->first, 0);
    const auto letters = std::count_if(result.begin(), result.end(), [](char c) { return c != ' ' && c != '.'; });
    const auto out = term_axes(result, letters + ellipsis);
    if (!out) return std::nullopt;
    for (const int64_t axis : *out) {
      if (!uses.count(axis) || std::count(out->begin(), out->end(), axis) > 1) return std::nullopt;
    }
    equation.out = *out;
  }
  return equation;
}

// A letter that an operand has twice takes its diagonal. Dims of size one that correspond to a larger one are
// dropped, since they broadcast. False when a diagonal has no rows to follow.
bool simplify(std::vector<at::Tensor>& operands, Equation& equation) {
  std::map<int64_t, int64_t> extents;
  for (size_t i = 0; i < operands.size(); ++i) {
    Ints& axes = equation.terms[i];
    for (size_t d = 0; d < axes.size();) {
      const int64_t axis = axes[d];
      const auto again = std::find(axes.begin() + static_cast<std::ptrdiff_t>(d) + 1, axes.end(), axis);
      if (again == axes.end()) {
        extents[axis] = std::max(extents[axis], operands[i].size(static_cast<int64_t>(d++)));
        continue;
      }
      const int64_t first = static_cast<int64_t>(d), second = again - axes.begin();
      if (operands[i].size(first) != operands[i].size(second)) return false;
      operands[i] = operands[i].diagonal(0, first, second);
      axes.erase(again);
      axes.erase(axes.begin() + first);
      axes.push_back(axis);
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    Ints& axes = equation.terms[i];
    for (int64_t d = operands[i].dim() - 1; d >= 0; --d) {
      if (operands[i].size(d) != 1 || extents[axes[d]] <= 1) continue;
      operands[i] = operands[i].squeeze(d);
      axes.erase(axes.begin() + d);
    }
  }
  return true;
}

at::Tensor einsum(std::string_view text, at::TensorList given, at::OptionalIntArrayRef path) {
  const bool sharded = std::any_of(given.begin(), given.end(), [](const auto& t) { return is_shard_tensor(t); });
  auto equation = sharded && !path && given.size() > 1 ? parse(text, given) : std::nullopt;
  std::vector<at::Tensor> operands = given.vec();
  if (!equation || !simplify(operands, *equation)) return at::native::einsum(text, given, path);
  // From left to right; what no later operand and not the result needs is summed as early as may be.
  const auto needed_after = [&](int64_t axis, size_t next) {
    if (contains(equation->out, axis)) return true;
    return std::any_of(equation->terms.begin() + static_cast<std::ptrdiff_t>(next), equation->terms.end(),
                       [&](const Ints& term) { return contains(term, axis); });
  };
  const auto sum_alone = [&](at::Tensor tensor, Ints& axes, const Ints& other, size_t next) {
    Ints kept, dims;
    for (size_t d = 0; d < axes.size(); ++d) {
      const bool keep = contains(other, axes[d]) || needed_after(axes[d], next);
      keep ? kept.push_back(axes[d]) : dims.push_back(static_cast<int64_t>(d));
    }
    axes = std::move(kept);
    return dims.empty() ? tensor : tensor.sum(dims);
  };
  at::Tensor result = operands[0];
  Ints axes = equation->terms[0];
  for (size_t i = 1; i < operands.size(); ++i) {
    Ints right_axes = equation->terms[i];
    result = sum_alone(result, axes, right_axes, i + 1);
    at::Tensor right = sum_alone(operands[i], right_axes, axes, i + 1);
    // Without a sum over both, LibTorch multiplies elementwise.
    bool sums = false;
    for (size_t d = 0; d < axes.size(); ++d) {
      sums |=
          result.size(static_cast<int64_t>(d)) != 1 && contains(right_axes, axes[d]) && !needed_after(axes[d], i + 1);
    }
    if (sums) {
      result = cast_as_factor(result);
      right = cast_as_factor(right);
    }
    Ints out;
    if (i + 1 == operands.size()) {
      out = equation->out;
    } else {
      for (const Ints* list : {&axes, &right_axes}) {
        for (const int64_t axis : *list) {
          if (!contains(out, axis) && needed_after(axis, i + 1)) out.push_back(axis);
        }
      }
    }
    // Small numbers instead of letters, for the operator's own equations.
    Ints names = axes;
    std::copy_if(right_axes.begin(), right_axes.end(), std::back_inserter(names),
                 [&](int64_t axis) { return !contains(axes, axis); });
    const auto numbered = [&](Ints list) {
      for (int64_t& axis : list) axis = std::find(names.begin(), names.end(), axis) - names.begin();
      return list;
    };
    result = contract(result, right, numbered(axes), numbered(right_axes), numbered(out));
    axes = std::move(out);
  }
  return result;
}

at::Tensor tensordot(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef left_dims,
                     at::IntArrayRef right_dims) {
  const bool sharded = is_shard_tensor(left) || is_shard_tensor(right);
  const auto fits = [&] {
    if (left_dims.size() != right_dims.size()) return false;
    for (size_t i = 0; i < left_dims.size(); ++i) {
      if (left.size(left_dims[i]) != right.size(right_dims[i])) return false;
    }
    return true;
  };
  // Size one against another size broadcasts, and what does not fit is refused: left to LibTorch.
  if (!sharded || !fits()) return at::native::tensordot(left, right, left_dims, right_dims);
  const Ints l = axes_from(0, left.dim());
  Ints r = axes_from(left.dim(), right.dim()), out;
  for (size_t i = 0; i < right_dims.size(); ++i) {
    r[at::maybe_wrap_dim(right_dims[i], right.dim())] = at::maybe_wrap_dim(left_dims[i], left.dim());
  }
  for (const int64_t axis : l) {
    if (!contains(r, axis)) out.push_back(axis);
  }
  for (const int64_t axis : r) {
    if (axis >= left.dim()) out.push_back(axis);
  }
  return contract(cast_as_factor(left), cast_as_factor(right), l, r, out);
}

// Without gradients LibTorch's max_pool1d reads the data itself; with indices it goes through a
// real operator.
at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil_mode) {
  if (!is_shard_tensor(self)) return at::native::max_pool1d(self, kernel, stride, padding, dilation, ceil_mode);
  return std::get<0>(at::max_pool1d_with_indices(self, kernel, stride, padding, dilation, ceil_mode));
}

void intercept(torch::Library& library) {
  library.impl("linear", &linear);
  library.impl("matmul", &matmul);
  library.impl("matmul.out", &matmul_out);
  library.impl("kron.out", &kron_out);
  library.impl("linalg_matrix_power.out", &matrix_power_out);
  library.impl("matrix_power.out", &matrix_power_out);
  library.impl("einsum", &einsum);
  library.impl("tensordot", &tensordot);
  library.impl("max_pool1d", &max_pool1d);
}

const InterceptAboveAutograd interception(&intercept);

}  // namespace
}  // namespace moonhalo
