// SPDX-License-Identifier: Apache-2.0
// grid_sample on cuts against the whole tensor; what it may not move.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_grid_sample {
namespace {

using Placements = std::vector<Placement>;

struct Case {
  const char* name;
  std::vector<int64_t> mesh;
  Placements input, grid;
};

TEST(GridSample, AnyCutEqualsTheWholeTensor) {
  const Case cases[] = {
      {"batch", {2}, {shard(0, {1, 2})}, {shard(0, {1, 2})}},
      {"channels", {2}, {shard(1, {3, 1})}, {replicate()}},
      {"grid_rows", {3}, {replicate()}, {shard(1, {5, 0, 1})}},
      {"grid_columns", {2}, {replicate()}, {shard(2, {1, 3})}},
      {"channels_and_grid", {2, 2}, {shard(1), replicate()}, {replicate(), shard(1, {2, 4})}},
      {"space", {2}, {shard(2, {4, 1})}, {replicate()}},
      {"space_and_grid", {2}, {shard(3, {2, 2})}, {shard(1)}},
      {"sum", {2}, {partial()}, {shard(1)}},
      {"coordinates", {2}, {replicate()}, {shard(3)}},
  };
  const auto two = [](const Tensors& t) {
    Tensors out;
    for (const int64_t mode : {0, 1, 2}) {
      for (const int64_t padding : {0, 1, 2}) out.push_back(at::grid_sampler(t[0], t[1], mode, padding, padding == 1));
    }
    return out;
  };
  const auto three = [](const Tensors& t) {
    return Tensors{at::grid_sampler(t[0], t[1], 0, 0, false), at::grid_sampler(t[0], t[1], 0, 2, true),
                   at::grid_sampler(t[0], t[1], 1, 1, false)};
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    expect_same_as_plain(c.mesh,
                         {{.full = make_tensor({3, 4, 5, 4}, 1), .placements = c.input},
                          {.full = make_tensor({3, 6, 4, 2}, 2) * 1.2, .placements = c.grid}},
                         two, {.same_cut_gradients = false});
    if (std::string(c.name) == "coordinates") continue;
    expect_same_as_plain(c.mesh,
                         {{.full = make_tensor({3, 4, 5, 4, 3}, 1), .placements = c.input},
                          {.full = make_tensor({3, 6, 4, 2, 3}, 2) * 1.2, .placements = c.grid}},
                         three, {.same_cut_gradients = false});
  }
}

TEST(GridSample, ACutGridIsNotMovedNorIsItsOutput) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 2, 5, 4}, 1), mesh, {replicate()}).requires_grad_(),
                     grid = shard_of(make_tensor({1, 6, 4, 2}, 2), mesh, {shard(1, {5, 1})}).requires_grad_();
    mesh->group().reset_stats();
    const at::Tensor y = at::grid_sampler(x, grid, 0, 0, false);
    EXPECT_EQ(spec(y), make_spec(mesh, {1, 2, 6, 4}, {shard(2, {5, 1})}));
    const auto [grad_x, grad_grid] =
        at::grid_sampler_2d_backward(y.detach(), x.detach(), grid.detach(), 0, 0, false, {true, true});
    EXPECT_EQ(spec(grad_x), make_spec(mesh, x.sizes(), {partial()}));
    EXPECT_EQ(spec(grad_grid), spec(grid));
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
  });
}

TEST(GridSample, RefusesGridsOfOtherBatchesOrDims) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({2, 2, 5, 4}, 1), mesh, {shard(0)});
    EXPECT_THAT(message_of([&] {
                  at::grid_sampler_2d(x, make_tensor({3, 6, 4, 2}, 2), 0, 0, false);
                }),
                ::testing::StartsWith("aten::grid_sampler_2d: a grid of shape [3, 6, 4, 2] for an "
                                      "input of shape [2, 2, 5, 4]"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_grid_sample
