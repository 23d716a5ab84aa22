// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "engine/communicator.h"
#include "engine/dispatch.h"
#include "engine/shard_tensor.h"
#include "engine/spec_table.h"

namespace moonhalo::testing {
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

    EXPECT_EQ(planned([&] { for (int i = 0; i < 5; ++i) x.sum(1); }), 1);
    EXPECT_EQ(planned([&] { for (int i = 0; i < 5; ++i) x.sum(0); }), 1);
    EXPECT_EQ(planned([&] { for (int i = 0; i < 5; ++i) x.add(i); }), 1) << "plans of pointwise operators read no numbers";
    EXPECT_EQ(planned([&] { for (int i = 0; i < 5; ++i) x.add(x); }), 1);
    EXPECT_EQ(planned([&] { x.add(x.to(at::kDouble)); }), 2);
    dispatch.clear();
    EXPECT_EQ(planned([&] { x.sum(1); }), 1);
  });
}

}  // namespace
}  // namespace moonhalo::testing
