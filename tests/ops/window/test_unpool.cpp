// SPDX-License-Identifier: Apache-2.0
// Pooling by random windows, and the way back from pooled maxima, on cuts against the whole tensor.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_unpool {
namespace {

const Placed kCuts[] = {
    {{2}, {shard(0, {2, 1})}},
    {{3}, {shard(1, {3, 0, 1})}},
    {{2, 2}, {shard(0), shard(1, {1, 3})}},
    {{2, 2}, {shard(1), shard(2)}},
    {{2}, {shard(3)}},
    {{2}, {partial()}},
};

TEST(Unpool, FractionalPoolingAndUnpoolingEqualTheWholeTensor) {
  const auto two = [](const Tensors& t) {
    const auto [y, i] = at::fractional_max_pool2d(t[0], {2, 3}, {4, 3}, t[1]);
    const auto [z, j] = at::max_pool2d_with_indices(t[0], {2, 2}, {2, 2});
    return Tensors{y, i, at::max_unpool2d(y * y, i, {8, 7}), at::max_unpool2d(z, j, {8, 7}),
                   at::max_unpool2d(z[0], j[0], {8, 7})};
  };
  const auto three = [](const Tensors& t) {
    const auto [y, i] = at::fractional_max_pool3d(t[0], {2, 2, 1}, {4, 3, 2}, t[1]);
    return Tensors{y, i, at::max_unpool3d(y * y, i, {8, 7, 3}, {2, 2, 1}, {0, 0, 0})};
  };
  for (const Placed& cut : kCuts) {
    SCOPED_TRACE(cut.placements[0].to_string());
    const auto input = [&](const at::Tensor& x) { return Input{.full = x, .placements = cut.placements}; };
    const auto samples = [](int64_t dims) {
      return Input{.full = make_tensor({3, 4, dims}, 2).abs(), .grad = false, .plain = true};
    };
    expect_same_as_plain(cut.mesh, {input(make_tensor({3, 4, 8, 7}, 1)), samples(2)}, two, {.double_backward = true});
    expect_same_as_plain(cut.mesh, {input(make_tensor({3, 4, 8, 7, 3}, 1)), samples(3)}, three,
                         {.double_backward = true});
  }
}

// Positions come from whole planes; the gradient of the values is cut in channels, so each rank has some of the
// positions.
TEST(Unpool, PositionsOfSomeChannels) {
  for (const Placed& cut : kCuts) {
    SCOPED_TRACE(cut.placements[0].to_string());
    const Input x{.full = make_tensor({3, 4, 8, 7}, 1)}, deep{.full = make_tensor({3, 4, 8, 7, 3}, 1)};
    const auto samples = [](int64_t dims) {
      return Input{.full = make_tensor({3, 4, dims}, 2).abs(), .grad = false, .plain = true};
    };
    expect_same_as_plain(cut.mesh, {x, samples(2), {make_tensor({3, 4, 4, 3}, 3), cut.placements}},
                         [](const Tensors& t) {
                           const auto [y, i] = at::fractional_max_pool2d(t[0], {2, 3}, {4, 3}, t[1]);
                           return Tensors{y * t[2], at::max_unpool2d(t[2], i, {8, 7})};
                         });
    expect_same_as_plain(cut.mesh, {deep, samples(3), {make_tensor({3, 4, 4, 3, 2}, 3), cut.placements}},
                         [](const Tensors& t) {
                           const auto [y, i] = at::fractional_max_pool3d(t[0], {2, 2, 1}, {4, 3, 2}, t[1]);
                           return Tensors{y * t[2], at::max_unpool3d(t[2], i, {8, 7, 3}, {2, 2, 1}, {0, 0, 0})};
                         });
  }
}

TEST(Unpool, CutPlanesAreNotMoved) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({3, 4, 8, 6}, 1), mesh, {shard(1, {3, 1})}),
                     samples = make_tensor({3, 4, 2}, 2).abs();
    mesh->group().reset_stats();
    const auto [y, i] = at::fractional_max_pool2d(x, {2, 2}, {4, 3}, samples);
    EXPECT_EQ(spec(at::max_unpool2d(y, i, {8, 6})), spec(x));
    EXPECT_EQ(spec(at::fractional_max_pool2d_backward(y, x, {2, 2}, {4, 3}, i)), spec(x));
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
    EXPECT_THAT(
        message_of([&] {
          at::max_unpool2d(y, i.narrow(3, 0, 2), {8, 6});
        }),
        ::testing::StartsWith("aten::max_unpool2d: indices of shape [3, 4, 4, 2] for values of shape [3, 4, 4, 3]"));
    EXPECT_THAT(message_of([&] {
                  at::max_unpool2d(y, i, {8, 6, 4});
                }),
                ::testing::StartsWith("aten::max_unpool2d: output_size and the input do not fit"));
    EXPECT_THAT(message_of([&] {
                  at::max_unpool2d(y.unsqueeze(0), i.unsqueeze(0), {8, 6});
                }),
                ::testing::StartsWith("aten::max_unpool2d: an input of 5 dims"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_unpool
