// SPDX-License-Identifier: Apache-2.0
// Resampling on cuts against the whole tensor: every mode, up and down, X03.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/text.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_upsample {
namespace {

const Placed kCuts[] = {
    {{2}, {shard(2, {5, 4})}},
    {{3}, {shard(2, {1, 7, 1})}},
    {{3}, {shard(2, {4, 0, 5})}},
    {{2}, {shard(3, {1, 5})}},
    {{2, 2}, {shard(2), shard(3)}},
    {{2, 2}, {shard(0), shard(2, {8, 1})}},
    {{2}, {shard(1)}},
    {{2}, {partial()}},
};

TEST(Upsample, TwoDimsInEveryModeEqualTheWholeTensor) {
  const std::vector<std::vector<int64_t>> sizes = {{18, 12}, {13, 6}, {5, 11}, {9, 3}, {2, 1}, {40, 7}};
  for (const auto& size : sizes) {
    for (const Placed& cut : kCuts) {
      SCOPED_TRACE(shape_string(size) + " " + cut.placements[0].to_string());
      expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 2, 9, 6}, 1), .placements = cut.placements}},
                           [&](const Tensors& t) {
                             return Tensors{
                                 at::upsample_nearest2d(t[0], size),         at::_upsample_nearest_exact2d(t[0], size),
                                 at::upsample_bilinear2d(t[0], size, false), at::upsample_bilinear2d(t[0], size, true),
                                 at::upsample_bicubic2d(t[0], size, false),  at::upsample_bicubic2d(t[0], size, true)};
                           },
                           {.double_backward = size[0] == 13});
    }
  }
}

TEST(Upsample, AntialiasedWindowsGrowWithTheFactor) {
  const std::vector<std::vector<int64_t>> sizes = {{18, 12}, {4, 6}, {2, 3}, {1, 11}, {9, 2}};
  for (const auto& size : sizes) {
    for (const Placed& cut : kCuts) {
      SCOPED_TRACE(shape_string(size) + " " + cut.placements[0].to_string());
      expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 2, 9, 6}, 1), .placements = cut.placements}},
                           [&](const Tensors& t) {
                             return Tensors{at::_upsample_bilinear2d_aa(t[0], size, false),
                                            at::_upsample_bilinear2d_aa(t[0], size, true),
                                            at::_upsample_bicubic2d_aa(t[0], size, false),
                                            at::_upsample_bicubic2d_aa(t[0], size, true),
                                            at::_upsample_bicubic2d_aa(t[0], {4, 5}, false, 0.47, 0.9)};
                           },
                           {.double_backward = size[0] == 4});
    }
  }
}

TEST(Upsample, FactorsOneAndThreeDims) {
  const auto factor = [](double value) { return std::optional<double>(value); };
  const auto one = [&](const Tensors& t) {
    return Tensors{at::upsample_nearest1d(t[0], 21, factor(2.4)), at::upsample_linear1d(t[0], 21, false, factor(2.4)),
                   at::upsample_linear1d(t[0], at::OptionalIntArrayRef(), true, at::ArrayRef<double>{1.5}),
                   at::_upsample_nearest_exact1d(t[0], 5, factor(0.6))};
  };
  const auto three = [](const Tensors& t) {
    return Tensors{at::upsample_nearest3d(t[0], {13, 4, 6}), at::upsample_trilinear3d(t[0], {4, 7, 6}, false),
                   at::upsample_trilinear3d(t[0], {18, 5, 2}, true), at::_upsample_nearest_exact3d(t[0], {13, 4, 6})};
  };
  for (const Placed& cut :
       {Placed{{2}, {shard(2, {4, 5})}}, Placed{{3}, {shard(2, {1, 0, 8})}}, Placed{{2}, {shard(1)}}}) {
    expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 3, 9}, 1), .placements = cut.placements}}, one);
    expect_same_as_plain(cut.mesh, {{.full = make_tensor({1, 2, 9, 5, 3}, 1), .placements = cut.placements}}, three);
  }
  expect_same_as_plain(
      {2, 2, 2}, {{.full = make_tensor({1, 2, 9, 5, 3}, 1), .placements = {shard(2), shard(3), shard(4)}}}, three);
}

// The nearest row depends on rounding in the tensor's own precision.
TEST(Upsample, NearestRowsAreLibTorchsInSinglePrecision) {
  for (const int64_t size : {7, 19, 23, 29, 57, 114}) {
    expect_same_as_plain(
        {3}, {{.full = make_tensor({1, 1, 38, 2}, 1, at::kFloat), .placements = {shard(2)}}},
        [&](const Tensors& t) {
          return Tensors{at::upsample_nearest2d(t[0], {size, 3}), at::_upsample_nearest_exact2d(t[0], {size, 3})};
        },
        {.tolerance = 1e-6});
  }
}

TEST(Upsample, BlocksKeepTheirPlaceInTheDomain) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 1, 9, 2}, 1), mesh, {shard(2, {5, 4})});
    EXPECT_EQ(sharding_sizes(at::upsample_bilinear2d(x, {18, 4}, false)).at(0), (std::vector<int64_t>{10, 8}));
    EXPECT_EQ(sharding_sizes(at::upsample_nearest2d(x, {3, 2})).at(0), (std::vector<int64_t>{2, 1}));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_upsample
