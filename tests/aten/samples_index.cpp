// SPDX-License-Identifier: Apache-2.0
// Indices: reading and writing where other tensors say.
#include "tests/aten/samples.h"

namespace moonhalo::testing {

namespace {

constexpr SampleLine kIndexSamples[] = {
    {"index.Tensor", "d[5,4,3], {l[6]<5}"},
    {"index.Tensor", "d[5,4,3], {-, l[2,3]<4}"},
    {"index.Tensor", "d[5,4,3], {l[6]<5, l[6]<4}"},
    {"index.Tensor", "d[5,4,3], {b[5]}"},
    {"index.Tensor", "d[5,4,3], {b[5,4]}"},
    {"index_put index_put_", "d[5,4,3], {n[3]}, d[3,4,3]"},
    {"index_put index_put_", "d[5,4,3], {l[6]<5, l[6]<4}, d[6,3], true"},
    {"index_put index_put_", "d[5,4], {b[5]}, d(0.5)"},
    {"index_select", "d[5,4,3], 0, l[6]<5"},
    {"index_select", "d[5,4,3], 1, l[3]<4"},
    {"index_add index_add_", "d[5,4,3], 0, l[6]<5, d[6,4,3]"},
    {"index_add index_add_", "d[5,4,3], 1, l[3]<4, d[5,3,3], alpha=2"},
    {"index_copy index_copy_", "d[5,4,3], 0, n[3], d[3,4,3]"},
    {"index_copy index_copy_", "d[5,4,3], 1, n[4], d[5,4,3]"},
    {"index_fill.int_Scalar index_fill", "d[5,4,3], 0, n[2], 0.5"},
    {"index_fill.int_Tensor index_fill", "d[5,4,3], 1, n[2], d(0.5)"},
    {"index_reduce index_reduce_", "d[5,4,3], 0, l[6]<5, d[6,4,3], \"prod\""},
    {"index_reduce index_reduce_", "d[5,4,3], 1, l[3]<4, d[5,3,3], \"mean\", include_self=false"},
};

constexpr SampleLine kGatherAndScatterSamples[] = {
    {"gather", "d[5,4,3], 0, l[2,4,3]<5"},
    {"gather", "d[5,4,3], 1, l[5,6,2]<4"},
    {"scatter.src scatter", "d[5,4,3], 0, n[2,4,3], d[2,4,3]"},
    {"scatter.src scatter", "d[5,4], 1, n[5,3], d[5,4]"},
    {"scatter.value scatter", "d[5,4], 0, l[3,4]<5, 0.5"},
    {"scatter.reduce scatter", "d[5,4], 0, l[6,4]<5, d[6,4], reduce=\"add\""},
    {"scatter.value_reduce scatter", "d[5,4], 0, l[3,4]<5, 2, reduce=\"multiply\""},
    {"scatter_add scatter_add_", "d[5,4,3], 0, l[6,4,3]<5, d[6,4,3]"},
    {"scatter_add scatter_add_", "d[5,4,3], 2, l[5,4,6]<3, d[5,4,6]"},
    {"scatter_reduce.two scatter_reduce", "d[5,4], 0, l[6,4]<5, d[6,4], \"sum\""},
    {"scatter_reduce.two scatter_reduce", "d[5,4], 0, l[6,4]<5, d[6,4], \"mean\", include_self=false"},
    {"scatter_reduce.two scatter_reduce", "d[5,4], 1, l[5,3]<4, d[5,3], \"amax\""},
    {"take", "d[5,4], l[3,2]<20"},
    {"take_along_dim", "d[5,4,3], l[2,4,3]<5, 0"},
    {"take_along_dim", "d[5,4], l[6]<20"},
    {"put put_", "d[5,4], n[6], d[6]"},
    {"put put_", "d[5,4], l[6]<20, d[6], true"},
};

constexpr SampleLine kMaskSamples[] = {
    {"masked_fill.Scalar masked_fill", "d[5,4,3], b[5,4,3], 0.5"},
    {"masked_fill.Tensor masked_fill", "d[5,4,3], b[4,1], d(0.5)"},
    {"masked_scatter", "d[5,4], b[5,4], d[20]"},
    {"masked_scatter", "d[5,4], b[4], d[5,4]"},
    {"masked_select", "d[5,4], b[5,4]"},
    {"masked_select", "d[5,4,3], b[4,1]"},
    {"nonzero nonzero_numpy argwhere", "b[5,4]"},
    {"nonzero nonzero_numpy argwhere", "l[9]<2"},
    {"nonzero_static", "b[5,4], size=12"},
    {"where.self", "b[5,4,3], d[5,4,3], d[4,1]"},
    {"where.Scalar", "b[5,4], 0.5, 2"},
    {"where.ScalarSelf", "b[5,4], 0.5, d[5,4]"},
    {"where.ScalarOther", "b[5,4], d[5,4], 0.5"},
    {"where", "b[5,4]"},
};

constexpr SampleLine kEmbeddingAndUnpoolSamples[] = {
    {"embedding", "d[6,3], l[5,2]<6"},
    {"embedding", "d[6,3], l[9]<6, 2"},
    {"embedding", "d[6,3], l[9]<6, 2, true"},
    {"embedding_bag", "d[6,3], l[9]<6, l{0,4,7}"},
    {"embedding_bag", "d[6,3], l[9]<6, l{0,4,7}, false, 1"},
    {"embedding_bag.padding_idx", "d[6,3], l[9]<6, l{0,4,7}, false, 2, false, -, false, 1"},
    {"embedding_renorm", "d[6,3], l[4]<6, 0.5, 2"},
    {"max_unpool2d", "d[2,3,2,2], l[2,3,2,2]<16, [4,4]"},
    {"max_unpool3d", "d[1,2,2,2,2], l[1,2,2,2,2]<64, [4,4,4], [2,2,2], [0,0,0]"},
};

}  // namespace

std::vector<SampleLine> index_samples() {
  return join_tables({kIndexSamples, kGatherAndScatterSamples, kMaskSamples, kEmbeddingAndUnpoolSamples});
}

}  // namespace moonhalo::testing
