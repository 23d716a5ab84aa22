// SPDX-License-Identifier: Apache-2.0
// Along dims: reductions, statistics, scans, sorting, histograms, losses.
#include "tests/aten/samples.h"

namespace moonhalo::testing {

namespace {

constexpr SampleLine kReductionSamples[] = {
    {"sum mean nansum nanmean prod std var std_mean var_mean amax amin any all aminmax max min median nanmedian "
     "argmax argmin count_nonzero trace",
     "d[5,4]"},
    {"sum.dim_IntList mean.dim nansum nanmean amax amin logsumexp special_logsumexp sum mean var.dim std.dim "
     "count_nonzero.dim_IntList any.dims all.dims frobenius_norm.dim linalg_vector_norm",
     "d[5,4,3], dim=[0,2]"},
    {"sum.dim_IntList mean.dim nansum nanmean amax amin logsumexp special_logsumexp", "d[5,4,3], [1], true"},
    {"sum prod any all max min argmax argmin sum.dim_IntList", "l[5,4]"},
    {"any all any.dim all.dim", "b[5,4]"},
    {"any.dim all.dim", "b[5,4], 0"},
    {"sum mean prod", "c[5,4]"},
    {"var std var_mean std_mean", "d[5,4,3], true"},
    {"var.dim std.dim var_mean.dim std_mean.dim var std", "d[5,4,3], [1], false, true"},
    {"var.correction std.correction var_mean.correction std_mean.correction", "d[5,4,3], [0,1], correction=2"},
    {"var.correction std.correction var_mean.correction std_mean.correction", "d[5,4,3], correction=0"},
    {"max.dim min.dim median.dim nanmedian.dim mode argmax argmin cummax cummin", "d[5,4,3], 0"},
    {"max.dim min.dim median.dim nanmedian.dim mode argmax argmin", "d[5,4,3], 1, true"},
    {"argmax argmin", "l[5,4]<3, 0"},
    {"argmax argmin", "d[5,4,3]"},
    {"mode", "l[5,4]<3, 0"},
    {"kthvalue", "d[5,4,3], 2, 0"},
    {"kthvalue", "d[5,4,3], 3, 1, true"},
    {"quantile.scalar nanquantile.scalar quantile nanquantile", "d[5,4], 0.3"},
    {"quantile.scalar nanquantile.scalar quantile nanquantile", "d[5,4], 0.3, 0, true"},
    {"quantile nanquantile", "d[5,4], d{0.2,0.7}, 1"},
    {"quantile nanquantile", "d[5,4], d{0.2,0.7}, 0, interpolation=\"nearest\""},
};

constexpr SampleLine kScanAndSortSamples[] = {
    {"cumsum cumprod logcumsumexp cummax cummin", "d[5,4,3], 0"},
    {"cumsum cumprod logcumsumexp cummax cummin", "d[5,4,3], -1"},
    {"cumsum cumprod", "l[5,4], 0"},
    {"sort msort", "d[5,4,3]"},
    {"argsort.stable_out", "d[5,4,3], stable=true, dim=0"},
    {"prod.dim_int prod.int_out all.out any.out max.dim_max min.dim_min median.dim_values nanmedian.dim_values",
     "d[5,4,3], 1, true"},
    {"count_nonzero.dim_IntList_out", "l[5,4,3]<3, [0,2]"},
    {"native_norm.out", "d[5,4]"},
    {"native_norm.ScalarOpt_dim_dtype_out", "d[5,4], 2, [1], false, double"},
    {"sort argsort", "d[5,4,3], 0, true"},
    {"sort.stable argsort.stable sort", "l[6,4]<3, stable=true, dim=0"},
    {"topk", "d[5,4,3], 2, 0"},
    {"topk", "d[5,4,3], 3, 1, false"},
};

constexpr SampleLine kCountSamples[] = {
    {"unique_consecutive", "l[9]<3, true, true"},
    {"unique_consecutive", "l[5,4]<2, true, true, 0"},
    {"unique_dim", "l[6,2]<2, 0, true, true, true"},
    {"unique_dim_consecutive", "l[6,2]<2, 0, true, true"},
    {"_unique2", "l[6,2]<4, true, true, true"},
    {"_unique", "l[6,2]<4, true, true"},
    {"histc", "d[5,4], 6, -1, 1"},
    {"histc", "d[9], 4"},
    {"bincount", "l[9]<5"},
    {"bincount", "l[9]<5, d[9], 7"},
    {"histogram histogram.bin_ct", "d[9], 4, range=[-1.0,1.0]"},
    {"histogram histogram.bin_ct", "d[5,4], 4, range=[-1.0,1.0], weight=p[5,4]"},
    {"histogram histogram.bins_tensor", "d[9], d{-1,0,0.5,1}"},
    {"histogramdd", "d[6,2], [3,2], range=[-1.0,1.0,-1.0,1.0]"},
    {"histogramdd.int_bins", "d[6,2], 3"},
    {"histogramdd.TensorList_bins", "d[6,2], {d{-1,0,1}, d{-1,0,0.5,1}}"},
    {"bucketize.Tensor bucketize", "d[5,4], d{-0.5,0,0.4}"},
    {"bucketize.Scalar bucketize", "0.3, a[6]"},
    {"searchsorted.Tensor searchsorted", "a[6], d[5,4]"},
    {"searchsorted.Tensor searchsorted", "a[5,6], d[5,3], right=true"},
    {"searchsorted.Scalar searchsorted", "a[6], 0.3"},
    {"isin.Tensor_Tensor isin", "l[5,4], l{1,3}"},
    {"isin.Tensor_Scalar isin", "l[5,4], 2"},
    {"isin.Scalar_Tensor isin", "2, l[5,4]"},
};

constexpr SampleLine kNormSamples[] = {
    {"norm.Scalar norm", "d[5,4], 2"},
    {"norm.Scalar norm", "d[5,4], 3"},
    {"norm.ScalarOpt_dim norm", "d[5,4], 2, [0]"},
    {"norm.ScalarOpt_dim_dtype norm", "d[5,4], 2, [0], false, dtype=double"},
    {"norm.ScalarOpt_dtype norm", "d[5,4], 1, dtype=double"},
    {"linalg_vector_norm", "d[5,4,3], inf, [0]"},
    {"linalg_vector_norm linalg__powsum", "d[5,4,3], 3, [0,1], true"},
    {"linalg_norm", "d[5,4,3], 2, [1]"},
    {"linalg_norm", "d[5,4]"},
    {"linalg_norm.ord_str linalg_norm", "d[5,4], \"fro\""},
    {"linalg_matrix_norm", "d[5,4,3], 1"},
    {"linalg_matrix_norm", "d[5,4,3], inf, [0,1]"},
    {"linalg_matrix_norm.str_ord linalg_matrix_norm", "d[5,4,3]"},
    {"linalg_matrix_norm.str_ord linalg_matrix_norm", "d[5,4,3], \"nuc\""},
    {"nuclear_norm", "d[5,4]"},
    {"nuclear_norm.dim nuclear_norm", "d[5,4,3], [0,1]"},
    {"frobenius_norm.dim frobenius_norm", "d[5,4,3], [0,1], true"},
    {"norm_except_dim", "d[5,4,3], 2, 1"},
    {"renorm", "d[5,4,3], 2, 1, 0.5"},
    {"renorm", "d[5,4,3], 1, 0, 0.5"},
    {"cov", "d[4,6]"},
    {"cov", "d[4,6], correction=0, fweights=l{1,2,1,3,1,1}, aweights=p[6]"},
    {"corrcoef", "d[4,6]"},
    {"dist", "d[5,4], d[5,4], 2"},
    {"dist", "d[5,4], d[5,4], 1"},
    {"cdist", "d[5,3], d[4,3], 2"},
    {"cdist", "d[2,5,3], d[2,4,3], 1"},
    {"pdist", "d[5,3]"},
    {"pairwise_distance", "d[5,4], d[5,4]"},
    {"cosine_similarity", "d[5,4,3], d[5,4,3]"},
    {"cosine_similarity", "d[5,4,3], d[5,4,3], 0"},
    {"trapezoid.x trapz.x cumulative_trapezoid.x", "d[5,4], a[4]"},
    {"trapezoid.dx trapz.dx cumulative_trapezoid.dx", "d[5,4], dx=0.5, dim=0"},
    {"diff", "d[6,4], 1, 0"},
    {"diff", "d[6,4], 2, 0, d[1,4]"},
};

constexpr SampleLine kSoftmaxAndLossSamples[] = {
    {"softmax log_softmax special_softmax special_log_softmax", "d[5,4,3], 1"},
    {"softmax log_softmax special_softmax special_log_softmax", "d[5,4,3], 0"},
    {"_softmax _log_softmax", "d[5,4,3], 0, false"},
    {"_softmax _log_softmax", "d[5,4,3], 2, false"},
    {"mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div", "d[9,4], d[9,4], 0"},
    {"mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div", "d[9,4], d[9,4], 1"},
    {"mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div", "d[9,4], p[9,4], 2"},
    {"binary_cross_entropy.out", "p[9,4], p[9,4], -, 0, out=d[9,4]"},  // LibTorch's own is wrong for others
    {"binary_cross_entropy_with_logits", "p[9,4], p[9,4]"},
    {"aten::binary_cross_entropy", "p[9,4], p[9,4]"},
    {"aten::binary_cross_entropy", "p[9,4], p[9,4], p[9,4], 2"},
    {"binary_cross_entropy_with_logits", "d[9,4], p[9,4], p[4], p[4], 1"},
    {"nll_loss nll_loss_nd cross_entropy_loss", "d[9,4], l[9]<4"},
    {"nll_loss nll_loss_nd cross_entropy_loss", "d[9,4], l[9]<4, p[4], 2"},
    {"nll_loss nll_loss_nd cross_entropy_loss", "d[9,4], l[9]<4, p[4], 0, 1"},
    {"nll_loss_forward", "d[9,4], l[9]<4, -, 1, -100"},
    {"nll_loss_forward", "d[9,4], l[9]<4, p[4], 0, -100"},
    {"nll_loss2d", "d[2,4,5,3], l[2,5,3]<4"},
    {"nll_loss2d cross_entropy_loss nll_loss_nd", "d[2,4,5,3], l[2,5,3]<4, p[4]"},
    {"nll_loss2d_forward", "d[2,4,5,3], l[2,5,3]<4, -, 1, -100"},
    {"cross_entropy_loss", "d[9,4], p[9,4], label_smoothing=0.1"},
    {"multi_margin_loss", "d[9,4], l[9]<4"},
    {"multilabel_margin_loss", "d[3,4], l[3,4]<4"},
    {"multilabel_margin_loss_forward", "d[3,4], l[3,4]<4, 1"},
    {"margin_ranking_loss", "d[9], d[9], d[9], 0.1"},
    {"cosine_embedding_loss", "d[9,4], d[9,4], d{1,-1,1,1,-1,1,-1,1,1}"},
    {"hinge_embedding_loss", "d[9,4], d[9,4]"},
    {"triplet_margin_loss", "d[9,4], d[9,4], d[9,4]"},
    {"poisson_nll_loss", "d[9,4], p[9,4], true, false, 0.001, 1"},
    {"poisson_nll_loss", "p[9,4], w[9,4], false, true, 0.001, 2"},
    {"ctc_loss.IntList", "d[6,2,5], l{1,2,3,1,2}, [6,5], [3,2]"},
    {"ctc_loss.Tensor", "d[6,2,5], l{1,2,3,1,2}, l{6,5}, l{3,2}"},
};

constexpr SampleLine kSegmentSamples[] = {
    {"hash_tensor", "l[5,4]"},
    {"segment_reduce", "d[6,3], \"sum\", lengths=l{1,0,3,2}"},
    {"segment_reduce", "d[6,3], \"mean\", lengths=l{1,0,3,2}"},
    {"segment_reduce", "d[6], \"max\", lengths=l{1,3,2}"},
};

}  // namespace

std::vector<SampleLine> reduction_samples() {
  return join_tables(
      {kReductionSamples, kScanAndSortSamples, kCountSamples, kNormSamples, kSoftmaxAndLossSamples, kSegmentSamples});
}

}  // namespace moonhalo::testing
