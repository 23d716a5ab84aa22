// SPDX-License-Identifier: Apache-2.0
// Order statistics, histograms, sets and searches, however their tensors are held: S20, S01.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_statistics {
namespace {

using at::Tensor;
using Dims = std::vector<int64_t>;

const Tensor a = make_tensor({5, 4, 3}, 1), b = make_tensor({5, 4, 3}, 2), flat = make_tensor({11}, 3),
             m = make_tensor({5, 7}, 4), n = make_tensor({6, 7}, 5);
const Tensor whole = make_tensor({5, 4, 3}, 6, at::kLong), line = make_tensor({13}, 7, at::kLong);
const Tensor gaps = at::where(a.gt(0.5), at::full({}, NAN, at::kDouble), a);
const Tensor zeros = at::where(a.gt(0.3), at::zeros({}, at::kDouble), a);
const Tensor steps = at::linspace(-0.9, 0.9, 6, at::kDouble);
const Allowed kForward{.backward = false};

TEST(SweepReduceStatistics, S20_Order) {
  std::vector<Row> rows;
  for (const int64_t dim : {0, 1, 2}) {
    const std::string name = std::to_string(dim);
    rows.push_back(row("median_keep_" + name, {a}, [=](X x) { return x.median(dim, true); }));
    rows.push_back(row("nanmedian_" + name, {gaps}, [=](X x) { return x.nanmedian(dim); }));
    rows.push_back(row("mode_" + name, {whole}, [=](X x) { return x.mode(dim); }));
    rows.push_back(row("quantile_" + name, {a}, [=](X x) {
      return List{x.quantile(0.3, dim), x.quantile(0.7, dim, true, "nearest")};
    }));
    rows.push_back(row("nanquantile_" + name, {gaps}, [=](X x) { return x.nanquantile(0.4, dim, false, "higher"); }));
    // LibTorch chooses which of several NaN has a gradient, and every version another.
    rows.push_back(row(
        "quantile_of_gaps_" + name, {gaps}, [=](X x) { return x.quantile(0.6, dim, true, "midpoint"); }, kForward));
    rows.push_back(row(
        "quantiles_" + name, {at::where(a.gt(0.8), NAN, a), at::tensor({0.0, 0.35, 1.0}, at::kDouble)},
        [=](X x, X q) {
          return List{x.quantile(q.detach(), dim, true), x.nanquantile(q.detach(), dim, false, "lower"),
                      x.nanquantile(0.5, std::nullopt, true)};
        },
        kForward));
    rows.push_back(row(
        "aminmax_" + name, {a}, [=](X x) { return x.aminmax(dim, dim == 1); }, kForward));
    rows.push_back(row("argsort_" + name, {whole}, [=](X x) {
      return List{x.argsort(true, dim), x.argsort(true, dim, true)};
    }));
    rows.push_back(
        row("stable_sort_" + name, {whole}, [=](X x) { return x.sort(std::optional<bool>(true), dim, true); }));
    rows.push_back(row("smallest_" + name, {a}, [=](X x) { return x.topk(3, dim, false); }));
    rows.push_back(row("kthvalue_keep_" + name, {a}, [=](X x) { return x.kthvalue(1, dim, true); }));
    rows.push_back(row("cummin_" + name, {a}, [=](X x) { return x.cummin(dim); }));
    rows.push_back(row("cumprod_zeros_" + name, {zeros}, [=](X x) { return x.cumprod(dim); }));
    rows.push_back(row("trapezoid_" + name, {a}, [=](X x) {
      return List{at::trapezoid(x, 0.5, dim), at::cumulative_trapezoid(x, 2, dim)};
    }));
    rows.push_back(row("diff_" + name, {a}, [=](X x) { return x.diff(2, dim); }));
    rows.push_back(row("renorm_" + name, {a}, [=](X x) { return x.renorm(2, dim, 0.7); }));
    rows.push_back(row("std_mean_" + name, {a}, [=](X x) { return at::std_mean(x, Dims{dim}, 1, true); }));
    rows.push_back(row("nan_sums_" + name, {gaps}, [=](X x) { return List{x.nansum(dim), x.nanmean(dim, true)}; }));
  }
  sweep(rows);
}

TEST(SweepReduceStatistics, S20_OfTheWholeTensor) {
  sweep({
      row("median_all", {a}, [](X x) { return x.median(); }),
      row("median_even", {make_tensor({4, 6}, 8)}, [](X x) { return x.median(); }),
      row("median_nan", {gaps},
          [](X x) {
            return List{x.median(), x.nanmedian()};
          }),
      row("median_ints", {whole}, [](X x) { return x.median(); }),
      row("median_float", {a.to(at::kFloat)}, [](X x) { return x.nanmedian(); }),
      row("median_half", {a.to(at::kBFloat16)}, [](X x) { return x.median(); }),
      row("quantile_all", {a},
          [](X x) {
            return List{x.quantile(0.3), x.nanquantile(0.6)};
          }),
      row("quantiles", {flat, at::tensor({0.1, 0.5, 0.9}, at::kDouble)},
          [](X x, X q) { return x.quantile(q.detach()); }),
      row("msort", {m}, [](X x) { return x.msort(); }),
      row("sort_line", {flat}, [](X x) { return x.sort(0, true); }),
      row("sort_ties", {line}, [](X x) { return x.sort(std::optional<bool>(true), 0, true); }),
      row("kthvalue_line", {flat},
          [](X x) {
            return List{std::get<0>(x.kthvalue(3)), std::get<0>(x.topk(4))};
          }),
      row("cov", {m},
          [](X x) {
            return List{x.cov(0), x.corrcoef()};
          }),
      row("cov_weights", {m, at::arange(1, 8), make_tensor({7}, 9).abs() + 0.1},
          [](X x, X f, X w) { return at::cov(x, 1, f, w.detach()); }),
      row("trapezoid_x", {m, steps.slice(0, 0, 6), at::arange(7).to(at::kDouble)},
          [](X x, X, X t) { return at::trapezoid(x, t, 1); }),
      row("diff_joined", {m, make_tensor({5, 2}, 10)}, [](X x, X y) { return x.diff(1, 1, y, y); }),
      row("trace", {m}, [](X x) { return x.trace(); }),
      row("trace_ints", {make_tensor({6, 4}, 11, at::kLong)}, [](X x) { return x.trace(); }),
      row("aminmax_ints", {whole}, [](X x) { return x.aminmax(); }),
      row("is_nonzero", {make_tensor({1}, 12)}, [](X x) { return at::scalar_tensor(at::is_nonzero(x) ? 1 : 0); }),
  });
}

TEST(SweepReduceStatistics, S20_CountsAndSets) {
  sweep({
      row(
          "histc_range", {m}, [](X x) { return at::histc(x, 4, -1, 1); }, kForward),
      row(
          "histc_auto", {m}, [](X x) { return at::histc(x, 5); }, kForward),
      row("bincount", {line}, [](X x) { return at::bincount(x.abs()); }),
      row("bincount_weights", {line, make_tensor({13}, 13)},
          [](X x, X w) { return at::bincount(x.abs(), w.detach(), 9); }),
      row("histogram", {m}, [](X x) { return at::histogram(x.detach(), 5); }),
      row("histogram_range", {m, make_tensor({5, 7}, 14).abs()},
          [](X x, X w) {
            return at::histogram(x.detach(), 4, at::ArrayRef<double>{-0.5, 0.5}, w.detach(), true);
          }),
      row("histogram_edges", {m, steps}, [](X x, X e) { return at::histogram(x.detach(), e.detach()); }),
      row("unique2", {whole}, [](X x) { return at::_unique2(x, true, true, true); }),
      row("unique", {whole}, [](X x) { return at::_unique(x, true, true); }),
      row("unique_floats", {m}, [](X x) { return std::get<0>(at::_unique2(x.detach().mul(3).round())); }),
      row("unique_rows", {make_tensor({7, 2}, 15, at::kLong).remainder(2)},
          [](X x) { return at::unique_dim(x, 0, true, true, true); }),
      row("unique_columns", {make_tensor({2, 7}, 16, at::kLong).remainder(2)},
          [](X x) { return at::unique_dim(x, 1, true, true, true); }),
      row("consecutive", {make_tensor({4, 5}, 17, at::kLong).remainder(2)},
          [](X x) { return at::unique_consecutive(x, true, true); }),
      row("consecutive_rows", {make_tensor({9, 2}, 18, at::kLong).remainder(2)},
          [](X x) { return at::unique_consecutive(x, true, true, 0); }),
      row("searchsorted", {steps, m},
          [](X e, X x) {
            return List{at::searchsorted(e, x), at::searchsorted(e, x, true, true)};
          }),
      row("searchsorted_lines", {std::get<0>(m.sort(1)), make_tensor({5, 3}, 19)},
          [](X e, X x) { return at::searchsorted(e, x); }),
      row("searchsorted_scalar", {steps},
          [](X e) {
            return List{at::searchsorted(e, 0.2), at::bucketize(0.1, e)};
          }),
      row("searchsorted_sorter", {flat, m},
          [](X e, X x) { return at::searchsorted(e, x, false, false, "left", e.argsort()); }),
      row("bucketize", {m, steps}, [](X x, X e) { return at::bucketize(x, e, false, true); }),
      row("isin", {whole, at::tensor({1, -2, 4}, at::kLong)},
          [](X x, X y) {
            return List{at::isin(x, y), at::isin(x, y, false, true), at::isin(x, 2)};
          }),
      row("isin_scalar", {line}, [](X x) { return at::isin(at::Scalar(3), x); }),
      row("count_nonzero_dims", {whole},
          [](X x) {
            return x.count_nonzero(Dims{0, 2});
          }),
      row("allclose", {a, b},
          [](X x, X y) {
            return at::scalar_tensor((at::equal(x, x) ? 1 : 0) + (at::allclose(x, y, 0.5, 2) ? 2 : 0) +
                                     (at::allclose(x, y * 0) ? 4 : 0));
          }),
      row("nonzero_sums", {whole},
          [](X x) {
            return List{x.ne(0).sum(0), x.to(at::kBool).any(1)};
          }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_statistics
