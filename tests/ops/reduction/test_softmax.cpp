// SPDX-License-Identifier: Apache-2.0
// Softmax along cut and whole dims.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_softmax {
namespace {

using at::Tensor;

TEST(Softmax, EqualsOneDeviceAlongEveryDim) {
  check({{"softmax_0", [](const Tensor& x) { return List{x.softmax(0)}; }, {.double_backward = true}},
         {"softmax_1", [](const Tensor& x) { return List{at::_softmax(x * 400, 1, false)}; }},
         {"softmax_2", [](const Tensor& x) { return List{x.softmax(-1)}; }},
         {"log_softmax_0", [](const Tensor& x) { return List{x.log_softmax(0)}; }, {.double_backward = true}},
         {"log_softmax_1", [](const Tensor& x) { return List{(x * 400).log_softmax(1)}; }},
         {"softmin",
          [](const Tensor& x) {
            return List{(-x).softmax(0), (x.exp() * x.softmax(0)).sum(1)};
          }}},
        make_tensor({9, 7, 2}, 1));
}

TEST(Softmax, MaskedRowsAndOtherDtypes) {
  Tensor masked = make_tensor({9, 7, 2}, 2);
  masked = masked.masked_fill(masked.gt(0.2), -INFINITY);
  masked.select(1, 3).fill_(-INFINITY);
  check({{"masked",
          [](const Tensor& x) {
            return List{x.softmax(0), x.log_softmax(1)};
          },
          {.backward = false}}},
        masked, {kPlacements972.begin(), kPlacements972.begin() + 8});
  check({{"float",
          [](const Tensor& x) {
            return List{x.softmax(0), x.log_softmax(1)};
          },
          {.tolerance = 1e-5}}},
        make_tensor({9, 7, 2}, 3, at::kFloat));
  check({{"bfloat16",
          [](const Tensor& x) {
            return List{x.softmax(0), x.log_softmax(1)};
          },
          {.tolerance = 2e-2}}},
        make_tensor({9, 7, 2}, 4, at::kBFloat16), {kPlacements972.begin(), kPlacements972.begin() + 8});
  check({{"to_double", [](const Tensor& x) { return List{x.softmax(0, at::kDouble)}; }}},
        make_tensor({9, 7, 2}, 5, at::kInt), {kPlacements972.begin(), kPlacements972.begin() + 8});
}

TEST(Softmax, AlongACutDimMovesTwoLinesForwardAndOneBackward) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Tensor x = shard_of(make_tensor({4, 300, 6}, 1), mesh, {shard(1, {100, 200})}).requires_grad_();
    const Tensor weights = shard_of(make_tensor({4, 300, 6}, 2), mesh, {shard(1, {100, 200})});
    mesh->group().reset_stats();

    const Tensor y = x.softmax(1);
    const CommStats forward = mesh->group().stats();
    (y * weights).sum().backward();

    EXPECT_EQ(forward.total().calls, 2);
    EXPECT_EQ(forward.by_kind[CommStats::kAllReduce].calls, 2);
    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kAllReduce].calls, 3);
    EXPECT_LE(mesh->group().stats().total().bytes, int64_t{3 * 2 * 4 * 6 * 8});
    EXPECT_EQ(spec(x.grad()), spec(x));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_softmax
