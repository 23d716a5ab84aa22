// SPDX-License-Identifier: Apache-2.0
// grid_sample with a stated displacement: the same numbers on any cut, only what can be reached is sent, and never a
// wrong number.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/ops/window/grid_sample.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_grid_sample_bounded {
namespace {

using Placements = std::vector<Placement>;
using Sizes = std::vector<int64_t>;

// The identity grid of `out`, displaced by at most `pixels` of `in` along each dim of space: half of all points by
// whole and half pixels, where sides are taken.
at::Tensor displaced_grid(int64_t batch, const Sizes& in, const Sizes& out, double pixels, bool align_corners) {
  const auto dims = static_cast<int64_t>(in.size());
  const at::Tensor theta = at::eye(dims, dims + 1, at::kDouble).expand({batch, dims, dims + 1});
  Sizes size = {batch, 1};
  size.insert(size.end(), out.begin(), out.end());
  const at::Tensor identity = at::affine_grid_generator(theta, size, align_corners);
  at::Tensor moved = make_tensor(identity.sizes(), 7);
  moved = at::where(make_tensor(identity.sizes(), 8).gt(0), moved, (moved * 2).round() / 2) * pixels;
  at::Tensor scale = at::empty({dims}, at::kDouble);
  for (int64_t d = 0; d < dims; ++d)
    scale[dims - 1 - d] = 2.0 / static_cast<double>(align_corners ? std::max<int64_t>(1, in[d] - 1) : in[d]);
  return identity + moved * scale;
}

struct Cut {
  const char* name;
  Sizes mesh;
  Placements input, grid;
};

// Every mode and padding; one grid for each meaning of the corners.
Tensors sampled(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& corners, double bound) {
  Tensors results;
  for (const char* mode : {"bilinear", "nearest", "bicubic"}) {
    if (x.dim() == 5 && mode == std::string("bicubic")) continue;
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const bool align : {false, true})
        results.push_back(grid_sample(x, align ? corners : inner, {mode, padding, align, {{bound}}}));
    }
  }
  return results;
}

void expect_same(const Cut& c, const Sizes& in, const Sizes& out, double bound) {
  Sizes shape = {2, 3};
  shape.insert(shape.end(), in.begin(), in.end());
  expect_same_as_plain(c.mesh,
                       {{.full = make_tensor(shape, 1), .placements = c.input},
                        {.full = displaced_grid(2, in, out, bound, false), .placements = c.grid},
                        {.full = displaced_grid(2, in, out, bound, true), .placements = c.grid}},
                       [=](const Tensors& t) { return sampled(t[0], t[1], t[2], bound); },
                       {.same_cut_gradients = false});
}

TEST(GridSampleBounded, AnyCutEqualsTheWholeTensor) {
  const Cut cases[] = {
      {"both_by_rows", {2}, {shard(2, {7, 4})}, {shard(1, {7, 4})}},
      {"rows_elsewhere", {3}, {shard(2, {1, 8, 2})}, {shard(1, {4, 0, 7})}},
      {"input_alone", {4}, {shard(2, {3, 3, 0, 5})}, {replicate()}},
      {"grid_alone", {2}, {replicate()}, {shard(2, {2, 4})}},
      {"rows_and_columns", {2, 2}, {shard(2, {6, 5}), shard(3, {2, 4})}, {shard(1, {6, 5}), shard(2, {2, 4})}},
      {"crossed", {2, 2}, {shard(2), shard(3)}, {shard(2), shard(1)}},
      {"channels_and_rows", {2, 2}, {shard(1, {2, 1}), shard(2, {9, 2})}, {replicate(), shard(1)}},
      {"batch_and_rows", {2, 2}, {shard(0), shard(2, {4, 7})}, {replicate(), replicate()}},
      {"rows_twice", {2, 2}, {shard(2), shard(2)}, {shard(1), replicate()}},
      {"batch_against_rows", {2}, {shard(2)}, {shard(0)}},
      {"coordinates_and_sum", {2}, {partial()}, {shard(3)}},
  };
  for (const Cut& c : cases) {
    SCOPED_TRACE(c.name);
    expect_same(c, {11, 6}, {11, 6}, 2.0);
    // Finer and coarser outputs; reaching over several blocks and far beyond the domain.
    Cut free = c;
    for (Placement& p : free.grid) p.sizes = {};
    expect_same(free, {11, 6}, {5, 13}, 0.6);
    expect_same(free, {11, 6}, {8, 1}, 9.0);
  }
  expect_same({"volume", {2, 2}, {shard(2, {4, 3}), shard(4)}, {shard(1, {4, 3}), shard(3)}}, {7, 3, 4}, {7, 2, 4},
              1.5);
}

// Between the pixels: at them the derivatives of LibTorch's own kernels differ from machine to machine.
TEST(GridSampleBounded, IsLibTorchsOnOneDevice) {
  for (const Sizes& in : {Sizes{7, 5}, Sizes{5, 4, 3}}) {
    Sizes shape = {2, 3}, points = {2};
    const Sizes out = in.size() == 2 ? Sizes{6, 4} : Sizes{4, 4, 2};
    shape.insert(shape.end(), in.begin(), in.end());
    points.insert(points.end(), out.begin(), out.end());
    points.push_back(static_cast<int64_t>(in.size()));
    const at::Tensor x = make_tensor(shape, 1).requires_grad_(), grid = (make_tensor(points, 2) * 2.3).requires_grad_();
    for (int64_t mode = 0; mode < (in.size() == 2 ? 3 : 2); ++mode) {
      for (int64_t padding = 0; padding < 3; ++padding) {
        for (const bool align : {false, true}) {
          const char* const modes[] = {"bilinear", "nearest", "bicubic"};
          const char* const paddings[] = {"zeros", "border", "reflection"};
          SCOPED_TRACE(std::string(modes[mode]) + " " + paddings[padding] + (align ? " corners" : ""));
          const GridSample options{modes[mode], paddings[padding], align, {{20.0}}};

          const at::Tensor actual = grid_sample(x, grid, options),
                           expected = at::grid_sampler(x, grid, mode, padding, align);
          const Tensors slopes = torch::autograd::grad({actual.square().sum()}, {x, grid}),
                        theirs = torch::autograd::grad({expected.square().sum()}, {x, grid});

          EXPECT_EQ(difference(actual, expected, 1e-12), "");
          for (const int i : {0, 1}) EXPECT_EQ(difference(slopes[i], theirs[i], 1e-10), "") << i;
        }
      }
    }
  }
  const at::Tensor x = make_tensor({2, 3, 7, 5}, 1), grid = make_tensor({2, 6, 4, 2}, 2);
  EXPECT_TRUE(at::equal(grid_sample(x, grid), at::grid_sampler(x, grid, 0, 0, false)));
}

// Without a bound the kernels are LibTorch's, for all types that it takes.
TEST(GridSampleBounded, HalfTypesWithoutABound) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = make_tensor({2, 3, 7, 5}, 1, type), grid = make_tensor({2, 6, 4, 2}, 2, type);
    const at::Tensor expected = at::grid_sampler(x, grid, 0, 1, true);
    const GridSample options{"bilinear", "border", true};
    EXPECT_TRUE(at::equal(grid_sample(x, grid, options), expected)) << type;
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const at::Tensor y =
          grid_sample(shard_of(x, mesh, {shard(2, {3, 4})}), shard_of(grid, mesh, {shard(1, {5, 1})}), options);
      EXPECT_TRUE(at::equal(full_tensor(y), expected)) << type;
    });
    EXPECT_THAT(message_of([&] { grid_sample(x, grid, {.max_displacement = {{9.0}}}); }),
                ::testing::StartsWith("grid_sample: an input of "));
  }
}

// Mirrored as exactly as the position is known, where the number of mirrors fits no integer.
TEST(GridSampleBounded, PointsReflectedFromFarAway) {
  // With corners aligned, 5 columns and 9 rows have periods of 8 and 16 pixels, and of 4 coordinates.
  const at::Tensor x = make_tensor({1, 2, 9, 5}, 1), near = make_tensor({1, 6, 4, 2}, 2);
  at::Tensor far = near.clone(), folded = near.clone();
  for (const auto& [row, away] : {std::pair{0, 1e30}, {1, -1e30}, {3, 0x1p52 + 1}, {4, 0x1p70}, {5, 7e200}}) {
    for (const int64_t k : {0, 1}) {
      far[0][row][k][k] = away;
      folded[0][row][k][k] = std::fmod(away + 1, 4.0) - 1;
    }
  }
  for (const char* mode : {"bilinear", "nearest", "bicubic"}) {
    SCOPED_TRACE(mode);
    const auto sample = [&](const Tensors& t) {
      return Tensors{grid_sample(t[0], t[1], {mode, "reflection", true, {{INFINITY}}})};
    };
    const at::Tensor y = sample({x, far})[0];
    EXPECT_TRUE(y.isfinite().all().item<bool>());
    if (mode != std::string("bicubic")) EXPECT_EQ(difference(y, sample({x, folded})[0], 1e-12), "");
    for (const Placements& grid : {Placements{shard(1, {2, 0, 4})}, {replicate()}})
      expect_same_as_plain({3}, {{x, {shard(2, {5, 0, 4})}}, {far, grid}}, sample, {.same_cut_gradients = false});
  }
}

TEST(GridSampleBounded, OnlyWhatCanBeReachedTravels) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 2, 40, 8}, 1), mesh, {shard(2, {24, 16})}).requires_grad_(),
                     grid = shard_of(displaced_grid(1, {40, 8}, {40, 8}, 1.5, false), mesh, {shard(1, {24, 16})})
                                .requires_grad_();
    mesh->group().reset_stats();
    const at::Tensor y = grid_sample(x, grid, {.max_displacement = {{1.5, 8.0}}});
    EXPECT_EQ(spec(y), make_spec(mesh, {1, 2, 40, 8}, {shard(2, {24, 16})}));
    // 1.5 rows away and its neighbour: two rows of 2 x 8 numbers each way, and the check of two numbers.
    const auto& exchanged = mesh->group().stats().by_kind[CommStats::kExchange];
    EXPECT_EQ(exchanged.bytes, 2 * 2 * 8 * 8);
    EXPECT_LE(mesh->group().stats().total().bytes - exchanged.bytes, 2 * 8);
    // Backward the grid's gradient fetches the same rows, and the input's sends as many home; what is not asked
    // for does not are sent.
    const Tensors both = torch::autograd::grad({y.sum()}, {x, grid}, {}, /*retain_graph=*/true);
    EXPECT_EQ(spec(both[0]), spec(x));
    for (const int i : {0, 1}) {
      mesh->group().reset_stats();
      const at::Tensor one = torch::autograd::grad({y.sum()}, {i == 0 ? x : grid}, {}, true)[0];
      EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kExchange].calls, 1) << i;
      EXPECT_EQ(mesh->group().stats().total().bytes, 2 * 2 * 8 * 8) << i;
      EXPECT_TRUE(at::equal(to_local(one), to_local(both[i]))) << i;
    }
  });
}

TEST(GridSampleBounded, APointBeyondTheBoundIsAnErrorOnEveryRank) {
  const at::Tensor x = make_tensor({1, 1, 12, 4}, 1), identity = displaced_grid(1, {12, 4}, {12, 4}, 0, false);
  at::Tensor far = identity.clone(), none = identity.clone();
  far[0][11][2][1] += 2 * 3.25 / 12;
  none[0][0][0][0] = NAN;
  const GridSample options{.max_displacement = {{3.0}}};
  const char* const beyond =
      "grid_sample: a point is 3.25 pixels from its identity position along dim 2, beyond "
      "max_displacement = 3";
  EXPECT_THAT(message_of([&] { grid_sample(x, far, options); }), ::testing::StartsWith(beyond));
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Placements rows = {shard(1, {4, 4, 4})};
    const at::Tensor field = shard_of(x, mesh, {shard(2, {6, 5, 1})});
    EXPECT_THAT(message_of([&] { grid_sample(field, shard_of(far, mesh, rows), options); }),
                ::testing::StartsWith(beyond));
    EXPECT_THAT(message_of([&] { grid_sample(field, shard_of(none, mesh, rows), options); }),
                ::testing::StartsWith("grid_sample: a point is inf pixels from its identity position along dim 3"));
    // An infinite bound takes any place, but not none.
    for (const char* padding : {"zeros", "border", "reflection"})
      EXPECT_THAT(message_of([&] {
                    grid_sample(field, shard_of(none, mesh, rows),
                                {.padding_mode = padding, .max_displacement = {{INFINITY}}});
                  }),
                  ::testing::StartsWith("grid_sample: a point is inf pixels from its identity"));
    EXPECT_EQ(difference(full_tensor(grid_sample(field, shard_of(identity, mesh, rows), {.max_displacement = {{0.0}}})),
                         x, 1e-12),
              "");
  });
}

TEST(GridSampleBounded, RefusesWhatHasNoMeaning) {
  const at::Tensor x = make_tensor({2, 3, 7, 5}, 1), grid = make_tensor({2, 4, 4, 2}, 2);
  const std::pair<std::function<void()>, const char*> wrong[] = {
      {[&] { grid_sample(x, grid, {.mode = "bilinar"}); },
       "grid_sample: unknown mode 'bilinar'; did you mean 'bilinear'?"},
      {[&] { grid_sample(x, grid, {.padding_mode = "zero"}); }, "grid_sample: unknown padding_mode 'zero'"},
      {[&] {
         grid_sample(x, make_tensor({1, 4, 4, 2}, 2));
       },
       "grid_sample: a grid of shape [1, 4, 4, 2] for an input of shape [2, 3, 7, 5]"},
      {[&] { grid_sample(x, grid.to(at::kFloat)); }, "grid_sample: an input of Double and a grid of Float"},
      {[&] {
         grid_sample(x, grid, {.max_displacement = {{1, 2, 3}}});
       },
       "grid_sample: max_displacement = [1, 2, 3] for 2 dims"},
      {[&] { grid_sample(x, grid, {.max_displacement = {{-1.0}}}); }, "grid_sample: max_displacement = [-1"},
      {[&] {
         grid_sample(x.unsqueeze(2), make_tensor({2, 1, 4, 4, 3}, 2), {.mode = "bicubic"});
       },
       "grid_sample: bicubic for 3 dims"},
      {[&] {
         const at::Tensor leaf = x.detach().requires_grad_();
         const at::Tensor g = torch::autograd::grad(
             {grid_sample(leaf, grid, {.max_displacement = {{9.0}}}).square().sum()}, {leaf}, {}, {}, true)[0];
         torch::autograd::grad({g.sum()}, {leaf});
       },
       "grid_sample: its second derivative is asked for"},
  };
  for (const auto& [call, text] : wrong) EXPECT_THAT(message_of(call), ::testing::StartsWith(text));
}

}  // namespace
}  // namespace moonhalo::testing::test_grid_sample_bounded
