// SPDX-License-Identifier: Apache-2.0
// Reductions, norms, scans, sorting, products of matrices and losses, however their tensors are held: S20, S01, S12.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_sweep_reduce {
namespace {

using at::Tensor;
using Dims = std::vector<int64_t>;

const Tensor a = make_tensor({5, 4, 3}, 1), b = make_tensor({5, 4, 3}, 2), flat = make_tensor({7}, 3);
const Tensor m = make_tensor({5, 7}, 4), n = make_tensor({7, 6}, 5), o = make_tensor({5, 6}, 6);
const Tensor batch = make_tensor({3, 5, 7}, 7), batch2 = make_tensor({3, 7, 4}, 8), one = make_tensor({}, 9);
const Tensor whole = make_tensor({5, 4, 3}, 10, at::kLong), coin = make_tensor({5, 4, 3}, 11, at::kBool);
const Tensor wave = make_tensor({5, 4, 3}, 12, at::kComplexDouble), narrow = a.to(at::kFloat);
const Tensor labels = make_tensor({5}, 13, at::kLong).abs().remainder(4), logits = make_tensor({5, 4}, 14);
const Tensor field = make_tensor({2, 4, 5}, 15), field_labels = make_tensor({2, 5}, 16, at::kLong).abs().remainder(4);
const Allowed kForward{.backward = false}, kFloat{.tolerance = 1e-5}, kOther{.other_cut = true};

TEST(SweepReduce, S20_OverEveryDim) {
  std::vector<Row> rows;
  const std::vector<std::pair<std::string, Dims>> kDims{
      {"0", {0}}, {"1", {1}}, {"-1", {-1}}, {"02", {0, 2}}, {"all", {0, 1, 2}}};
  for (const auto& [text, dims] : kDims) {
    for (const bool keep : {false, true}) {
      const std::string name = text + (keep ? "_keepdim" : "");
      rows.push_back(row("sum_" + name, {a}, [=, d = dims](X x) { return x.sum(d, keep); }));
      rows.push_back(row("mean_" + name, {a}, [=, d = dims](X x) { return x.mean(d, keep); }));
      rows.push_back(row("amax_" + name, {a}, [=, d = dims](X x) { return List{x.amax(d, keep), x.amin(d, keep)}; }));
      rows.push_back(row("var_" + name, {a}, [=, d = dims](X x) {
        return List{x.var(d, 1, keep), x.std(d, 0, keep)};
      }));
      rows.push_back(row("norm_" + name, {a}, [=, d = dims](X x) {
        return List{at::linalg_vector_norm(x, 2, d, keep), at::norm(x, 1, d, keep)};
      }));
      rows.push_back(row("logsumexp_" + name, {a}, [=, d = dims](X x) { return x.logsumexp(d, keep); }));
    }
  }
  for (const int64_t dim : {0, 1, 2}) {
    const std::string name = std::to_string(dim);
    rows.push_back(row("prod_" + name, {a}, [=](X x) { return x.prod(dim); }));
    rows.push_back(row("max_" + name, {a}, [=](X x) { return x.max(dim); }));
    rows.push_back(row(
        "argmin_" + name, {a},
        [=](X x) {
          return List{x.argmin(dim), x.argmax(dim, true)};
        },
        kForward));
    rows.push_back(row("any_" + name, {coin}, [=](X x) { return List{x.any(dim), x.all(dim, true), x.sum(dim)}; }));
    rows.push_back(row("softmax_" + name, {a}, [=](X x) { return List{x.softmax(dim), x.log_softmax(dim)}; }));
    rows.push_back(row("cumsum_" + name, {a}, [=](X x) { return List{x.cumsum(dim), x.cumprod(dim)}; }));
    rows.push_back(row("cummax_" + name, {a}, [=](X x) { return x.cummax(dim); }));
    rows.push_back(row("logcumsumexp_" + name, {a}, [=](X x) { return x.logcumsumexp(dim); }));
    rows.push_back(row("sort_" + name, {a}, [=](X x) { return x.sort(dim, true); }));
    rows.push_back(row("topk_" + name, {a}, [=](X x) { return x.topk(2, dim); }));
    rows.push_back(row("median_" + name, {a}, [=](X x) { return x.median(dim); }));
    rows.push_back(row("kthvalue_" + name, {a}, [=](X x) { return x.kthvalue(2, dim); }));
    rows.push_back(
        row("count_nonzero_" + name, {whole}, [=](X x) { return x.count_nonzero(std::optional<int64_t>(dim)); }));
  }
  sweep(rows);
}

TEST(SweepReduce, S20_Whole) {
  sweep({
      row("sum", {a}, [](X x) { return x.sum(); }),
      row("mean", {a}, [](X x) { return x.mean(); }),
      row("prod", {a}, [](X x) { return x.prod(); }),
      row("max", {a},
          [](X x) {
            return List{x.max(), x.min()};
          }),
      row(
          "argmax", {a},
          [](X x) {
            return List{x.argmax(), x.argmin()};
          },
          kForward),
      row("any", {coin},
          [](X x) {
            return List{x.any(), x.all(), x.count_nonzero(), at::_is_any_true(x != 0), at::_is_all_true(x != 0)};
          }),
      row("var_std", {a},
          [](X x) {
            return List{x.var(), x.std(), x.var(false)};
          }),
      row("var_mean", {a},
          [](X x) {
            return at::var_mean(x, Dims{0, 1}, 1, true);
          }),
      row("norm", {a},
          [](X x) {
            return List{x.norm(), x.norm(1), x.norm(3), at::linalg_vector_norm(x, INFINITY)};
          }),
      row("norm_zero", {flat},
          [](X x) {
            return List{x.norm(), x.sum(0), x.mean(0, true), x.var(0)};
          }),
      row("nansum", {a},
          [](X x) {
            return List{x.nansum(), x.nanmean(), x.nan_to_num().sum()};
          }),
      row("median", {flat},
          [](X x) {
            return List{x.median(), std::get<0>(x.mode(0))};
          }),
      row(
          "aminmax", {a}, [](X x) { return at::aminmax(x); }, kForward),
  });
}

TEST(SweepReduce, S20_WholeOfEveryKindOfNumber) {
  sweep({
      row("int_sum", {whole},
          [](X x) {
            return List{x.sum(), x.prod(0), x.amax(1), x.cumsum(0), x.to(at::kDouble).mean()};
          }),
      row("int_hash", {whole},
          [](X x) {
            return List{at::hash_tensor(x).view(at::kLong), at::hash_tensor(x, {0, 2}, true).view(at::kLong)};
          },
          {.tolerance = 0, .backward = false}),
      row("complex_sum", {wave},
          [](X x) {
            return List{x.sum(0), x.mean(), x.prod(1)};
          }),
      row(
          "float_sum", {narrow},
          [](X x) {
            return List{x.sum(0), x.mean(), x.var(1), x.softmax(2), x.sum(at::kDouble)};
          },
          kFloat),
      row("scalar_sum", {one},
          [](X x) {
            return List{x.sum(), x.mean(), x.amax(), x * x.softmax(0)};
          }),
  });
}

TEST(SweepReduce, S20_DistancesStatisticsAndCounts) {
  sweep({
      row("dist", {a, b}, [](X x, X y) { return at::dist(x, y, 2); }),
      row("cosine_similarity", {a, b}, [](X x, X y) { return at::cosine_similarity(x, y, 1); }),
      row("normalize", {a}, [](X x) { return x / x.norm(2, 1, true).clamp_min(1e-6); }),
      row("standardise", {a},
          [](X x) {
            return (x - x.mean(Dims{0, 1}, true)) / x.std(Dims{0, 1}, 1, true);
          }),
      row("trace", {m}, [](X x) { return x.trace(); }),
      row("diff", {m},
          [](X x) {
            return List{x.diff(), x.diff(1, 0)};
          }),
      row("cov", {m}, [](X x) { return at::cov(x); }),
      row("equal", {a, b},
          [](X x, X y) { return at::scalar_tensor(at::equal(x, y) || !at::equal(x, x) || at::allclose(x, y)); }),
      row("unique", {whole}, [](X x) { return std::get<0>(at::_unique2(x)); }),
      row("bincount", {labels}, [](X x) { return at::bincount(x, {}, 6); }),
      row("histc", {m}, [](X x) { return at::histc(x, 4, -1, 1); }, {.backward = false}),
  });
}

TEST(SweepReduce, S20_Products) {
  sweep({
      row("mm", {m, n}, [](X x, X y) { return x.mm(y); }),
      row("matmul", {m, n}, [](X x, X y) { return x.matmul(y); }),
      row("matmul_batch", {batch, n}, [](X x, X y) { return x.matmul(y); }),
      row("matmul_vector", {batch, flat}, [](X x, X y) { return x.matmul(y); }),
      row("matmul_both", {batch, batch2}, [](X x, X y) { return x.matmul(y); }),
      row("matmul_deep", {make_tensor({2, 3, 4, 5}, 1), make_tensor({3, 5, 2}, 2)},
          [](X x, X y) { return x.matmul(y); }),
      row("vector_matmul", {flat, n}, [](X x, X y) { return x.matmul(y); }),
      row("bmm", {batch, batch2}, [](X x, X y) { return x.bmm(y); }),
      row("mv", {m, flat}, [](X x, X y) { return x.mv(y); }),
      row("dot", {flat, make_tensor({7}, 19)},
          [](X x, X y) {
            return List{x.dot(y), at::vdot(x, y), at::inner(x, y)};
          }),
      row("addmm", {o, m, n}, [](X x, X y, X z) { return at::addmm(x, y, z, 0.5, 2); }),
      row("addmm_row", {make_tensor({6}, 20), m, n}, [](X x, X y, X z) { return at::addmm(x, y, z); }),
      row("baddbmm", {make_tensor({3, 5, 4}, 21), batch, batch2},
          [](X x, X y, X z) { return at::baddbmm(x, y, z, 0.5, 2); }),
      row("addmv", {make_tensor({5}, 22), m, flat}, [](X x, X y, X z) { return at::addmv(x, y, z); }),
      row("outer", {flat, make_tensor({5}, 23)},
          [](X x, X y) {
            return List{x.outer(y), at::kron(x, y)};
          }),
      row("linear", {batch, make_tensor({6, 7}, 24), make_tensor({6}, 25)},
          [](X x, X w, X c) { return at::linear(x, w, c); }),
      row("linear_flat", {m, make_tensor({6, 7}, 24)}, [](X x, X w) { return at::linear(x, w); }),
      row("bilinear", {m, o, make_tensor({2, 7, 6}, 26)}, [](X x, X y, X w) { return at::bilinear(x, y, w, {}); }),
      row("einsum", {batch, batch2},
          [](X x, X y) {
            return at::einsum("bij,bjk->ik", {x, y});
          }),
      row("einsum_sum", {m, n},
          [](X x, X y) {
            return List{at::einsum("ij,jk->", {x, y}), at::einsum("ij,jk->kij", {x, y})};
          }),
      row("tensordot", {batch, batch2}, [](X x, X y) { return at::tensordot(x, y, {2}, {1}); }),
      row("mm_transposed", {m, o}, [](X x, X y) { return x.t().mm(y); }),
      row("mm_complex", {m, n}, [](X x, X y) { return at::complex(x, x).mm(at::complex(y, y * 2)); }),
      row(
          "attention", {batch, batch, batch},
          [](X q, X k, X v) { return at::matmul(at::matmul(q, k.transpose(1, 2)).softmax(-1), v); }, kOther),
      row("cdist", {m, o.narrow(1, 0, 6).matmul(n.t())}, [](X x, X y) { return at::cdist(x, y); }),
      row("cross", {a, b}, [](X x, X y) { return at::linalg_cross(x, y, 2); }),
      row("addmm_", {o, m, n}, [](X x, X y, X z) { return Tensor(x * 2).addmm_(y, z); }),
      row("baddbmm_", {make_tensor({3, 5, 4}, 21), batch, batch2},
          [](X x, X y, X z) { return Tensor(x * 2).baddbmm_(y, z); }),
      row("addr", {m, make_tensor({5}, 22), flat}, [](X x, X y, X z) { return at::addr(x, y, z); }),
  });
}

TEST(SweepReduce, S20_Decompositions) {
  const Tensor square = make_tensor({4, 4}, 30) + 3 * at::eye(4, at::kDouble);
  const Allowed gathers{.gather = true};
  sweep({
      row("inverse", {square}, [](X x) { return at::linalg_inv(x); }),
      row("det", {square},
          [](X x) {
            return List{at::det(x), std::get<1>(at::slogdet(x))};
          }),
      row("solve", {square, make_tensor({4, 2}, 31)}, [](X x, X y) { return at::linalg_solve(x, y); }),
      row("cholesky", {square}, [](X x) { return at::linalg_cholesky(x.mm(x.t())); }),
      row("svdvals", {m}, [](X x) { return at::linalg_svdvals(x); }),
      row("qr", {m.t().contiguous()}, [](X x) { return at::linalg_qr(x); }),
      row(
          "fft", {m},
          [](X x) {
            return List{at::fft_fft(x).abs(), at::fft_rfft(x, {}, 0).abs()};
          },
          gathers),
      row("matrix_exp", {square}, [](X x) { return at::matrix_exp(x * 0.1); }),
  });
}

TEST(SweepReduce, S24_LossesOfEveryReduction) {
  std::vector<Row> rows;
  const std::pair<const char*, int64_t> kReductions[] = {
      {"none", at::Reduction::None}, {"mean", at::Reduction::Mean}, {"sum", at::Reduction::Sum}};
  for (const auto& [text, r] : kReductions) {
    const std::string end = std::string("_") + text;
    rows.push_back(row("mse" + end, {a, b}, [r = r](X x, X y) { return at::mse_loss(x, y, r); }));
    rows.push_back(row("l1" + end, {a, b}, [r = r](X x, X y) { return at::l1_loss(x, y, r); }));
    rows.push_back(row("smooth_l1" + end, {a, b}, [r = r](X x, X y) { return at::smooth_l1_loss(x, y, r, 0.3); }));
    rows.push_back(row("huber" + end, {a, b}, [r = r](X x, X y) { return at::huber_loss(x, y, r, 0.3); }));
    rows.push_back(row("bce" + end, {a, coin},
                       [r = r](X x, X y) { return at::binary_cross_entropy(x.sigmoid(), y.to(at::kDouble), {}, r); }));
    rows.push_back(row("bce_logits" + end, {a, coin}, [r = r](X x, X y) {
      return at::binary_cross_entropy_with_logits(x, y.to(at::kDouble), {}, {}, r);
    }));
    rows.push_back(row("kl" + end, {a, b}, [r = r](X x, X y) { return at::kl_div(x, y.abs(), r); }));
    rows.push_back(row("soft_margin" + end, {a, coin},
                       [r = r](X x, X y) { return at::soft_margin_loss(x, y.to(at::kDouble) * 2 - 1, r); }));
    rows.push_back(row("poisson_nll" + end, {a, b},
                       [r = r](X x, X y) { return at::poisson_nll_loss(x, y.abs(), true, false, 1e-8, r); }));
    rows.push_back(row("hinge_embedding" + end, {a, coin},
                       [r = r](X x, X y) { return at::hinge_embedding_loss(x, y.to(at::kDouble) * 2 - 1, 1, r); }));
    rows.push_back(row("cross_entropy" + end, {logits, labels, make_tensor({4}, 40).abs()},
                       [r = r](X x, X y, X w) { return at::cross_entropy_loss(x, y, w.detach(), r, 2, 0.1); }));
    rows.push_back(row("cross_entropy_field" + end, {field, field_labels},
                       [r = r](X x, X y) { return at::cross_entropy_loss(x, y, {}, r); }));
    rows.push_back(
        row("nll" + end, {logits, labels}, [r = r](X x, X y) { return at::nll_loss(x.log_softmax(1), y, {}, r); }));
    rows.push_back(row("triplet" + end, {m, m * 2, m + 1},
                       [r = r](X x, X y, X z) { return at::triplet_margin_loss(x, y, z, 1, 2, 1e-6, false, r); }));
    rows.push_back(row("cosine_embedding" + end, {m, m * 2, labels},
                       [r = r](X x, X y, X z) { return at::cosine_embedding_loss(x, y, z.gt(1) * 2 - 1, 0, r); }));
    rows.push_back(row("multi_margin" + end, {logits, labels},
                       [r = r](X x, X y) { return at::multi_margin_loss(x, y, 1, 1, {}, r); }));
  }
  sweep(rows);
}

}  // namespace
}  // namespace moonhalo::testing::test_sweep_reduce
