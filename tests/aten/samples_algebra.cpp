// SPDX-License-Identifier: Apache-2.0
// Products of matrices, decompositions, Fourier transforms.
#include "tests/aten/samples.h"

namespace moonhalo::testing {

namespace {

constexpr SampleLine kProductSamples[] = {
    {"mm matmul linalg_matmul", "d[5,4], d[4,3]"},
    {"matmul linalg_matmul", "d[2,5,4], d[4,3]"},
    {"matmul linalg_matmul", "d[2,5,4], d[2,4,3]"},
    {"matmul linalg_matmul", "d[5,4], d[4]"},
    {"bmm", "d[2,5,4], d[2,4,3]"},
    {"mv", "d[5,4], d[4]"},
    {"matmul linalg_matmul", "d[4], d[4,3]"},
    {"matmul linalg_matmul", "d[6], d[6]"},
    {"dot vdot inner", "d[6], d[6]"},
    {"inner", "d[5,3], d[4,3]"},
    {"outer ger", "d[5], d[4]"},
    {"addmm", "d[5,3], d[5,4], d[4,3], beta=0.5, alpha=2"},
    {"addmm", "d[3], d[5,4], d[4,3]"},
    {"addmv", "d[5], d[5,4], d[4], beta=0.5"},
    {"addmv", "d[1], d[5,4], d[4]"},
    {"addmv", "d[], d[5,4], d[4], alpha=2"},
    {"addmm", "d[], d[5,4], d[4,3]"},
    {"addmm", "d[5,1], d[5,4], d[4,3]"},
    {"addr", "d[5,4], d[5], d[4], alpha=2"},
    {"addr", "d[], d[5], d[4]"},
    {"addr", "d[5,1], d[5], d[4]"},
    {"addbmm", "d[5,3], d[2,5,4], d[2,4,3]"},
    {"addbmm", "d[1], d[2,5,4], d[2,4,3]"},
    {"baddbmm", "d[1], d[2,5,4], d[2,4,3]"},
    {"baddbmm", "d[2,1,3], d[2,5,4], d[2,4,3]"},
    {"baddbmm", "d[2,5,3], d[2,5,4], d[2,4,3], beta=0.5"},
    {"chain_matmul linalg_multi_dot", "{d[5,4], d[4,3], d[3,2]}"},
    {"einsum", "\"ij,jk->ik\", {d[5,4], d[4,3]}"},
    {"einsum", "\"bij,bjk->bik\", {d[2,5,4], d[2,4,3]}"},
    {"tensordot", "d[5,4,3], d[3,4,2], [1,2], [1,0]"},
    {"kron", "d[5,4], d[2,3]"},
    {"cross linalg_cross", "d[5,3], d[5,3], dim=1"},
    {"cross linalg_cross", "d[3,4], d[3,4], dim=0"},
    {"linalg_vecdot", "d[5,4], d[5,4]"},
    {"matrix_power linalg_matrix_power", "d[2,4,4], 3"},
    {"matrix_power linalg_matrix_power", "g[4,4], -2"},
    {"matrix_exp linalg_matrix_exp", "d[2,4,4]"},
};

constexpr SampleLine kDecompositionSamples[] = {
    {"linalg_cholesky linalg_cholesky_ex cholesky logdet", "s[3,4,4]"},
    {"linalg_cholesky cholesky", "s[4,4], upper=true"},
    {"cholesky_inverse", "t[4,4]"},
    {"cholesky_solve", "d[4,2], t[4,4]"},
    {"linalg_det det linalg_inv linalg_inv_ex inverse linalg_slogdet slogdet logdet linalg_lu linalg_lu_factor "
     "linalg_lu_factor_ex linalg_svdvals linalg_cond linalg_pinv pinverse linalg_qr qr linalg_matrix_rank",
     "s[3,4,4]"},
    {"linalg_det det linalg_inv linalg_inv_ex inverse linalg_slogdet slogdet linalg_lu linalg_lu_factor "
     "linalg_lu_factor_ex "
     "linalg_svdvals linalg_cond linalg_pinv pinverse linalg_eigvals linalg_eig geqrf",
     "g[4,4]"},
    {"linalg_qr qr geqrf linalg_svdvals linalg_pinv pinverse linalg_svd svd", "d[5,4]"},
    {"linalg_qr", "d[2,5,4], \"complete\""},
    {"linalg_eigh linalg_eigvalsh", "s[4,4]"},
    {"linalg_eigh linalg_eigvalsh linalg_eigvals linalg_eig", "s[2,4,4]"},
    {"linalg_svd svd", "d[2,5,4], false"},
    {"linalg_solve linalg_solve_ex", "g[4,4], d[4,2]"},
    {"linalg_solve linalg_solve_ex", "s[2,4,4], d[2,4,3]"},
    {"linalg_solve_triangular", "t[4,4], d[4,2], upper=false"},
    {"linalg_solve_triangular", "t[2,4,4], d[2,4,3], upper=false"},
    {"triangular_solve", "d[4,2], t[4,4], false"},
    {"linalg_lstsq", "d[5,3], d[5,2]"},
    {"linalg_lu_solve", "g[4,4], i{1,2,3,4}, d[4,2]"},
    {"lu_solve", "d[4,2], g[4,4], i{1,2,3,4}"},
    {"lu_unpack", "g[4,4], i{1,3,3,4}"},
    {"linalg_ldl_factor linalg_ldl_factor_ex", "s[4,4]"},
    {"linalg_ldl_solve", "s[4,4], i{1,2,3,4}, d[4,2]"},
    {"linalg_householder_product orgqr", "d[5,3], d[3]"},
    {"ormqr", "d[5,3], d[3], d[5,2]"},
    {"linalg_matrix_rank", "d[5,4], 0.001"},
    {"linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank", "d[5,4], atol=d(0.001)"},
    {"linalg_matrix_rank.tol_tensor linalg_matrix_rank", "d[5,4], d(0.001)"},
    {"linalg_pinv linalg_pinv.rcond_tensor", "d[5,4], 0.001"},
    {"linalg_pinv.rcond_tensor linalg_pinv", "d[5,4], d(0.001)"},
    {"linalg_cond.p_str linalg_cond", "g[4,4], \"fro\""},
    {"linalg_tensorinv", "g[4,4], 1"},
    {"linalg_tensorinv", "d[4,6,8,3], 2"},
    {"linalg_tensorsolve", "d[2,3,6], d[2,3]"},
    {"linalg_vander", "d[5,4]"},
};

constexpr SampleLine kFourierSamples[] = {
    {"fft_fft fft_ifft fft_rfft fft_ihfft fft_hfft fft_irfft", "d[5,6]"},
    {"fft_fft fft_ifft fft_hfft fft_irfft", "c[5,6], dim=0"},
    {"fft_fft fft_ifft fft_rfft fft_ihfft", "d[5,6], 4, 0, \"ortho\""},
    {"fft_fft2 fft_ifft2 fft_rfft2 fft_ihfft2 fft_hfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_ihfftn fft_hfftn "
     "fft_irfftn",
     "d[2,5,6]"},
    {"fft_fft2 fft_ifft2 fft_rfft2 fft_ihfft2 fft_hfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_ihfftn fft_hfftn "
     "fft_irfftn",
     "d[2,5,6], dim=[0,1]"},
    {"fft_fftshift fft_ifftshift", "d[5,4]"},
    {"fft_fftshift fft_ifftshift", "d[5,4], [0]"},
    {"stft", "d[2,16], 6, 3, 6, p[6], return_complex=true"},
    {"stft.center", "d[2,16], 6, 3, 6, p[6], return_complex=true"},
    {"istft", "c[2,4,8], 6, 2, 6, p[6]"},
};

}  // namespace

std::vector<SampleLine> algebra_samples() {
  return join_tables({kProductSamples, kDecompositionSamples, kFourierSamples});
}

}  // namespace moonhalo::testing
