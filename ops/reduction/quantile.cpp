// SPDX-License-Identifier: Apache-2.0
// Quantiles: the sorted values at rank q (n - 1), or between the two beside it. LibTorch 2.15's composite reads ranks
// from memory; this one is made of operators that have rules, on any cut.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/nanquantile_native.h>
#include <ATen/ops/quantile_native.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/support/above_autograd.h"

namespace moonhalo {
namespace {

using at::Tensor;
using Dim = std::optional<int64_t>;

Tensor of_plain(const Tensor& self, const Tensor& q, Dim dim, bool keepdim, c10::string_view how, bool ignores_nan) {
  return ignores_nan ? at::native::nanquantile(self, q, dim, keepdim, how)
                     : at::native::quantile(self, q, dim, keepdim, how);
}

/// The ranks to read in each sorted row, [..., quantiles]: a row with a NaN gives its last value, which is one.
Tensor ranks_of(const Tensor& rows, const Tensor& q, bool ignores_nan) {
  const Tensor missing = rows.isnan();
  if (ignores_nan) {
    const Tensor count = missing.logical_not().sum(-1, true).to(q.scalar_type());
    return (q * (count - 1)).clamp_min(0);
  }
  const auto last = static_cast<double>(rows.size(-1) - 1);
  return at::where(missing.any(-1, true), last, q * last);
}

Tensor of_rows(const Tensor& sorted, Tensor ranks, c10::string_view how) {
  if (how == "lower") ranks = ranks.floor();
  if (how == "higher") ranks = ranks.ceil();
  if (how == "nearest") ranks = ranks.round();
  const Tensor below = ranks.floor();
  const Tensor low = sorted.gather(-1, below.to(at::kLong));
  if (how != "linear" && how != "midpoint") return low;
  const Tensor high = sorted.gather(-1, ranks.ceil().to(at::kLong));
  return how == "midpoint" ? at::lerp(low, high, 0.5) : at::lerp(low, high, ranks - below);
}

Tensor quantile(const Tensor& self, const Tensor& given, Dim dim, bool keepdim, c10::string_view how,
                bool ignores_nan) {
  if (!is_shard_tensor(self) && !is_shard_tensor(given)) return of_plain(self, given, dim, keepdim, how, ignores_nan);
  const Tensor q = is_shard_tensor(given) ? full_tensor(given) : given;
  TORCH_CHECK(self.numel() > 0, ignores_nan ? "nanquantile" : "quantile", "() input tensor must be non-empty");
  // LibTorch's own checks of the other arguments.
  of_plain(at::zeros(at::DimVector(self.dim(), 1), at::dtype(self.scalar_type()).device(self.device())), q, dim,
           keepdim, how, ignores_nan);
  const Tensor rows = !dim ? self.flatten() : self.dim() == 0 ? self.unsqueeze(0) : self.movedim(*dim, -1);
  const Tensor sorted = std::get<0>(rows.sort(-1));
  Tensor result = of_rows(sorted, ranks_of(rows, q.reshape(-1), ignores_nan), how);  // [..., quantiles]
  result = q.dim() == 0 ? result.squeeze(-1) : result.movedim(-1, 0);
  if (!keepdim || self.dim() == 0) return result;
  if (dim) return result.unsqueeze(at::maybe_wrap_dim(*dim, self.dim()) + q.dim());
  for (int64_t d = 0; d < self.dim(); ++d) result = result.unsqueeze(-1);
  return result;
}

Tensor number(double q, const Tensor& self) {
  TORCH_CHECK(q >= 0 && q <= 1, "quantile() q must be in the range [0, 1] but got ", q);
  return at::scalar_tensor(q, at::dtype(self.scalar_type()).device(self.device()));
}

template <bool kIgnoresNan>
Tensor of_tensor(const Tensor& self, const Tensor& q, Dim dim, bool keepdim, c10::string_view how) {
  return quantile(self, q, dim, keepdim, how, kIgnoresNan);
}

template <bool kIgnoresNan>
Tensor of_number(const Tensor& self, double q, Dim dim, bool keepdim, c10::string_view how) {
  return quantile(self, number(q, self), dim, keepdim, how, kIgnoresNan);
}

Tensor& written(const Tensor& result, Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

template <bool kIgnoresNan>
Tensor& of_tensor_out(const Tensor& self, const Tensor& q, Dim dim, bool keepdim, c10::string_view how, Tensor& out) {
  return written(quantile(self, q, dim, keepdim, how, kIgnoresNan), out);
}

template <bool kIgnoresNan>
Tensor& of_number_out(const Tensor& self, double q, Dim dim, bool keepdim, c10::string_view how, Tensor& out) {
  return written(quantile(self, number(q, self), dim, keepdim, how, kIgnoresNan), out);
}

void meet(torch::Library& library) {
  library.impl("quantile", &of_tensor<false>);
  library.impl("quantile.scalar", &of_number<false>);
  library.impl("quantile.out", &of_tensor_out<false>);
  library.impl("quantile.scalar_out", &of_number_out<false>);
  library.impl("nanquantile", &of_tensor<true>);
  library.impl("nanquantile.scalar", &of_number<true>);
  library.impl("nanquantile.out", &of_tensor_out<true>);
  library.impl("nanquantile.scalar_out", &of_number_out<true>);
}
const InterceptAboveAutograd met(&meet);

}  // namespace
}  // namespace moonhalo
