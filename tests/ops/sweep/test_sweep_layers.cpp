// SPDX-License-Identifier: Apache-2.0
// Convolutions, pools, norms, resampling and dropout, however their tensors are held: S20, S03, X03.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_sweep_layers {
namespace {

using at::Tensor;

const Tensor line = make_tensor({2, 4, 9}, 1), image = make_tensor({2, 4, 7, 6}, 2),
             solid = make_tensor({1, 2, 5, 6, 4}, 3);
const Tensor w1 = make_tensor({3, 4, 3}, 4), w2 = make_tensor({3, 4, 3, 3}, 5), w3 = make_tensor({3, 2, 3, 2, 3}, 6);
const Tensor grouped = make_tensor({4, 2, 3, 2}, 7), depthwise = make_tensor({4, 1, 3, 3}, 8),
             even = make_tensor({3, 4, 4, 2}, 9);
const Tensor back1 = make_tensor({4, 3, 3}, 10), back2 = make_tensor({4, 3, 2, 3}, 11),
             back3 = make_tensor({2, 3, 2, 3, 2}, 12);
const Tensor bias3 = make_tensor({3}, 13), bias4 = make_tensor({4}, 14), scale4 = make_tensor({4}, 15),
             scale6 = make_tensor({6}, 16);

TEST(SweepLayers, S03_Convolutions) {
  sweep({
      row("conv1d", {line, w1, bias3}, [](X x, X w, X c) { return at::conv1d(x, w, c, 1, 1); }),
      row("conv1d_strided", {line, w1}, [](X x, X w) { return at::conv1d(x, w, {}, 2, 2, 2); }),
      row("conv1d_unbatched", {make_tensor({4, 9}, 1), w1}, [](X x, X w) { return at::conv1d(x, w, {}, 1, 1); }),
      row("conv2d", {image, w2, bias3}, [](X x, X w, X c) { return at::conv2d(x, w, c, 1, 1); }),
      row("conv2d_strided", {image, w2},
          [](X x, X w) {
            return at::conv2d(x, w, {}, {2, 1}, {1, 0});
          }),
      row("conv2d_dilated", {image, w2},
          [](X x, X w) {
            return at::conv2d(x, w, {}, 1, {2, 2}, {2, 2});
          }),
      row("conv2d_even", {image, even},
          [](X x, X w) {
            return at::conv2d(x, w, {}, 1, {2, 1});
          }),
      row("conv2d_same", {image, even}, [](X x, X w) { return at::conv2d(x, w, {}, at::IntArrayRef{1}, "same"); }),
      row("conv2d_groups", {image, grouped, bias4}, [](X x, X w, X c) { return at::conv2d(x, w, c, 1, 1, 1, 2); }),
      row("conv2d_depthwise", {image, depthwise}, [](X x, X w) { return at::conv2d(x, w, {}, 2, 1, 1, 4); }),
      row("conv2d_pointwise", {image, make_tensor({3, 4, 1, 1}, 17)}, [](X x, X w) { return at::conv2d(x, w); }),
      row("conv3d", {solid, w3, bias3},
          [](X x, X w, X c) {
            return at::conv3d(x, w, c, 1, {1, 0, 1});
          }),
      row("conv3d_strided", {solid, w3},
          [](X x, X w) {
            return at::conv3d(x, w, {}, {2, 1, 2}, 1);
          }),
      row("transposed1d", {line, back1, bias3}, [](X x, X w, X c) { return at::conv_transpose1d(x, w, c, 2, 1, 1); }),
      row("transposed2d", {image, back2, bias3},
          [](X x, X w, X c) {
            return at::conv_transpose2d(x, w, c, 2, {0, 1}, {1, 0});
          }),
      row("transposed2d_dilated", {image, back2},
          [](X x, X w) {
            return at::conv_transpose2d(x, w, {}, {1, 2}, 1, 0, 1, 2);
          }),
      row("transposed3d", {solid, back3},
          [](X x, X w) {
            return at::conv_transpose3d(x, w, {}, {2, 1, 2}, {0, 1, 0});
          }),
      row("conv_relu_conv", {image, w2, make_tensor({2, 3, 3, 3}, 18)},
          [](X x, X w, X v) { return at::conv2d(at::conv2d(x, w, {}, 1, 1).relu(), v, {}, 2, 1); }),
      row("unfold_fold", {image},
          [](X x) {
            return List{
                at::im2col(x, {3, 2}, {1, 1}, {1, 0}, {2, 1}),
                at::col2im(at::im2col(x, {2, 2}, {1, 1}, {0, 0}, {1, 1}), {7, 6}, {2, 2}, {1, 1}, {0, 0}, {1, 1})};
          }),
  });
}

TEST(SweepLayers, S12_Pools) {
  sweep({
      row("avg_pool1d", {line}, [](X x) { return at::avg_pool1d(x, 3, 2, 1); }),
      row("avg_pool2d", {image},
          [](X x) {
            return at::avg_pool2d(x, {3, 2}, {2, 1}, {1, 0}, true, false);
          }),
      row("avg_pool3d", {solid}, [](X x) { return at::avg_pool3d(x, 2, 2); }),
      row("max_pool1d", {line}, [](X x) { return at::max_pool1d(x, 3, 2, 1); }),
      row("max_pool2d", {image},
          [](X x) {
            return at::max_pool2d(x, {3, 2}, {2, 1}, {1, 0});
          }),
      row("max_pool2d_indices", {image}, [](X x) { return at::max_pool2d_with_indices(x, 3, 2, 1, 1, true); }),
      row("max_pool3d", {solid}, [](X x) { return at::max_pool3d(x, 2, 2); }),
      row("lp_pool", {image}, [](X x) { return at::avg_pool2d(x.pow(2), 2, 2).sqrt(); }),
      row("adaptive_avg_one", {image},
          [](X x) {
            return at::adaptive_avg_pool2d(x, {1, 1});
          }),
      row("adaptive_avg", {image},
          [](X x) {
            return at::adaptive_avg_pool2d(x, {3, 2});
          }),
      row("adaptive_avg1d", {line}, [](X x) { return at::adaptive_avg_pool1d(x, 4); }),
      row("adaptive_avg3d", {solid},
          [](X x) {
            return at::adaptive_avg_pool3d(x, {2, 3, 1});
          }),
      row("adaptive_max", {image},
          [](X x) {
            return at::adaptive_max_pool2d(x, {3, 2});
          }),
      row("adaptive_max1d", {line}, [](X x) { return at::adaptive_max_pool1d(x, 4); }),
      row("max_unpool", {make_tensor({2, 4, 4, 6}, 20)},
          [](X x) {
            const auto [y, i] = at::max_pool2d_with_indices(x, 2, 2);
            return at::max_unpool2d(y, i, {4, 6});
          }),
  });
}

TEST(SweepLayers, Norms) {
  sweep({
      row("layer_norm_last", {image, scale6, scale6 + 1}, [](X x, X w, X c) { return at::layer_norm(x, {6}, w, c); }),
      row("layer_norm_all", {image},
          [](X x) {
            return at::layer_norm(x, {4, 7, 6});
          }),
      row("rms_norm", {image, scale6}, [](X x, X w) { return at::rms_norm(x, {6}, w); }),
      row("group_norm", {image, scale4, bias4}, [](X x, X w, X c) { return at::group_norm(x, 2, w, c); }),
      row("group_norm_line", {line}, [](X x) { return at::group_norm(x, 4); }),
      row("batch_norm_train", {image, scale4, bias4},
          [](X x, X w, X c) { return at::batch_norm(x, w, c, {}, {}, true, 0.1, 1e-5, false); }),
      row("batch_norm_eval", {image, scale4, bias4},
          [](X x, X w, X c) {
            return at::batch_norm(x, w, c, bias4.detach(), scale4.abs() + 1, false, 0.1, 1e-5, false);
          }),
      row("batch_norm_running", {image},
          [](X x) {
            Tensor mean = at::zeros({4}, at::kDouble), var = at::ones({4}, at::kDouble);
            return List{at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false), mean, var};
          }),
      row(
          "batch_norm_functional", {image, scale4, bias4},
          [](X x, X w, X c) {
            auto [y, mean, invstd, new_mean, new_var] = at::_native_batch_norm_legit_functional(
                x, w, c, at::zeros({4}, at::kDouble), at::ones({4}, at::kDouble), true, 0.1, 1e-5);
            return List{y, mean, invstd, new_mean, new_var};
          },
          Allowed{.backward = false}),
      row("instance_norm", {image, scale4, bias4},
          [](X x, X w, X c) { return at::instance_norm(x, w, c, {}, {}, true, 0.1, 1e-5, false); }),
      row("local_response", {image},
          [](X x) {
            return x / (at::avg_pool3d(x.square().unsqueeze(1), {3, 1, 1}, 1, {1, 0, 0}).squeeze(1) + 1).pow(0.75);
          }),
      row("weight_norm", {w2}, [](X v) { return v / at::norm_except_dim(v, 2, 0); }),
  });
}

TEST(SweepLayers, S20_ResamplingAndTheRest) {
  sweep({
      row("nearest2d", {image},
          [](X x) {
            return at::upsample_nearest2d(x, {14, 9});
          }),
      row("nearest1d", {line}, [](X x) { return at::upsample_nearest1d(x, {5}); }),
      row("bilinear", {image},
          [](X x) {
            return at::upsample_bilinear2d(x, {10, 12}, false);
          }),
      row("bilinear_corners", {image},
          [](X x) {
            return at::upsample_bilinear2d(x, {10, 12}, true);
          }),
      row("bicubic", {image},
          [](X x) {
            return at::upsample_bicubic2d(x, {10, 12}, false);
          }),
      row("trilinear", {solid},
          [](X x) {
            return at::upsample_trilinear3d(x, {7, 6, 8}, false);
          }),
      row("linear1d", {line}, [](X x) { return at::upsample_linear1d(x, {13}, false); }),
      row("grid_sample", {image, make_tensor({2, 5, 4, 2}, 21)},
          [](X x, X g) { return at::grid_sampler(x, g, 0, 0, false); }),
      row("affine_grid", {make_tensor({2, 2, 3}, 22)},
          [](X x) {
            return at::affine_grid_generator(x, {2, 1, 4, 5}, false);
          }),
      row("dropout_none", {image},
          [](X x) {
            return List{at::dropout(x, 0, true), at::dropout(x, 0.5, false), at::dropout(x, 1, true)};
          }),
      row("feature_dropout_off", {image},
          [](X x) {
            return List{at::feature_dropout(x, 0.5, false), at::alpha_dropout(x, 0.3, false)};
          }),
      row("attention", {make_tensor({2, 2, 5, 4}, 23), make_tensor({2, 2, 6, 4}, 24), make_tensor({2, 2, 6, 4}, 25)},
          [](X q, X k, X v) { return at::scaled_dot_product_attention(q, k, v); }),
      row("attention_causal",
          {make_tensor({2, 2, 5, 4}, 23), make_tensor({2, 2, 5, 4}, 24), make_tensor({2, 2, 5, 4}, 25)},
          [](X q, X k, X v) { return at::scaled_dot_product_attention(q, k, v, {}, 0, true); }),
      row("pairwise_distance", {make_tensor({5, 7}, 26), make_tensor({5, 7}, 27)},
          [](X x, X y) { return at::pairwise_distance(x, y); }),
      row("gru_cell",
          {make_tensor({5, 4}, 28), make_tensor({5, 3}, 29), make_tensor({9, 4}, 30), make_tensor({9, 3}, 31)},
          [](X x, X h, X w, X u) { return at::gru_cell(x, h, w, u); }, {.other_cut = true}),
      // bfloat16 has 8 bits, and a sum of 27 products loses some of them.
      row("bfloat16_conv", {image.to(at::kBFloat16), w2.to(at::kBFloat16)},
          [](X x, X w) { return at::conv2d(x, w, {}, 1, 1); }, {.tolerance = 0.1}),
      row("float_conv", {image.to(at::kFloat), w2.to(at::kFloat)}, [](X x, X w) { return at::conv2d(x, w, {}, 1, 1); },
          {.tolerance = 1e-5}),
      row("complex_conv", {image, w2},
          [](X x, X w) { return at::conv2d(at::complex(x, x * 2), at::complex(w, w + 1), {}, 1, 1); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_sweep_layers
