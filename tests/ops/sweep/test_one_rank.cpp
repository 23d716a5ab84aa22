// SPDX-License-Identifier: Apache-2.0
// Over mesh dims of size 1 nothing is cut: the kernels of whole tensors run, with their very bits, and placements stay
// what they were.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/dispatch/trivial_mesh_dims.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_one_rank {
namespace {

using at::Tensor;

struct Call {
  const char* name;
  Tensor (*f)(const Tensor&);
  bool cut = true;  // the result is, along dim 2
};
const Call kCalls[] = {
    {"group_norm", [](const Tensor& x) { return at::group_norm(x, 3, at::ones({6}, x.options().device(at::kCPU))); }},
    {"bilinear",
     [](const Tensor& x) {
       return at::upsample_bilinear2d(x, {23, 14}, false);
     }},
    {"bicubic",
     [](const Tensor& x) {
       return at::upsample_bicubic2d(x, {5, 6}, true);
     }},
    {"softmax", [](const Tensor& x) { return at::softmax(x, 2); }},
    {"log_softmax", [](const Tensor& x) { return at::log_softmax(x, 2); }},
    {"cumsum", [](const Tensor& x) { return at::cumsum(x, 2); }},
    {"layer_norm",
     [](const Tensor& x) {
       return at::layer_norm(x, {11, 7});
     }},
    {"batch_norm", [](const Tensor& x) { return at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
    {"roll", [](const Tensor& x) { return x.roll(3, 2); }},
    {"flip", [](const Tensor& x) { return x.flip({2}); }},
    {"pad",
     [](const Tensor& x) {
       return at::reflection_pad2d(x, {1, 2, 3, 1});
     }},
    {"conv2d",
     [](const Tensor& x) {
       return at::conv2d(x, at::ones({2, 6, 3, 3}).cos(), {}, 2, 1);
     }},
    {"avg_pool2d",
     [](const Tensor& x) {
       return at::avg_pool2d(x, {3, 2}, {2, 1}, {1, 1});
     }},
    {"adaptive",
     [](const Tensor& x) {
       return at::adaptive_avg_pool2d(x, {4, 5});
     }},
    {"cat",
     [](const Tensor& x) {
       return at::cat({x, x.sin(), x}, 2);
     }},
    {"slices", [](const Tensor& x) { return x.slice(2, 1, 10, 2) * x.slice(2, 0, 5); }},
    {"index_select", [](const Tensor& x) { return x.index_select(2, at::arange(10, 1, -3)); }},
    {"attention", [](const Tensor& x) { return at::scaled_dot_product_attention(x, x.cos(), x.sin()); }},
    {"causal", [](const Tensor& x) { return at::scaled_dot_product_attention(x, x.cos(), x, {}, 0, true); }},
    {"norms", [](const Tensor& x) { return x.norm(3.5, {2}, true) + x.std({2}, true, true); }, false},
};

// Result and gradient.
std::pair<Tensor, Tensor> run(const Call& call, const Tensor& given) {
  const Tensor x = given.detach().requires_grad_();
  const Tensor y = call.f(x);
  y.square().sum().backward();
  return {y.detach(), x.grad()};
}

void expect_the_same_bits(const std::vector<int64_t>& mesh_shape, const std::vector<Placement>& placements) {
  const Tensor full = make_tensor({2, 6, 11, 7}, 1, at::kFloat);
  on_mesh(mesh_shape, [&](const MeshPtr& mesh) {
    for (const Call& call : kCalls) {
      SCOPED_TRACE(call.name);
      const auto [y, grad] = run(call, full);

      const auto [cut_y, cut_grad] = run(call, shard_of(full, mesh, placements));

      EXPECT_TRUE(at::equal(full_tensor(cut_y), y));
      EXPECT_TRUE(at::equal(full_tensor(cut_grad), grad));
      EXPECT_EQ(spec(cut_grad)->to_string(), make_spec(mesh, full.sizes(), placements)->to_string());
      const std::string placed = spec(cut_y)->to_string();
      EXPECT_EQ(placed.find("Shard(2") != std::string::npos, call.cut) << placed;
    }
  });
}

TEST(OneRank, KernelsOfWholeTensorsRunAndBlocksStayShards) {
  expect_the_same_bits({1}, {shard(2)});
  expect_the_same_bits({1, 1}, {shard(3), shard(2)});
  expect_the_same_bits({2, 1}, {replicate(), shard(2)});
}

TEST(OneRank, UndividedLeavesCutsOverSeveralRanks) {
  on_mesh({2, 1}, [](const MeshPtr& mesh) {
    const auto made = [&](std::vector<Placement> placements) { return make_spec(mesh, {4, 6}, placements); };

    EXPECT_EQ(without_trivial_mesh_dims(made({shard(0), shard(1)})), made({shard(0), replicate()}));
    EXPECT_EQ(without_trivial_mesh_dims(made({shard(0, {3, 1}), shard(0)})), made({shard(0, {3, 1}), replicate()}));
    EXPECT_EQ(without_trivial_mesh_dims(made({partial(), partial(ReduceOp::kMax)})), made({partial(), replicate()}));
    EXPECT_EQ(without_trivial_mesh_dims(made({shard(1), replicate()})), made({shard(1), replicate()}));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_one_rank
