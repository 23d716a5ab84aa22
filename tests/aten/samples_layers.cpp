// SPDX-License-Identifier: Apache-2.0
// Layers of neural networks: windows, normalisation, recurrent cells, attention, dropout.
#include "tests/aten/samples.h"

namespace moonhalo::testing {

namespace {

constexpr SampleLine kConvolutionSamples[] = {
    {"conv1d", "d[2,3,9], d[4,3,3], d[4], [1], [1]"},
    {"conv1d", "d[2,4,9], d[4,2,2], -, [2], [0], [2], 2"},
    {"conv1d.padding", "d[2,3,9], d[4,3,3], d[4], [1], \"same\""},
    {"conv2d", "d[2,3,7,6], d[4,3,3,3], d[4], [1,1], [1,1]"},
    {"conv2d", "d[2,4,7,6], d[4,2,2,3], -, [2,1], [0,2], [1,2], 2"},
    {"conv2d.padding", "d[2,3,7,6], d[4,3,3,3], d[4], [1,1], \"same\""},
    {"conv3d", "d[1,2,5,4,6], d[3,2,3,2,3], d[3], [1,1,2], [1,0,1]"},
    {"conv3d.padding", "d[1,2,5,4,6], d[3,2,3,3,3], -, [1,1,1], \"valid\""},
    {"conv_tbc", "d[7,2,3], d[3,3,4], d[4], 1"},
    {"conv_transpose1d", "d[2,3,6], d[3,4,3], d[4], [2], [1], [1]"},
    {"conv_transpose2d.input", "d[2,3,5,4], d[3,2,3,2], d[2], [2,1], [1,0], [1,0]"},
    {"conv_transpose3d.input", "d[1,2,3,4,3], d[2,2,2,2,2], -, [2,1,1]"},
    {"convolution", "d[2,3,7,6], d[4,3,3,3], d[4], [1,1], [1,1], [1,1], false, [0,0], 1"},
    {"convolution", "d[2,3,5,4], d[3,2,3,2], -, [2,1], [0,0], [1,1], true, [1,0], 1"},
    {"thnn_conv2d slow_conv_dilated2d slow_conv2d", "d[2,3,7,6], d[4,3,3,3], [3,3], d[4]"},
    {"slow_conv3d slow_conv_dilated3d", "d[1,2,5,4,6], d[3,2,3,2,3], [3,2,3], d[3]"},
    {"slow_conv3d_forward", "d[1,2,5,4,6], d[3,2,3,2,3], [3,2,3], d[3], [1,1,1], [0,0,0]"},
    {"slow_conv_transpose2d", "d[2,3,5,4], d[3,2,3,2], [3,2], d[2], [2,1]"},
    {"slow_conv_transpose3d", "d[1,2,3,4,3], d[2,2,2,2,2], [2,2,2], -, [2,1,1]"},
};

constexpr SampleLine kPoolingSamples[] = {
    {"avg_pool1d max_pool1d max_pool1d_with_indices", "d[2,3,9], [3], [2], [1]"},
    {"avg_pool2d max_pool2d max_pool2d_with_indices", "d[2,3,7,6], [3,2], [2,2], [1,1]"},
    {"avg_pool2d max_pool2d max_pool2d_with_indices", "d[2,3,7,6], [2,2]"},
    {"avg_pool2d", "d[2,3,7,6], [3,3], [2,2], [1,1], true, false, 5"},
    {"avg_pool3d max_pool3d max_pool3d_with_indices", "d[1,2,5,4,6], [2,2,3], [2,1,2], [1,0,1]"},
    {"adaptive_avg_pool1d adaptive_max_pool1d", "d[2,3,9], [4]"},
    {"adaptive_avg_pool2d adaptive_max_pool2d", "d[2,3,7,6], [3,4]"},
    {"adaptive_avg_pool2d adaptive_max_pool2d", "d[2,3,7,6], [1,1]"},
    {"adaptive_avg_pool3d adaptive_max_pool3d", "d[1,2,5,4,6], [2,3,4]"},
    {"fractional_max_pool2d", "d[2,3,7,6], [2,2], [3,3], p[2,3,2]"},
    {"fractional_max_pool3d", "d[1,2,5,4,6], [2,2,2], [3,2,3], p[1,2,3]"},
    {"im2col", "d[2,3,5,6], [2,3], [1,1], [1,0], [1,2]"},
    {"col2im", "d[2,12,12], [5,4], [2,2], [1,1], [0,0], [1,1]"},
};

constexpr SampleLine kResamplingSamples[] = {
    {"upsample_nearest1d _upsample_nearest_exact1d", "d[2,3,6], [9]"},
    {"upsample_linear1d", "d[2,3,6], [9], false"},
    {"upsample_linear1d", "d[2,3,6], [11], true"},
    {"upsample_nearest2d _upsample_nearest_exact2d", "d[2,3,5,4], [7,8]"},
    {"upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
     "d[2,3,5,4], [7,8], false"},
    {"upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
     "d[2,3,5,4], [3,8], true"},
    {"upsample_nearest3d _upsample_nearest_exact3d", "d[1,2,3,4,3], [5,4,6]"},
    {"upsample_trilinear3d", "d[1,2,3,4,3], [5,4,6], false"},
    {"upsample_nearest1d.vec _upsample_nearest_exact1d.vec", "d[2,3,6], [9], -"},
    {"upsample_nearest2d.vec _upsample_nearest_exact2d.vec", "d[2,3,5,4], -, [2.0,1.5]"},
    {"upsample_nearest3d.vec _upsample_nearest_exact3d.vec", "d[1,2,3,4,3], [5,4,6], -"},
    {"upsample_linear1d.vec", "d[2,3,6], [9], false, -"},
    {"upsample_bilinear2d.vec upsample_bicubic2d.vec _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec",
     "d[2,3,5,4], [7,8], false, -"},
    {"upsample_trilinear3d.vec", "d[1,2,3,4,3], [5,4,6], true, -"},
    {"grid_sampler grid_sampler_2d", "d[2,3,5,4], d[2,6,3,2], 0, 0, false"},
    {"grid_sampler grid_sampler_2d", "d[2,3,5,4], d[2,6,3,2], 1, 1, true"},
    {"grid_sampler grid_sampler_3d", "d[1,2,3,4,3], d[1,2,3,2,3], 0, 0, false"},
    {"affine_grid_generator", "d[2,2,3], [2,3,5,4], false"},
};

constexpr SampleLine kNormalisationSamples[] = {
    {"batch_norm", "d[5,4,3], d[4], d[4], d[4], p[4], true, 0.1, 0.00001, false"},
    {"batch_norm", "d[5,4,3], d[4], d[4], d[4], p[4], false, 0.1, 0.00001, false"},
    {"native_batch_norm", "d[5,4,3], d[4], d[4], d[4], p[4], true, 0.1, 0.00001"},
    {"native_batch_norm", "d[5,4,3], d[4], d[4], d[4], p[4], false, 0.1, 0.00001"},
    {"batch_norm_update_stats", "d[5,4,3], d[4], p[4], 0.1"},
    {"instance_norm", "d[5,4,3], d[4], d[4], d[4], p[4], true, 0.1, 0.00001, false"},
    {"group_norm", "d[3,4,5], 2, d[4], d[4]"},
    {"native_group_norm", "d[3,4,5], d[4], d[4], 3, 4, 5, 2, 0.00001"},
    {"layer_norm rms_norm", "d[5,4,3], [3], d[3]"},
    {"layer_norm rms_norm", "d[5,4,3], [4,3]"},
    {"layer_norm", "d[5,4,3], [4,3], d[4,3], d[4,3]"},
    {"native_layer_norm", "d[5,4,3], [3], d[3], d[3], 0.00001"},
    {"_weight_norm", "d[5,4,3], d[5,1,1]"},
};

constexpr SampleLine kActivationSamples[] = {
    {"prelu", "d[5,4,3], p[4]"},
    {"prelu", "d[5,4,3], p[1]"},
    {"glu", "d[6,4], 0"},
    {"glu", "d[5,4], 1"},
    {"gelu", "d[5,4]"},
    {"gelu", "d[5,4], approximate=\"tanh\""},
    {"dropout alpha_dropout feature_dropout feature_alpha_dropout native_dropout", "d[5,4], 0.5, true"},
    {"dropout alpha_dropout feature_dropout feature_alpha_dropout native_dropout", "d[5,4], 0.5, false"},
    {"rrelu", "d[5,4]"},
    {"rrelu", "d[5,4], 0.1, 0.3, true"},
    {"rrelu_with_noise rrelu_with_noise_functional", "d[5,4], d[5,4], 0.1, 0.3, false"},
};

constexpr SampleLine kAttentionAndRecurrentSamples[] = {
    {"scaled_dot_product_attention", "d[2,3,5,4], d[2,3,6,4], d[2,3,6,4]"},
    {"scaled_dot_product_attention", "d[2,3,5,4], d[2,3,5,4], d[2,3,5,4], is_causal=true"},
    {"scaled_dot_product_attention", "d[2,3,5,4], d[2,3,6,4], d[2,3,6,4], d[5,6]"},
    {"gru_cell", "d[5,3], d[5,2], d[6,3], d[6,2], d[6], d[6]"},
    {"rnn_tanh_cell rnn_relu_cell", "d[5,3], d[5,2], d[2,3], d[2,2], d[2], d[2]"},
    {"lstm_cell", "d[5,3], {d[5,2], d[5,2]}, d[8,3], d[8,2], d[8], d[8]"},
    {"rnn_tanh.input rnn_relu.input",
     "d[4,5,3], d[1,5,2], {d[2,3], d[2,2], d[2], d[2]}, true, 1, 0, true, false, false"},
    {"gru.input", "d[4,5,3], d[1,5,2], {d[6,3], d[6,2], d[6], d[6]}, true, 1, 0, true, false, false"},
    {"gru.input", "d[5,4,3], d[1,5,2], {d[6,3], d[6,2], d[6], d[6]}, true, 1, 0, true, false, true"},
    {"lstm.input", "d[4,5,3], {d[1,5,2], d[1,5,2]}, {d[8,3], d[8,2], d[8], d[8]}, true, 1, 0, true, false, false"},
    {"rnn_tanh.data rnn_relu.data",
     "d[6,3], l{3,2,1}, d[1,3,2], {d[2,3], d[2,2], d[2], d[2]}, true, 1, 0, true, false"},
    {"gru.data", "d[6,3], l{3,2,1}, d[1,3,2], {d[6,3], d[6,2], d[6], d[6]}, true, 1, 0, true, false"},
    {"lstm.data", "d[6,3], l{3,2,1}, {d[1,3,2], d[1,3,2]}, {d[8,3], d[8,2], d[8], d[8]}, true, 1, 0, true, false"},
    {"_pack_padded_sequence", "d[4,3,2], l{4,2,1}, false"},
    {"_pad_packed_sequence", "d[7,2], l{3,2,1,1}, false, 0.5, 4"},
    {"bilinear", "d[5,4], d[5,3], d[2,4,3], d[2]"},
    {"linear", "d[5,4,3], d[2,3], d[2]"},
    {"linear", "d[5,3], d[2,3]"},
};

constexpr SampleLine kRandomSamples[] = {
    {"multinomial", "p[5,4], 2"},
    {"multinomial", "p[5,4], 3, true"},
    {"normal.Tensor_Tensor", "d[5,4], p[5,4]"},
    {"normal.Tensor_float", "d[5,4], 0.5"},
    {"normal.float_Tensor", "0.5, p[5,4]"},
    {"normal.float_float_out", "0.5, 1.5, [5,4]"},
    {"normal.Tensor_float_out", "d[5,4], 0.5, out=d[5,4]"},
    {"normal.float_Tensor_out", "0.5, p[5,4]"},
    {"normal.Tensor_Tensor_out", "d[5,4], p[5,4]"},
    {"normal_", "d[5,4], 0.5, 1.5"},
    {"normal.out", "d[5,4], 0.5, 1.5, out=d[5,4]"},
    {"binomial", "d{3,4,5,6}, p[4]"},
    {"_standard_gamma _sample_dirichlet", "p[5,4]"},
    {"bernoulli", "p[5,4]"},
    {"bernoulli.p bernoulli_.float", "d[5,4], 0.4"},
    {"bernoulli_.Tensor bernoulli.Tensor bernoulli.Tensor_out", "d[5,4], p[5,4]"},
    {"poisson", "p[5,4]"},
    {"randint_like", "d[5,4], 7"},
    {"randint_like.low_dtype randint_like.low_generator_dtype randint_like.low_dtype_out "
     "randint_like.low_generator_dtype_out",
     "d[5,4], 2, 7"},
    {"randint_like.Tensor randint_like.Tensor_generator randint_like.Tensor_out randint_like.Tensor_generator_out",
     "d[5,4], l(7)"},
    {"geometric geometric_", "d[5,4], 0.4"},
    {"random.from", "d[5,4], 2, 9"},
    {"random.to", "d[5,4], 9"},
};

}  // namespace

std::vector<SampleLine> layer_samples() {
  return join_tables({kConvolutionSamples, kPoolingSamples, kResamplingSamples, kNormalisationSamples,
                      kActivationSamples, kAttentionAndRecurrentSamples, kRandomSamples});
}

}  // namespace moonhalo::testing
