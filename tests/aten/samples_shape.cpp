// SPDX-License-Identifier: Apache-2.0
// Shapes and places: views, joins, copies, padding.
#include "tests/aten/samples.h"

namespace moonhalo::testing {

namespace {

constexpr SampleLine kViewSamples[] = {
    {"view view_copy reshape _unsafe_view", "d[6,4,3], [6,12]"},
    {"view view_copy reshape", "d[6,4,3], [2,3,4,3]"},
    {"view view_copy reshape", "d[6,4,3], [72]"},
    {"view.dtype view_copy.dtype", "d[5,4], long"},
    {"reshape_as view_as expand_as", "d[5,4,3], d[5,4,3]"},
    {"reshape_as view_as", "d[6,4,3], d[6,12]"},
    {"expand_as", "d[4,1], d[5,4,3]"},
    {"expand expand_copy broadcast_to", "d[5,1,3], [5,4,3]"},
    {"expand expand_copy broadcast_to", "d[4,3], [2,4,3]"},
    {"sum_to_size", "d[5,4,3], [1,4,3]"},
    {"sum_to_size", "d[5,4,3], [4,1]"},
    {"as_strided as_strided_copy as_strided_", "d[5,4], [5,4], [4,1]"},
    {"as_strided as_strided_copy", "d[5,4], [3,4], [4,1], 4"},
    {"as_strided_scatter", "d[5,4], d[3,4], [3,4], [4,1], 4"},
    {"permute permute_copy", "d[5,4,3], [2,0,1]"},
    {"permute permute_copy", "c[5,4], [1,0]"},
    {"transpose.int transpose_copy.int swapaxes swapdims transpose", "d[5,4,3], 0, 2"},
    {"movedim.int moveaxis.int", "d[5,4,3], 0, 2"},
    {"movedim.intlist moveaxis.intlist", "d[5,4,3], [0,1], [2,0]"},
    {"flatten.using_ints", "d[5,4,3], 0, 1"},
    {"flatten.using_ints", "d[5,4,3]"},
    {"unflatten.int", "d[6,4], 0, [2,3]"},
    {"unflatten.int", "d[6,4], 1, [2,-1]"},
    {"select.int select_copy.int select", "d[5,4,3], 0, 2"},
    {"select.int select_copy.int select", "d[5,4,3], 1, -1"},
    {"select_scatter", "d[5,4,3], d[4,3], 0, 3"},
    {"select_scatter", "d[5,4,3], d[5,4], 2, 1"},
    {"slice.Tensor slice_copy.Tensor slice_copy", "d[9,4], 0, 1, 8, 2"},
    {"slice.Tensor slice_copy.Tensor slice_copy", "d[9,4], 1, 1, 3"},
    {"slice_scatter", "d[9,4], d[4,4], 0, 1, 8, 2"},
    {"narrow narrow_copy", "d[9,4], 0, 2, 5"},
    {"narrow narrow_copy", "d[9,4], 1, 1, 2"},
    {"narrow.Tensor", "d[9,4], 0, l(2), 5"},
    {"diagonal diagonal_copy linalg_diagonal", "d[5,4,3]"},
    {"diagonal diagonal_copy", "d[5,4,3], 1, 0, 2"},
    {"diagonal_scatter", "d[5,4], d[4]"},
    {"diagonal_scatter", "d[5,4,3], d[5,3], 0, 1, 2"},
    {"diag", "d[5,4]"},
    {"diag diagflat", "d[4], 1"},
    {"diag_embed", "d[5,4]"},
    {"diag_embed", "d[5,4], 1, 0, 2"},
    {"unfold unfold_copy", "d[9,4], 0, 3, 2"},
    {"unfold unfold_copy", "d[9,4], 1, 2, 1"},
};

constexpr SampleLine kPartSamples[] = {
    {"split_copy.Tensor_out", "d[9,4], 4, out={d[4,4], d[4,4], d[1,4]}"},
    {"split.Tensor split_copy unsafe_split.Tensor unsafe_split split_copy.Tensor", "d[9,4], 2"},
    {"split.Tensor split_copy unsafe_split.Tensor unsafe_split split_copy.Tensor", "d[9,4], 3, 1"},
    {"split.sizes split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", "d[9,4], [2,6,1]"},
    {"split.sizes split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", "d[9,4], [1,3], 1"},
    {"chunk unsafe_chunk", "d[9,4], 4"},
    {"chunk unsafe_chunk", "d[9,4], 2, 1"},
    {"tensor_split.sections", "d[9,4], 4"},
    {"tensor_split.indices", "d[9,4], [2,3,7]"},
    {"tensor_split.tensor_indices_or_sections", "d[9,4], l{2,5}"},
    {"hsplit.int", "d[5,4,3], 2"},
    {"hsplit.array", "d[5,4,3], [1,3]"},
    {"vsplit.int", "d[6,4], 3"},
    {"vsplit.array", "d[6,4], [1,3]"},
    {"dsplit.int", "d[5,4,6], 3"},
    {"dsplit.array", "d[5,4,6], [1,3]"},
    {"unbind.int unbind_copy.int unbind_copy", "d[5,4,3]"},
    {"unbind.int unbind_copy.int unbind_copy", "d[5,4,3], 2"},
};

constexpr SampleLine kJoinSamples[] = {
    {"cat concat concatenate", "{d[5,4], d[2,4], d[3,4]}"},
    {"cat concat concatenate", "{d[5,4], d[5,2]}, 1"},
    {"cat", "{d[5,4], l[5,4]}, -1"},
    {"stack", "{d[5,4], d[5,4]}, 1"},
    {"stack row_stack hstack vstack dstack column_stack", "{d[5,4], d[5,4], d[5,4]}"},
    {"hstack vstack row_stack", "{d[5,4], d[5,4]}"},
    {"column_stack hstack vstack dstack row_stack", "{d[4], d[4]}"},
    {"block_diag", "{d[5,4], d[2,3]}"},
    {"cartesian_prod", "{d[5], d[4]}"},
    {"meshgrid", "{d[5], d[4]}"},
    {"meshgrid.indexing", "{d[5], d[4]}, indexing=\"xy\""},
    {"broadcast_tensors", "{d[5,1], d[4]}"},
    {"atleast_1d.Sequence atleast_2d.Sequence atleast_3d.Sequence", "{d[5], d[4,3]}"},
    {"combinations", "d[6]"},
    {"combinations", "d[5], 3, true"},
};

constexpr SampleLine kRearrangementSamples[] = {
    {"repeat tile", "d[5,4], [2,3]"},
    {"repeat tile", "d[5,4], [2,1,1]"},
    {"repeat_interleave.self_int", "d[5,4], 3, 0"},
    {"repeat_interleave.self_int", "d[5,4], 2"},
    {"repeat_interleave.self_Tensor", "d[5,4], l{1,0,2,3,1}, 0"},
    {"repeat_interleave.Tensor repeat_interleave", "l{1,0,2,3,1}"},
    {"flip", "d[5,4,3], [0,2]"},
    {"roll", "d[5,4,3], [2,-1], [0,1]"},
    {"roll", "d[5,4], [3]"},
    {"rot90", "d[5,4,3], 1, [0,1]"},
    {"rot90", "d[5,4,3], 2, [1,2]"},
    {"tril triu", "d[5,4], 1"},
    {"tril triu", "d[3,4,5], -1"},
    {"pixel_shuffle", "d[2,8,3,4], 2"},
    {"pixel_unshuffle", "d[2,3,6,4], 2"},
    {"channel_shuffle native_channel_shuffle", "d[2,6,3], 3"},
    {"channel_shuffle native_channel_shuffle", "d[2,6,3,2], 2"},
};

constexpr SampleLine kPaddingSamples[] = {
    {"pad", "d[5,4,3], [1,2]"},
    {"pad", "d[5,4,3], [1,2,0,1], \"constant\", 0.5"},
    {"pad", "d[2,5,4], [1,2], \"reflect\""},
    {"pad", "d[2,5,4], [1,2], \"circular\""},
    {"pad", "d[2,3,5,4], [1,2,2,1], \"replicate\""},
    {"constant_pad_nd", "d[5,4], [1,-1,2,1], 0.5"},
    {"reflection_pad1d replication_pad1d", "d[2,3,6], [2,1]"},
    {"reflection_pad2d replication_pad2d", "d[2,3,5,4], [1,2,2,1]"},
    {"reflection_pad3d replication_pad3d", "d[1,2,4,3,5], [1,2,2,1,1,1]"},
    {"pad_sequence", "{d[5,3], d[2,3]}"},
    {"pad_sequence", "{d[5,3], d[2,3]}, true, 0.5, \"left\""},
};

constexpr SampleLine kDimSamples[] = {
    {"squeeze.dims squeeze_copy.dims squeeze_.dims squeeze_copy.dims_out", "d[5,1,4,1], [1,3]"},
    {"squeeze.dim squeeze_copy.dim squeeze_.dim squeeze_copy.dim_out", "d[5,1,4], 1"},
    {"squeeze squeeze_copy", "d[5,1,4]"},
    {"unsqueeze unsqueeze_copy", "d[5,4], 1"},
    {"unsqueeze unsqueeze_copy", "d[5,4], -1"},
    {"view_as_complex view_as_complex_copy", "d[5,4,2]"},
    {"view_as_real view_as_real_copy real imag", "c[5,4]"},
    {"mT mH adjoint", "d[5,4,3]"},
    {"t t_copy numpy_T matrix_H", "d[5,4]"},
};

constexpr SampleLine kNewTensorSamples[] = {
    {"new_zeros new_ones new_empty", "d[5,4], [6,2]"},
    {"new_zeros new_ones new_empty", "d[5,4], [5,4]"},
    {"new_full", "d[5,4], [6,2], 0.5"},
    {"new_empty_strided", "d[5,4], [6,2], [2,1]"},
    {"to.dtype", "d[5,4], float"},
    {"to.dtype", "d[5,4], complex"},
    {"to.dtype", "l[5,4], double, copy=true"},
    {"to.other type_as", "d[5,4], l[3]"},
    {"copy copy_", "d[5,4], d[5,4]"},
    {"copy copy_", "d[5,4], l[4]"},
    {"unflatten_dense_tensors", "d[20], {d[3,4], d[8]}"},
    {"flatten_dense_tensors", "{d[3,4], d[8]}"},
    {"fill.Tensor", "d[5,4], d(0.5)"},
};

constexpr SampleLine kSeriesSamples[] = {
    {"gradient.scalararray", "d[5,4], spacing=0.5, dim=[0,1]"},
    {"gradient.scalarint", "d[5,4]"},
    {"gradient.array", "d[5,4], dim=[1]"},
    {"gradient.scalarrayarray", "d[5,4], spacing=[0.5,2.0], dim=[0,1]"},
    {"gradient.scalarrayint", "d[5,4], spacing=[0.5], dim=0"},
    {"gradient.tensorarray", "d[5,4], spacing={a[5], a[4]}, dim=[0,1]"},
    {"gradient.tensorarrayint", "d[5,4], spacing={a[5]}, dim=0"},
    {"vander", "d[4]"},
    {"vander", "d[4], 3, true"},
    {"linspace.Tensor_Tensor logspace.Tensor_Tensor", "d(0.5), d(2), 7"},
    {"linspace.Tensor_Scalar logspace.Tensor_Scalar linspace.Tensor_Scalar_out logspace.Tensor_Scalar_out",
     "d(0.5), 2, 7"},
    {"linspace.Scalar_Tensor logspace.Scalar_Tensor linspace.Scalar_Tensor_out logspace.Scalar_Tensor_out",
     "0.5, d(2), 7"},
    {"linspace logspace", "d(0.5), d(2), 7"},
    {"linspace.out logspace.out", "0.5, 2, 7"},
    {"view_copy.dtype_out", "d[5,4], long"},
    {"empty_permuted.out", "[5,4], [1,0]"},
    {"one_hot", "l[5,4]<3, 4"},
    {"one_hot", "l[6]<3"},
    {"nested_to_padded_tensor", "d[5,4], 0.5"},
};

}  // namespace

std::vector<SampleLine> shape_samples() {
  return join_tables({kViewSamples, kPartSamples, kJoinSamples, kRearrangementSamples, kPaddingSamples, kDimSamples,
                      kNewTensorSamples, kSeriesSamples});
}

}  // namespace moonhalo::testing
