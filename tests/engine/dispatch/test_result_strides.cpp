// SPDX-License-Identifier: Apache-2.0
// Results declare the strides that they have on plain tensors, so that what is a copy there is one here.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_result_strides {
namespace {

using at::Tensor;
using Make = std::function<Tensor(const Tensor&)>;

const Make kTurned[] = {
    [](const Tensor& x) { return x.t() + 1; },
    [](const Tensor& x) { return (x.t() * 2).relu(); },
    [](const Tensor& x) { return x.t().clone(); },
    [](const Tensor& x) { return at::where(x.t() > 0, x.t(), -x.t()); },
    [](const Tensor& x) { return x.t().to(at::kFloat); },
    [](const Tensor& x) { return at::zeros_like(x.t()) + x.t(); },
    [](const Tensor& x) { return x.t() + x.t().sum(0, /*keepdim=*/true); },
    [](const Tensor& x) {
      return x.t() + at::ones({7, 9}, at::kDouble);
    },
    [](const Tensor& x) {
      return at::ones({9, 7}, at::kDouble).t() * x.t();
    },
    [](const Tensor& x) {
      return at::cat({x.t(), x.t()}, 1);
    },
    [](const Tensor& x) { return at::gelu(x.t()).pow(2).clamp(0, 1); },
    [](const Tensor& x) { return at::softmax(x.t(), 0); },
    [](const Tensor& x) { return x.t().cumsum(1); },
    [](const Tensor& x) { return x.t().flip(0).roll(1, 1); },
    [](const Tensor& x) {
      return at::constant_pad_nd(x.t(), {1, 0, 0, 1});
    },
    [](const Tensor& x) { return std::get<0>(x.t().sort(1)); },
    [](const Tensor& x) { return std::get<0>(x.t().topk(2, 1)); },
    [](const Tensor& x) { return at::lerp(x.t(), x.t() + 1, 0.5); },
    [](const Tensor& x) { return at::mm(x.t(), x); },
    [](const Tensor& x) { return at::layer_norm(x.t(), {9}); },
    [](const Tensor& x) { return x.t().index_select(0, at::arange(3)); },
    [](const Tensor& x) {
      return x.t().sum(0, true).expand({7, 9}) + x.t();
    },
};

// Writes to contiguous() and reshape() stay out of the tensor, and writes to the tensor out of them.
TEST(ResultStrides, D08_S26_ContiguousCopiesWhereThePlainOneDoes) {
  const Tensor full = make_tensor({9, 7}, 3);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    for (const auto& placement : {shard(0, {4, 0, 5}), shard(1, {1, 3, 3}), replicate()}) {
      for (size_t i = 0; i < std::size(kTurned); ++i) {
        const auto outcome = [&](const Tensor& x) {
          Tensor y = kTurned[i](x), copy = y.contiguous();
          if (y.is_contiguous()) return std::vector{y, copy.mul_(2)};
          Tensor flat = y.reshape({-1});
          return std::vector{y, copy.mul_(2), flat.add_(5)};
        };
        const std::vector<Tensor> actual = outcome(shard_of(full, mesh, {placement})), expected = outcome(full.clone());
        for (size_t r = 0; r < actual.size(); ++r)
          EXPECT_EQ(difference(full_tensor(actual[r]), expected[r], 1e-12), "") << i << ", " << r;
        EXPECT_EQ(actual[0].strides(), expected[0].strides()) << i;
      }
    }
  });
}

// Images whose channels are last, through a network and back.
TEST(ResultStrides, D08_ChannelsLast) {
  const Tensor full = make_tensor({2, 3, 8, 6}, 3), weight = make_tensor({4, 3, 3, 3}, 4);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const auto run = [&](Tensor x, Tensor w) {
      x = x.contiguous(at::MemoryFormat::ChannelsLast);
      const Tensor y = at::relu(at::conv2d(x, w, {}, 1, 1)), pooled = at::avg_pool2d(y, 2);
      Tensor copy = pooled.contiguous();
      copy.zero_();
      return std::vector{x, y, pooled, y.to(at::kFloat), at::empty_like(pooled).fill_(1)};
    };
    const auto actual = run(shard_of(full, mesh, {shard(2, {2, 6})}), shard_of(weight, mesh, {replicate()}));
    const auto expected = run(full, weight);
    for (size_t r = 0; r < actual.size(); ++r) {
      EXPECT_EQ(difference(full_tensor(actual[r]), expected[r], 1e-10), "") << r;
      EXPECT_EQ(actual[r].strides(), expected[r].strides()) << r;
    }
  });
}

// One decision serves calls that differ in memory alone; it must not serve their strides.
TEST(ResultStrides, D08_SharedByNoOtherStrides) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({6, 6}, 3), x = shard_of(full, mesh, {replicate()});
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_EQ((x + 1).strides(), (full + 1).strides());
      EXPECT_EQ((x.t() + 1).strides(), (full.t() + 1).strides());
      EXPECT_EQ((x + full.t()).strides(), (full + full.t()).strides());
      EXPECT_EQ((full.t() + x).strides(), (full.t() + full).strides());
      EXPECT_EQ(at::linalg_inv(x).strides(), at::linalg_inv(full).strides());
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_result_strides
