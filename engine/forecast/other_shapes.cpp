// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/forecast/shape_rules.h"
#include "moonhalo/engine/forecast/work_space.h"

namespace moonhalo {
namespace {

// Fourier transforms. The results have the memory order that LibTorch's call of MKL gives them: dims that are not
// transformed by falling stride, then those that are. The input is copied if its dims in this order cannot be viewed as
// one dim of rows and those that are transformed.

at::Tensor transformed(ShapeCall& call, const at::Tensor& x, const std::vector<int64_t>& sizes,
                       const std::vector<int64_t>& dims, at::ScalarType dtype) {
  std::vector<int64_t> order(x.dim()), outer;
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto split = std::stable_partition(
      order.begin(), order.end(), [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) == dims.end(); });
  std::sort(order.begin(), split, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  std::copy(dims.begin(), dims.end(), split);
  const at::Tensor ordered = x.permute(order);
  std::vector<int64_t> rows{1};
  for (auto d = order.begin(); d != split; ++d) rows[0] *= x.size(*d);
  for (const int64_t d : dims) rows.push_back(x.size(d));
  if (!at::detail::computeStride(ordered.sizes(), ordered.strides(), rows))
    call.use_work_space(static_cast<int64_t>(x.nbytes()));
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = next;
    next *= sizes[order[i]];
  }
  return at::empty_strided(sizes, strides, at::dtype(dtype).device(at::kMeta));
}

std::vector<int64_t> dims_of(const ShapeCall& call) {
  std::vector<int64_t> dims = call.ints(1);
  for (int64_t& dim : dims) dim = dim < 0 ? dim + call.tensor(0).dim() : dim;
  return dims;
}

void sort_by_stride(const at::Tensor& x, std::vector<int64_t>& dims, size_t count) {
  std::sort(dims.begin(), dims.begin() + static_cast<int64_t>(count),
            [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
}

at::Tensor complex_transformed(ShapeCall& call, const at::Tensor& x, std::vector<int64_t> dims) {
  if (dims.empty()) return at::empty_like(x);
  sort_by_stride(x, dims, dims.size());
  return transformed(call, x, x.sizes().vec(), dims, x.scalar_type());
}

void fft_complex(ShapeCall& call) { call.give(complex_transformed(call, call.tensor(0), dims_of(call))); }

void fft_real(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  std::vector<int64_t> dims = dims_of(call), sizes = x.sizes().vec();
  if (call.value(3).toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  sort_by_stride(x, dims, dims.size() - 1);
  call.give(transformed(call, x, sizes, dims, c10::toComplexType(x.scalar_type())));
}

void fft_to_real(ShapeCall& call) {
  std::vector<int64_t> dims = dims_of(call), sizes = call.tensor(0).sizes().vec();
  const int64_t last = dims.back();
  dims.pop_back();
  at::Tensor x = call.tensor(0);
  if (!dims.empty()) {
    // Its own copy is freed before the last dim is transformed, which needs as much.
    ShapeCall inner = call;
    x = complex_transformed(inner, x, dims);
    call.use_work_space(static_cast<int64_t>(x.nbytes()));
  }
  sizes[last] = call.value(3).toInt();
  call.give(transformed(call, x, sizes, {last}, c10::toRealValueType(x.scalar_type())));
}

// Rows

void nonzero(ShapeCall& call) {
  // LibTorch's kernel writes one column after the other.
  call.give_columns({call.count(), call.tensor(0).dim()}, at::kLong);
}

void masked_select(ShapeCall& call) { call.give({call.count()}, call.tensor(0).scalar_type()); }

// The values of a set with `count` elements or rows, the places of what was given in it, and how often each comes.
void give_set(ShapeCall& call, int64_t dim, bool places, bool counts) {
  const at::Tensor& x = call.tensor(0);
  const int64_t count = call.count();
  std::vector<int64_t> values{count}, of_places = x.sizes().vec();
  if (dim >= 0) {
    of_places = {x.size(dim)};
    values = x.sizes().vec();
    values[dim] = count;
  }
  call.give(values, x.scalar_type());
  call.give(places ? at::IntArrayRef(of_places) : at::IntArrayRef{0}, at::kLong);
  call.give({counts ? count : 0}, at::kLong);
}

int64_t dim_of(ShapeCall& call, size_t argument) {
  const int64_t dim = call.value(argument).toInt();
  return dim < 0 ? dim + call.tensor(0).dim() : dim;
}

void unique2(ShapeCall& call) { give_set(call, -1, call.value(2).toBool(), call.value(3).toBool()); }

void unique_dim(ShapeCall& call) { give_set(call, dim_of(call, 1), true, true); }

void unique_consecutive(ShapeCall& call) {
  if (!call.value(3).isNone()) return give_set(call, dim_of(call, 3), true, true);
  give_set(call, -1, call.value(1).toBool(), call.value(2).toBool());
}

void bincount(ShapeCall& call) {
  const c10::IValue& weights = call.value(1);
  const bool weighted = weights.isTensor() && weights.toTensor().defined();
  at::ScalarType dtype = at::kLong;
  if (weighted) dtype = weights.toTensor().scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  const int64_t least = call.value(2).toInt();
  call.give({call.tensor(0).numel() == 0 ? least : std::max(least, call.count())}, dtype);
}

void repeat_interleave(ShapeCall& call) {
  const c10::IValue& size = call.value(1);
  call.give({size.isNone() ? call.count() : size.toInt()}, call.tensor(0).scalar_type());
}

void index_select(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t dim = call.value(1).toInt();
  if (!sizes.empty()) sizes.at(dim < 0 ? dim + x.dim() : dim) = call.tensor(2).numel();
  // The kernel of dim 1 copies.
  if (x.dim() > 1 && (dim == 1 || dim + x.dim() == 1)) call.use_work_space(bytes_of_row_major_copy(x));
  call.give(sizes, x.scalar_type());
}

// LibTorch's kernels for meta tensors read the first row of both tensors, and fail where there is none.
bool reads_no_row(const ShapeCall& call) { return call.tensor(0).numel() == 0 || call.tensor(3).numel() == 0; }

void index_add(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  call.give(reads_no_row(call) ? at::empty_like(x)
                               : at::index_add(x, call.value(1).toInt(), call.tensor(2), call.tensor(3)));
}

void index_reduce(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  call.give(reads_no_row(call) ? at::empty_like(x)
                               : at::index_reduce(x, call.value(1).toInt(), call.tensor(2), call.tensor(3),
                                                  call.value(4).toStringView(), call.value(5).toBool()));
}

void take(ShapeCall& call) { call.give(call.tensor(1).sizes(), call.tensor(0).scalar_type()); }

void narrow_copy(ShapeCall& call) {
  std::vector<int64_t> sizes = call.tensor(0).sizes().vec();
  const int64_t dim = call.value(1).toInt();
  sizes.at(dim < 0 ? dim + call.tensor(0).dim() : dim) = call.value(3).toInt();
  call.give(sizes, call.tensor(0).scalar_type());
}

void unfold_backward(ShapeCall& call) { call.give(call.ints(1), call.tensor(0).scalar_type()); }

void multinomial(ShapeCall& call) {
  std::vector<int64_t> sizes = call.tensor(0).sizes().vec();
  sizes.back() = call.value(1).toInt();
  call.give(sizes, at::kLong);
}

void histc(ShapeCall& call) { call.give({call.value(1).toInt()}, call.tensor(0).scalar_type()); }

void histogram(ShapeCall& call) {
  const at::ScalarType dtype = call.tensor(0).scalar_type();
  const c10::IValue& bins = call.value(1);
  const int64_t edges = bins.isInt() ? bins.toInt() + 1 : bins.toTensor().numel();
  call.give({edges - 1}, dtype);
  call.give({edges}, dtype);
}

void random_permutation(ShapeCall& call) { call.give({call.value(0).toInt()}, at::kLong); }

// Linear algebra

void columns_like(ShapeCall& call) { call.give_columns(call.tensor(0).sizes(), call.tensor(0).scalar_type()); }

std::vector<int64_t> batch_of(const at::Tensor& x) { return x.sizes().slice(0, x.dim() - 2).vec(); }

std::vector<int64_t> with(std::vector<int64_t> batch, std::initializer_list<int64_t> rest) {
  batch.insert(batch.end(), rest);
  return batch;
}

void eigenvalues(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  call.give(with(batch_of(x), {x.size(-1)}), c10::toComplexType(x.scalar_type()));
}

void eigenvectors(ShapeCall& call) {
  eigenvalues(call);
  call.give_columns(call.tensor(0).sizes(), c10::toComplexType(call.tensor(0).scalar_type()));
}

void row_echelon(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  columns_like(call);
  call.give(with(batch_of(x), {std::min(x.size(-1), x.size(-2))}), x.scalar_type());
}

void cholesky_solve(ShapeCall& call) { call.give_columns(call.tensor(0).sizes(), call.tensor(0).scalar_type()); }

void solve_triangular(ShapeCall& call) {
  const at::Tensor &a = call.tensor(0), &b = call.tensor(1);
  const std::vector<int64_t> batch = at::infer_size(batch_of(a), batch_of(b));
  call.give_columns(with(batch, {b.size(-2), b.size(-1)}), b.scalar_type());
}

void times_orthogonal(ShapeCall& call) { call.give_columns(call.tensor(2).sizes(), call.tensor(2).scalar_type()); }

void row_major(ShapeCall& call) { call.give_like(call.tensor(0)); }

void add_products(ShapeCall& call) {
  call.give({call.tensor(1).size(1), call.tensor(2).size(2)}, call.tensor(0).scalar_type());
}

void distances(ShapeCall& call) {
  const at::Tensor &a = call.tensor(0), &b = call.tensor(1);
  const std::vector<int64_t> batch = at::infer_size(batch_of(a), batch_of(b));
  call.give(with(batch, {a.size(-2), b.size(-2)}), a.scalar_type());
}

void distances_of_pairs(ShapeCall& call) {
  const int64_t rows = call.tensor(0).size(0);
  call.give({rows * (rows - 1) / 2}, call.tensor(0).scalar_type());
}

}  // namespace

const ShapeRules& other_shape_rules() {
  static const ShapeRules rules = {
      {"aten::_fft_c2c", fft_complex},
      {"aten::_fft_r2c", fft_real},
      {"aten::_fft_c2r", fft_to_real},
      {"aten::nonzero", nonzero},
      {"aten::masked_select", masked_select},
      {"aten::_unique2", unique2},
      {"aten::unique_dim", unique_dim},
      {"aten::unique_dim_consecutive", unique_dim},
      {"aten::unique_consecutive", unique_consecutive},
      {"aten::bincount", bincount},
      {"aten::repeat_interleave.Tensor", repeat_interleave},
      {"aten::index_select", index_select},
      {"aten::index_add", index_add},
      {"aten::index_reduce", index_reduce},
      {"aten::take", take},
      {"aten::narrow_copy", narrow_copy},
      {"aten::unfold_backward", unfold_backward},
      {"aten::multinomial", multinomial},
      {"aten::histc", histc},
      {"aten::histogram.bin_ct", histogram},
      {"aten::histogram.bins_tensor", histogram},
      {"aten::randperm.generator", random_permutation},
      {"aten::linalg_eigvals", eigenvalues},
      {"aten::_linalg_eigvals", eigenvalues},
      {"aten::linalg_eig", eigenvectors},
      {"aten::geqrf", row_echelon},
      {"aten::cholesky", columns_like},
      {"aten::cholesky_inverse", columns_like},
      {"aten::_cholesky_solve_helper", cholesky_solve},
      {"aten::linalg_householder_product", columns_like},
      {"aten::linalg_solve_triangular", solve_triangular},
      {"aten::linalg_matrix_exp", row_major},
      {"aten::ormqr", times_orthogonal},
      {"aten::addbmm", add_products},
      {"aten::_cdist_forward", distances},
      {"aten::_pdist_forward", distances_of_pairs},
  };
  return rules;
}

}  // namespace moonhalo
