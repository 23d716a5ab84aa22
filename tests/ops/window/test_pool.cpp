// SPDX-License-Identifier: Apache-2.0
// Pooling on cuts against the whole tensor, values, indices and gradients: X03.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "moonhalo/engine/base/text.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_pool {
namespace {

struct Window {
  int64_t kernel = 2, stride = 2, padding = 0, dilation = 1;
  bool ceil_mode = false;
};

std::string text(const Window& w) {
  return "kernel " + std::to_string(w.kernel) + " stride " + std::to_string(w.stride) + " padding " +
         std::to_string(w.padding) + " dilation " + std::to_string(w.dilation) + (w.ceil_mode ? " ceil" : "");
}

// Blocks of [2, 3, 11, 6].
const Placed kCuts[] = {
    {{2}, {shard(2, {5, 6})}},
    {{3}, {shard(2, {1, 9, 1})}},
    {{3}, {shard(2, {4, 0, 7})}},
    {{2}, {shard(3, {5, 1})}},
    {{2, 2}, {shard(2, {5, 6}), shard(3, {1, 5})}},
    {{2, 2}, {shard(0), shard(2, {8, 3})}},
    {{2}, {shard(1)}},
    {{2}, {partial()}},
    {{2, 2}, {replicate(), shard(3)}},
};

std::vector<Window> windows(bool dilated) {
  std::vector<Window> all;
  for (const int64_t kernel : {1, 2, 3, 4}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t padding : {0, 1, 2}) {
        if (2 * padding > kernel) continue;
        for (const bool ceil_mode : {false, true}) {
          const int64_t dilation = dilated && kernel == 2 ? 1 + stride % 3 : 1;
          all.push_back({kernel, stride, padding, dilation, ceil_mode});
        }
      }
    }
  }
  return all;
}

// Every window over two cuts; every eighth one with second derivatives, if the operator has them.
void check_windows(bool dilated, bool twice, const std::function<Tensors(const at::Tensor&, const Window&)>& pool) {
  const auto all = windows(dilated);
  for (size_t i = 0; i < all.size(); ++i) {
    for (const size_t c : {i % std::size(kCuts), (i + 4) % std::size(kCuts)}) {
      SCOPED_TRACE(text(all[i]) + " cut " + std::to_string(c));
      expect_same_as_plain(kCuts[c].mesh, {{.full = make_tensor({2, 3, 11, 6}, 1), .placements = kCuts[c].placements}},
                           [&](const Tensors& t) { return pool(t[0], all[i]); },
                           {.double_backward = twice && i % 8 == 0});
    }
  }
}

TEST(MaxPool, ValuesGlobalIndicesAndGradientsEqualTheWholeTensors) {
  check_windows(true, false, [](const at::Tensor& x, const Window& w) {
    auto [values, indices] = at::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
    return Tensors{values, indices};
  });
}

TEST(AvgPool, EqualsTheWholeTensorForwardAndBackward) {
  check_windows(false, true, [](const at::Tensor& x, const Window& w) {
    const auto pool = [&](bool include_pad, std::optional<int64_t> divisor) {
      return at::avg_pool2d(x, w.kernel, w.stride, w.padding, w.ceil_mode, include_pad, divisor);
    };
    return Tensors{pool(true, {}), pool(false, {}), pool(true, 5)};
  });
}

TEST(Pool, OneAndThreeDims) {
  const auto one = [](const Tensors& t) {
    return Tensors{at::max_pool1d(t[0], 3, 2, 1), at::avg_pool1d(t[0], 3, 2, 1, true, false),
                   at::max_pool1d(t[0][0], 2)};
  };
  const auto three = [](const Tensors& t) {
    auto [values, indices] = at::max_pool3d_with_indices(t[0], {3, 2, 2}, {2, 1, 2}, {1, 0, 1}, {1, 2, 1}, true);
    return Tensors{values, indices, at::max_pool3d(t[0], 2),
                   at::avg_pool3d(t[0], {3, 2, 2}, {2, 1, 2}, {1, 0, 1}, true, false)};
  };
  for (const Placed& cut :
       {Placed{{2}, {shard(2, {4, 5})}}, Placed{{3}, {shard(2, {1, 0, 8})}}, Placed{{2}, {shard(0)}}}) {
    expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 3, 9}, 1), .placements = cut.placements}}, one);
    expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 3, 9, 5, 4}, 1), .placements = cut.placements}}, three);
  }
  expect_same_as_plain(
      {2, 2, 2},
      {{.full = make_tensor({2, 3, 9, 5, 4}, 1), .placements = {shard(2, {4, 5}), shard(3, {1, 4}), shard(4)}}}, three);
}

// LibTorch reads the data of a tensor without gradients itself: not of a ShardTensor.
TEST(MaxPool, OneDimWithoutGradients) {
  expect_same_as_plain({2}, {{.full = make_tensor({2, 3, 9}, 1), .placements = {shard(2)}, .grad = false}},
                       [](const Tensors& t) { return Tensors{at::max_pool1d(t[0], 3, 2, 1)}; });
}

TEST(MaxPool, InfinitiesNansTiesAndIntegers) {
  at::Tensor odd = make_tensor({1, 1, 9, 4}, 1);
  odd.slice(2, 0, 4).fill_(-std::numeric_limits<double>::infinity());
  odd[0][0][6][1] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor ties = at::ones({1, 1, 9, 4}, at::kDouble);
  const auto program = [](const Tensors& t) {
    auto [a, b] = at::max_pool2d_with_indices(t[0], 3, 1, 1);
    auto [c, d] = at::max_pool2d_with_indices(t[0], 2, 1, 1, 3);
    return Tensors{a, b, c, d};
  };
  for (const Placed& cut :
       {Placed{{3}, {shard(2, {2, 3, 4})}}, Placed{{2, 2}, {shard(2), shard(3)}}, Placed{{2}, {shard(3)}}}) {
    for (const at::Tensor& x :
         {odd, ties, make_tensor({1, 1, 9, 4}, 2, at::kLong), make_tensor({1, 1, 9, 4}, 2, at::kFloat)}) {
      SCOPED_TRACE(x.scalar_type());
      expect_same_as_plain(cut.mesh, {{.full = x, .placements = cut.placements, .grad = false}}, program);
    }
  }
}

TEST(AdaptivePool, EqualsTheWholeTensorForwardAndBackward) {
  for (const std::vector<int64_t>& size : {std::vector<int64_t>{1, 1}, {3, 2}, {7, 6}, {11, 4}, {1, 3}, {13, 8}}) {
    const auto program = [&](const Tensors& t) {
      auto [values, indices] = at::adaptive_max_pool2d(t[0], size);
      return Tensors{at::adaptive_avg_pool2d(t[0], size), values, indices, at::adaptive_avg_pool2d(t[0][0], size)};
    };
    for (const Placed& cut : kCuts) {
      SCOPED_TRACE(shape_string(size) + " " + cut.placements[0].to_string());
      expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 3, 11, 6}, 1), .placements = cut.placements}}, program);
    }
  }
  const auto others = [](const Tensors& t) {
    auto [values, indices] = at::adaptive_max_pool3d(t[0], {2, 3, 2});
    auto [line, line_indices] = at::adaptive_max_pool1d(t[0].select(4, 0).select(3, 0), 4);
    return Tensors{at::adaptive_avg_pool3d(t[0], {4, 2, 3}),
                   values,
                   indices,
                   line,
                   line_indices,
                   at::adaptive_avg_pool1d(t[0].select(4, 0).select(3, 0), 4)};
  };
  for (const Placed& cut : {Placed{{3}, {shard(2, {1, 0, 8})}}, Placed{{2}, {shard(2)}}}) {
    expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 3, 9, 5, 4}, 1), .placements = cut.placements}}, others);
  }
}

TEST(Pool, RecordsItsCutAndMovesOnlyTheHalo) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 1, 12, 4}, 1), mesh, {shard(2, {6, 4, 2})});
    mesh->group().reset_stats();
    EXPECT_EQ(sharding_sizes(at::avg_pool2d(x, 2)).at(0), (std::vector<int64_t>{3, 2, 1}));
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
    EXPECT_EQ(sharding_sizes(at::max_pool2d(x, 3, 1, 1)).at(0), (std::vector<int64_t>{6, 4, 2}));
    EXPECT_EQ(mesh->group().stats().total().bytes, (mesh->rank() == 1 ? 2 : 1) * 4 * 8);
  });
}

TEST(Pool, RefusesWindowsThatDoNotFit) {
  const auto message = [](auto call) {
    return message_of([&] {
      on_mesh({2}, [&](const MeshPtr& mesh) { call(shard_of(make_tensor({1, 1, 4, 6}, 1), mesh, {shard(2)})); });
    });
  };
  EXPECT_THAT(
      message([](const at::Tensor& x) { return at::avg_pool2d(x, 5); }),
      ::testing::HasSubstr("aten::avg_pool2d: a window of 5 rows along dim 2 is larger than the padded input of 4"));
  EXPECT_THAT(message([](const at::Tensor& x) { return at::max_pool2d(x, 2, 2, 2); }),
              ::testing::HasSubstr("padding 2 is more than half of the window of 2 rows"));
}

}  // namespace
}  // namespace moonhalo::testing::test_pool
