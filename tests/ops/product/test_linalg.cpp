// SPDX-License-Identifier: Apache-2.0
// Linear algebra on batches of matrices, in any memory and however they are held: S20, S01.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_linalg {
namespace {

using at::Tensor;
using Dims = std::vector<int64_t>;

const Tensor eye = at::eye(3, at::kDouble);
const Tensor square = make_tensor({4, 3, 3}, 1) + 3 * eye, one = make_tensor({3, 3}, 2) + 3 * eye;
const Tensor positive = square.matmul(square.mT()), right = make_tensor({4, 3, 2}, 3), vectors = make_tensor({4, 3}, 4),
             tall = make_tensor({4, 5, 3}, 5), deep = make_tensor({2, 3, 4, 4}, 6) + 4 * at::eye(4, at::kDouble);
const Allowed kForward{.backward = false};

TEST(SweepReduceLinalg, S20_InversesDeterminantsAndSolutions) {
  sweep({
      row("inv", {square},
          [](X x) {
            return List{at::linalg_inv(x), at::inverse(x)};
          }),
      row("inv_ex", {deep}, [](X x) { return at::linalg_inv_ex(x); }),
      row("inv_one", {one}, [](X x) { return at::linalg_inv(x); }),
      row("det", {square}, [](X x) { return at::linalg_det(x); }),
      row("slogdet", {square}, [](X x) { return at::linalg_slogdet(x); }),
      row("logdet", {positive}, [](X x) { return at::logdet(x); }),
      row("solve", {square, right}, [](X x, X y) { return at::linalg_solve(x, y); }),
      row("solve_vectors", {square, vectors}, [](X x, X y) { return at::linalg_solve(x, y); }),
      row("solve_shared", {one, right}, [](X x, X y) { return at::linalg_solve(x, y); }),
      row("solve_right", {square, right}, [](X x, X y) { return at::linalg_solve(x, y.mT(), false); }),
      row("solve_ex", {square, right}, [](X x, X y) { return std::get<0>(at::linalg_solve_ex(x, y)); }),
      row("solve_triangular", {square, right}, [](X x, X y) { return at::linalg_solve_triangular(x.triu(), y, true); }),
      row("solve_triangular_shared", {one, right},
          [](X x, X y) { return at::linalg_solve_triangular(x.tril(), y, false); }),
      row("triangular_solve", {right, square}, [](X y, X x) { return std::get<0>(at::triangular_solve(y, x)); }),
  });
}

TEST(SweepReduceLinalg, S20_Factors) {
  sweep({
      row("cholesky", {positive},
          [](X x) {
            return List{at::linalg_cholesky(x), at::linalg_cholesky(x, true)};
          }),
      row("cholesky_ex", {positive}, [](X x) { return at::linalg_cholesky_ex(x); }),
      row("cholesky_inverse", {positive}, [](X x) { return at::cholesky_inverse(at::linalg_cholesky(x)); }),
      row("cholesky_solve", {right, positive}, [](X y, X x) { return at::cholesky_solve(y, at::linalg_cholesky(x)); }),
      row("lu_factor", {square}, [](X x) { return at::linalg_lu_factor(x); }),
      row("lu_factor_ex", {tall}, [](X x) { return at::linalg_lu_factor_ex(x); }),
      row("lu", {tall}, [](X x) { return at::linalg_lu(x); }),
      row("lu_solve", {square, right},
          [](X x, X y) {
            const auto [lu, pivots] = at::linalg_lu_factor(x);
            return List{at::linalg_lu_solve(lu, pivots, y), at::lu_solve(y, lu, pivots)};
          }),
      row("lu_unpack", {tall},
          [](X x) {
            const auto [lu, pivots] = at::linalg_lu_factor(x);
            return at::lu_unpack(lu, pivots);
          }),
      row("ldl", {positive, right},
          [](X x, X y) {
            const auto [ld, pivots] = at::linalg_ldl_factor(x.detach());
            return List{ld, pivots, at::linalg_ldl_solve(ld, pivots, y.detach())};
          }),
      row("qr", {tall}, [](X x) { return at::linalg_qr(x); }),
      row(
          "qr_r", {square}, [](X x) { return std::get<1>(at::linalg_qr(x, "r")); }, kForward),
      row("householder", {tall},
          [](X x) {
            const auto [v, tau] = at::geqrf(x.detach());
            return List{v, tau, at::linalg_householder_product(v, tau), at::orgqr(v, tau)};
          }),
      row("householder_grad", {tall, vectors}, [](X x, X tau) { return at::linalg_householder_product(x, tau); }),
      row("ormqr", {tall, make_tensor({4, 5, 2}, 8)},
          [](X x, X y) {
            const auto [v, tau] = at::geqrf(x.detach());
            return at::ormqr(v, tau, y.detach());
          }),
  });
}

TEST(SweepReduceLinalg, S20_SpectraAndPseudoinverses) {
  sweep({
      row("svd", {tall}, [](X x) { return at::linalg_svd(x, false); }),
      row(
          "svd_full", {tall}, [](X x) { return at::linalg_svd(x); }, kForward),
      row("svd_old", {square}, [](X x) { return at::svd(x); }),
      row("svdvals", {tall}, [](X x) { return at::linalg_svdvals(x); }),
      row("eigh", {positive}, [](X x) { return at::linalg_eigh(x); }),
      row("eigvalsh", {positive}, [](X x) { return at::linalg_eigvalsh(x); }),
      row(
          "eig", {square}, [](X x) { return at::linalg_eig(x); }, kForward),
      row("eigvals", {square}, [](X x) { return at::linalg_eigvals(x).abs(); }),
      row("complex_eigh", {square},
          [](X x) {
            const Tensor c = at::complex(x, x * 0.3);
            return at::linalg_eigvalsh(c.matmul(c.mH()));
          }),
      row("lstsq", {tall, make_tensor({4, 5, 2}, 9)}, [](X x, X y) { return std::get<0>(at::linalg_lstsq(x, y)); }),
      row(
          "lstsq_gelsd", {tall, make_tensor({4, 5, 2}, 9)},
          [](X x, X y) { return at::linalg_lstsq(x, y, {}, "gelsd"); }, kForward),
      row("pinv", {tall}, [](X x) { return at::linalg_pinv(x); }),
      row("pinv_hermitian", {positive}, [](X x) { return at::linalg_pinv(x, 1e-8, true); }),
      row("pinv_old", {tall}, [](X x) { return at::pinverse(x); }),
  });
}

TEST(SweepReduceLinalg, S20_NormsAndRanks) {
  sweep({
      row("matrix_norm", {tall},
          [](X x) {
            return List{at::linalg_matrix_norm(x), at::linalg_matrix_norm(x, "nuc"), at::linalg_matrix_norm(x, 2),
                        at::linalg_matrix_norm(x, 1), at::linalg_matrix_norm(x, INFINITY, {0, 1})};
          }),
      row(
          "cond", {square},
          [](X x) {
            return List{at::linalg_cond(x), at::linalg_cond(x, 1)};
          },
          kForward),
      row(
          "matrix_rank", {tall}, [](X x) { return at::linalg_matrix_rank(x); }, kForward),
      row("vector_norm", {tall},
          [](X x) {
            return List{at::linalg_vector_norm(x, 3), at::linalg_norm(x, 2, 1)};
          }),
      row("norms", {one},
          [](X x) {
            return List{at::linalg_norm(x, "fro"), at::linalg_norm(x, "nuc"), at::nuclear_norm(x),
                        at::frobenius_norm(x, Dims{0, 1})};
          }),
  });
}

TEST(SweepReduceLinalg, S20_ProductsAndTensorSolutions) {
  sweep({
      row("matrix_exp", {square}, [](X x) { return at::linalg_matrix_exp(x * 0.1); }),
      row("matrix_power", {square},
          [](X x) {
            return List{x.matrix_power(3), x.matrix_power(-2), x.matrix_power(0)};
          }),
      row("tensorinv", {make_tensor({2, 3, 6}, 10) + at::eye(6, at::kDouble).view({2, 3, 6}) * 4},
          [](X x) { return at::linalg_tensorinv(x, 2); }),
      row("tensorsolve",
          {make_tensor({2, 3, 6}, 10) + at::eye(6, at::kDouble).view({2, 3, 6}) * 4, make_tensor({2, 3}, 11)},
          [](X x, X y) { return at::linalg_tensorsolve(x, y); }),
      row("vander", {vectors}, [](X x) { return at::linalg_vander(x, 4); }),
      row(
          "vander_old", {make_tensor({5}, 4)}, [](X x) { return at::vander(x, 3); }, kForward),
      row("vecdot", {vectors, make_tensor({4, 3}, 12)},
          [](X x, X y) {
            return List{at::linalg_vecdot(x, y), at::linalg_vecdot(x, y, 0)};
          }),
      row("multi_dot", {make_tensor({5, 4}, 13), make_tensor({4, 3}, 14), make_tensor({3, 6}, 15)},
          [](X x, X y, X z) {
            return List{at::linalg_multi_dot({x, y, z}), at::chain_matmul({x, y, z})};
          }),
      row("complex_solve", {square, right},
          [](X x, X y) { return at::linalg_solve(at::complex(x, x * 0.3), at::complex(y, y + 1)); }),
      row("kron", {one, vectors}, [](X x, X y) { return at::kron(x, y); }),
      row("bilinear",
          {make_tensor({5, 7}, 16), make_tensor({5, 6}, 17), make_tensor({2, 7, 6}, 18), make_tensor({2}, 19)},
          [](X x, X y, X w, X c) { return at::bilinear(x, y, w, c); }, {.other_cut = true}),
      row("addbmm", {make_tensor({3, 2}, 20), square, right},
          [](X x, X y, X z) { return at::addbmm(x, y, z, 0.5, 2); }),
      row("baddbmm", {make_tensor({4, 3, 2}, 20), square, right},
          [](X x, X y, X z) { return at::baddbmm(x, y, z, 0.5, 2); }),
      row("addmv", {make_tensor({3}, 21), one, make_tensor({3}, 22)},
          [](X x, X y, X z) { return at::addmv(x, y, z, 0.5, 2); }),
  });
}

// LibTorch factors the transposed matrix where a real one is row by row, and its derivative asks the whole tensor
// how it is. Here the block is otherwise than the whole: a batch of one, rows that were gathered, a cut of the inner
// of two batch dims.
struct Memory {
  const char* name;
  std::function<Tensor(const Tensor&)> of;
};
const Memory kMemories[] = {
    {"as_it_is", [](const Tensor& x) { return x; }},
    {"transposed", [](const Tensor& x) { return x.mT(); }},
    {"column_by_column", [](const Tensor& x) { return x.mT().contiguous().mT(); }},
    {"one_of_a_stack",
     [](const Tensor& x) {
       return at::stack({x * 2, x}, 1).select(1, 0);
     }},
    {"part_of_a_batch",
     [](const Tensor& x) {
       return at::stack({x, x * 2}, 1).narrow(1, 0, 1);
     }},
    {"part_of_wider_ones",
     [](const Tensor& x) {
       return at::constant_pad_nd(x, {0, 1}).narrow(2, 0, 3);
     }},
    {"batch_last",
     [](const Tensor& x) {
       return x.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
     }},
};

const std::vector<PlacementCase> kMatrices = {
    {"batch_3_1", {2}, {shard(0, {3, 1})}},  {"batch_1_0_3", {3}, {shard(0, {1, 0, 3})}},
    {"batch_over_4", {4}, {shard(0)}},       {"rows", {2}, {shard(1, {2, 1})}},
    {"columns", {3}, {shard(2, {0, 2, 1})}}, {"batch_and_rows", {2, 2}, {shard(0, {1, 3}), shard(1)}},
    {"partial", {2}, {partial()}},
};

TEST(Linalg, S20_FactorsOfMatricesInAnyMemory) {
  for (const Memory& memory : kMemories) {
    SCOPED_TRACE(memory.name);
    const auto of = [&](const Tensor& x) { return memory.of(cubed(x)); };
    const auto beside = [](const Tensor& a) { return (a.dim() == 4 ? right.unsqueeze(1) : right).to(a.device()); };
    check(
        {
            {"det", [=](const Tensor& x) { return List{at::linalg_det(of(x))}; }, kTwice},
            {"slogdet", [=](const Tensor& x) { return List{std::get<1>(at::linalg_slogdet(of(x)))}; }, kTwice},
            {"solve",
             [=](const Tensor& x) {
               return List{at::linalg_solve(of(x), beside(of(x))), at::linalg_solve(of(x), beside(of(x)).mT(), false)};
             },
             kTwice},
            {"inverse",
             [=](const Tensor& x) {
               return List{at::linalg_inv(of(x)), of(x).matrix_power(-2)};
             }},
            {"triangular",
             [=](const Tensor& x) { return List{at::linalg_solve_triangular(of(x).triu(), beside(of(x)), true)}; }},
            {"cholesky",
             [=](const Tensor& x) {
               const Tensor l = at::linalg_cholesky(of(x).matmul(of(x).mT()));
               return List{l, at::cholesky_solve(beside(l), l), at::cholesky_inverse(l)};
             }},
            {"lu",
             [=](const Tensor& x) {
               const auto [lu, pivots] = at::linalg_lu_factor(of(x));
               return List{lu, at::linalg_lu_solve(lu, pivots, beside(lu))};
             }},
            {"qr", [=](const Tensor& x) { return List{std::get<1>(at::linalg_qr(of(x)))}; }},
            {"exp", [=](const Tensor& x) { return List{at::linalg_matrix_exp(of(x) * 0.01)}; }},
            {"norm_of_svd",
             [=](const Tensor& x) {
               return List{at::linalg_svdvals(of(x)), at::linalg_pinv(of(x))};
             }},
        },
        square, kMatrices);
  }
}

// Plain matrices beside blocks of the right-hand side are narrowed to the batch that a rank has.
TEST(Linalg, S20_PlainMatricesBesideBlocks) {
  const Tensor matrices = make_tensor({2, 3, 3, 3}, 6) + 3 * at::eye(3, at::kDouble),
               sides = make_tensor({2, 3, 3, 2}, 7);
  for (const Memory& memory : {kMemories[0], kMemories[1], kMemories[2]}) {
    SCOPED_TRACE(memory.name);
    for (const int64_t dim : {0, 1, 2}) {
      expect_same_as_plain(
          {2}, {{.full = matrices, .plain = true}, {sides, {shard(dim)}}},
          [&](const Tensors& t) { return Tensors{at::linalg_solve(memory.of(t[0]), t[1])}; }, kTwice);
    }
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_linalg
