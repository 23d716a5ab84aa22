// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/exchange/redistribution_cache.h"
#include "moonhalo/engine/sharding/spec_table.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_decision_key {
namespace {

// Shapes that never repeat must not fill the memory: decisions are forgotten, and with them their specs.
TEST(DispatchCache, EndlessShapesStayBounded) {
  run_ranks(1, [](Communicator& world) {
    const auto mesh = init_device_mesh(world, "cpu", {1});
    constexpr int64_t kShapes = 100'000;
    size_t most = 0;

    for (int64_t n = 0; n < kShapes; ++n) {
      const SpecPtr spec = make_spec(mesh, {0, n, 2}, {shard(1)});
      from_local(at::empty({0, n, 2}), spec).sum(2);
      if (n % 1000 == 0) most = std::max(most, mesh->specs().size());
    }

    EXPECT_LT(most, 50'000u);
    EXPECT_GT(most, 10'000u) << "nothing was kept";
    Dispatch::of_this_thread().clear();
    EXPECT_EQ(mesh->specs().size(), 0u);
  });
}

// The same call again is not planned again, whatever it costs to plan; other arguments are.
TEST(DispatchCache, PlansOncePerSpecAndArguments) {
  run_ranks(1, [](Communicator& world) {
    const auto mesh = init_device_mesh(world, "cpu", {1});
    const at::Tensor x = distribute_tensor(at::ones({4, 6}), mesh, {shard(0)});
    Dispatch& dispatch = Dispatch::of_this_thread();
    dispatch.clear();
    const auto planned = [&](const std::function<void()>& calls) {
      const int64_t before = dispatch.counts.planned;
      calls();
      return dispatch.counts.planned - before;
    };

    EXPECT_EQ(planned([&] {
                for (int i = 0; i < 5; ++i) x.sum(1);
              }),
              1);
    EXPECT_EQ(planned([&] {
                for (int i = 0; i < 5; ++i) x.sum(0);
              }),
              1);
    EXPECT_EQ(planned([&] {
                for (int i = 0; i < 5; ++i) x.add(i);
              }),
              1)
        << "plans of pointwise operators read no numbers";
    EXPECT_EQ(planned([&] {
                for (int i = 0; i < 5; ++i) x.add(x);
              }),
              1);
    EXPECT_EQ(planned([&] { x.add(x.to(at::kDouble)); }), 2);
    dispatch.clear();
    EXPECT_EQ(planned([&] { x.sum(1); }), 1);
  });
}

using Call = std::function<at::Tensor(const at::Tensor&)>;

struct Pair {
  std::string name;
  Call one, other;
};

// Each call is made before and after the other, on the same ShardTensor, so that a decision of one could serve the
// other.
TEST(DispatchCache, CallsThatDifferInOneArgumentAreDifferentDecisions) {
  const std::vector<Pair> pairs = {
      {"no dim, dim -3", [](const at::Tensor& x) { return x.argmax(); },
       [](const at::Tensor& x) { return x.argmax(-3); }},
      {"no dim, dim -2", [](const at::Tensor& x) { return at::count_nonzero(x); },
       [](const at::Tensor& x) { return at::count_nonzero(x, std::optional<int64_t>(-2)); }},
      {"True, one", [](const at::Tensor& x) { return at::full_like(x, true, at::TensorOptions(at::kDouble)); },
       [](const at::Tensor& x) { return at::full_like(x, 1, at::TensorOptions(at::kDouble)); }},
      {"dims in a list",
       [](const at::Tensor& x) {
         return x.sum(at::IntArrayRef({0, 1}));
       },
       [](const at::Tensor& x) {
         return x.sum(at::IntArrayRef({0, 2}));
       }},
      {"keepdim", [](const at::Tensor& x) { return x.mean(1, true); },
       [](const at::Tensor& x) { return x.mean(1, false); }},
      {"eps", [](const at::Tensor& x) { return at::layer_norm(x, {2}, at::Tensor(), at::Tensor(), 1e-5); },
       [](const at::Tensor& x) { return at::layer_norm(x, {2}, at::Tensor(), at::Tensor(), 1.0); }},
      {"normalized shape", [](const at::Tensor& x) { return at::layer_norm(x, {2}); },
       [](const at::Tensor& x) {
         return at::layer_norm(x, {4, 2});
       }},
      {"mode", [](const at::Tensor& x) { return at::div(x, 0.3, "floor"); },
       [](const at::Tensor& x) { return at::div(x, 0.3, "trunc"); }},
      {"lower bound, upper bound", [](const at::Tensor& x) { return at::clamp(x, x.mul(0.5), {}); },
       [](const at::Tensor& x) { return at::clamp(x, std::optional<at::Tensor>(), x.mul(0.5)); }},
      {"lists of one, of two",
       [](const at::Tensor& x) {
         return at::conv2d(x.unsqueeze(1), at::ones({1, 1, 2, 1}, at::kDouble), {}, {2}, at::IntArrayRef({1, 1}));
       },
       [](const at::Tensor& x) {
         return at::conv2d(x.unsqueeze(1), at::ones({1, 1, 2, 1}, at::kDouble), {}, at::IntArrayRef({2, 1}), {1});
       }},
      {"a number, one with the same bits", [](const at::Tensor& x) { return at::norm(x, 2.0, 1); },
       [](const at::Tensor& x) { return at::norm(x, int64_t{0x4000000000000000}, 1); }},
      {"window",
       [](const at::Tensor& x) {
         return at::max_pool2d(x, {2, 2}, {1, 1});
       },
       [](const at::Tensor& x) {
         return at::max_pool2d(x, {1, 2}, {1, 1});
       }},
  };
  const at::Tensor full = make_tensor({5, 4, 2}, 1);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (int64_t dim = 0; dim < 2; ++dim) {
      const at::Tensor x = shard_of(full, mesh, {shard(dim)});
      for (const auto& [name, one, other] : pairs) {
        for (const Call* call : {&one, &other, &one, &other}) {
          const at::Tensor result = (*call)(x), expected = (*call)(full);
          EXPECT_TRUE(at::allclose(full_tensor(result), expected)) << name << ", cut in dim " << dim;
        }
      }
    }
  });
}

TEST(DispatchCache, RedistributionsAreKeptAndForgotten) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Dispatch& dispatch = Dispatch::of_this_thread();
    const SpecPtr from = make_spec(mesh, {6}, {shard(0)}), to = make_spec(mesh, {6}, {shard(0, {1, 5})});

    const auto made = cached_redistribution(from, to);

    EXPECT_EQ(cached_redistribution(from, to), made);
    EXPECT_NE(cached_redistribution(to, from), made);
    dispatch.clear();
    EXPECT_EQ(made.use_count(), 1);
    for (int64_t size = 1; size < 3000; ++size) {
      cached_redistribution(make_spec(mesh, {size}, {shard(0)}), make_spec(mesh, {size}, {replicate()}));
    }
    EXPECT_LE(cached_redistribution_count(), 1024);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_decision_key
