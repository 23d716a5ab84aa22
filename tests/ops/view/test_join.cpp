// SPDX-License-Identifier: Apache-2.0
// cat, stack, repeat, roll, flip and padding over and off the cut dim: feature S26.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_join {
namespace {

using at::Tensor;

TEST(Join, S26_CatAndStackOfOneTensor) {
  check(
      {
          {"cat_0",
           [](const Tensor& x) {
             return List{cubed(at::cat({x, cubed(x)}, 0))};
           },
           kTwice},
          {"cat_1",
           [](const Tensor& x) {
             return List{cubed(at::cat({x, cubed(x), x * 2}, 1))};
           }},
          {"cat_last",
           [](const Tensor& x) {
             return List{cubed(at::cat({cubed(x), x}, -1))};
           }},
          {"cat_of_parts",
           [](const Tensor& x) {
             return List{cubed(at::cat(x.split(4, 0), 0)), at::cat(x.split(2, 1), 1)};
           },
           kTwice},
          {"cat_turned",
           [](const Tensor& x) {
             return List{cubed(at::cat({x.narrow(0, 5, 4), x.narrow(0, 0, 5)}, 0))};
           }},
          {"cat_of_sums",
           [](const Tensor& x) {
             return List{cubed(at::cat({x.sum(0, true), x.sum(0, true)}, 0))};
           }},
          {"cat_empty",
           [](const Tensor& x) {
             return List{cubed(at::cat({x, at::empty({0}, x.options().requires_grad(false))}, 0))};
           }},
          {"cat_plain",
           [](const Tensor& x) {
             return List{cubed(at::cat({at::ones({2, 7, 2}, at::kDouble), x, at::zeros({1, 7, 2}, at::kDouble)}, 0))};
           }},
          {"cat_dtypes",
           [](const Tensor& x) {
             return List{cubed(at::cat({x, x.to(at::kFloat)}, 0))};
           },
           {.tolerance = 1e-5}},
          {"stack_0",
           [](const Tensor& x) {
             return List{cubed(at::stack({x, cubed(x)}, 0))};
           },
           kTwice},
          {"stack_last",
           [](const Tensor& x) {
             return List{cubed(at::stack({x, x * 3}, -1))};
           }},
          {"hstack",
           [](const Tensor& x) {
             return List{cubed(at::hstack({x, x})), at::vstack({x, x}), at::dstack({x, x})};
           }},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(Join, S26_CatOfDifferentlyHeldTensors) {
  struct Held2 {
    const char* name;
    std::vector<int64_t> mesh;
    std::vector<Placement> a, b;
    bool plain = false;
  };
  const Held2 cases[] = {
      {"other_sizes", {2}, {shard(0, {5, 4})}, {shard(0, {1, 5})}},
      {"other_dim", {2}, {shard(0, {5, 4})}, {shard(1, {1, 4})}},
      {"replicated", {3}, {shard(0, {4, 0, 5})}, {replicate()}},
      {"plain", {3}, {shard(0, {1, 5, 3})}, {}, true},
      {"partial", {2}, {shard(0, {3, 6})}, {partial()}},
      {"partials", {2}, {partial()}, {partial()}},
      {"grids", {2, 2}, {shard(0, {5, 4}), shard(1)}, {shard(1), shard(0)}},
      {"twice_and_once", {2, 2}, {shard(0), shard(0)}, {replicate(), shard(0)}},
      {"partial_beside_a_cut", {2, 2}, {partial(), shard(1)}, {shard(0), replicate()}},
  };
  for (const Held2& c : cases) {
    for (const int64_t dim : {0, 1}) {
      SCOPED_TRACE(std::string(c.name) + " dim " + std::to_string(dim));
      const Tensor a = make_tensor({9, 5}, 1),
                   b = make_tensor(dim == 0 ? at::IntArrayRef{6, 5} : at::IntArrayRef{9, 6}, 2);
      std::vector<Placement> b_placements = c.b;
      if (dim == 1) {
        for (Placement& p : b_placements) p.sizes.clear();
      }
      expect_same_as_plain(
          c.mesh, {{a, c.a}, {.full = b, .placements = b_placements, .plain = c.plain}},
          [&](const List& x) {
            return List{cubed(at::cat({x[0], x[1], x[0] * 2}, dim))};
          },
          kTwice);
    }
  }
}

TEST(Join, S26_RepeatRollFlip) {
  check(
      {
          {"repeat",
           [](const Tensor& x) {
             return List{cubed(x.repeat({2, 1, 1})), cubed(cubed(x).repeat({1, 3, 2}))};
           },
           kTwice},
          {"repeat_more_dims",
           [](const Tensor& x) {
             return List{cubed(x.repeat({2, 3, 1, 2}))};
           }},
          // Its gradient is made by the formula as plain zeros.
          {"repeat_never",
           [](const Tensor& x) {
             return List{cubed(x.repeat({0, 1, 1}))};
           },
           {.same_cut_gradients = false}},
          {"tile",
           [](const Tensor& x) {
             return List{cubed(x.tile({2, 1})), x.tile({1, 1, 1, 1})};
           }},
          {"roll",
           [](const Tensor& x) {
             return List{cubed(x).roll(2, 0) * x, cubed(x).roll(-3, 1) * x};
           },
           kTwice},
          {"roll_dims",
           [](const Tensor& x) {
             return List{x.roll({11, 1, -1}, {0, 2, 0}) * x, x.roll(at::IntArrayRef{9}, at::IntArrayRef{0}) * x};
           }},
          {"roll_flat", [](const Tensor& x) { return List{x.roll(5) * x}; }},
          {"flip",
           [](const Tensor& x) {
             return List{x.flip({0}) * x, x.flip({1, -1}) * x, x.flip({0, 1, 2}) * x};
           },
           kTwice},
          {"flip_names",
           [](const Tensor& x) {
             return List{x.fliplr() * x, x.flipud() * x};
           }},
      },
      make_tensor({9, 7, 2}, 3));
}

TEST(Join, S26_ConstantPadding) {
  check(
      {
          {"zeros",
           [](const Tensor& x) {
             return List{cubed(at::constant_pad_nd(x, {0, 1, 2, 1, 1, 3}))};
           },
           kTwice},
          {"number",
           [](const Tensor& x) {
             return List{cubed(at::constant_pad_nd(x, {1, 0, 2, 0, 2, 0}, 1.5))};
           }},
          {"crop",
           [](const Tensor& x) {
             return List{cubed(at::constant_pad_nd(x, {0, 0, 1, -3, -6, 2}))};
           },
           kTwice},
          {"crop_all",
           [](const Tensor& x) {
             return List{cubed(at::constant_pad_nd(x, {0, 0, 0, 0, -9, 4}, 2.0))};
           }},
          {"pad",
           [](const Tensor& x) {
             return List{cubed(at::pad(x, {0, 0, 2, 2})), cubed(at::pad(x, {-1, 0}, "constant", 3.0))};
           }},
      },
      make_tensor({9, 7, 2}, 4));
}

TEST(Join, PaddingByTheFieldItself) {
  check(
      {
          {"reflect",
           [](const Tensor& x) {
             return List{cubed(at::reflection_pad1d(x, {1, 0})),
                         cubed(at::reflection_pad1d(x.permute({2, 1, 0}), {8, 3}))};
           },
           kTwice},
          {"reflect_2d",
           [](const Tensor& x) {
             return List{cubed(at::reflection_pad2d(x.permute({2, 0, 1}), {6, 1, 0, 8}))};
           },
           kTwice},
          {"reflect_3d",
           [](const Tensor& x) {
             return List{cubed(at::reflection_pad3d(x.unsqueeze(0), {1, 1, 2, 3, 4, 0}))};
           }},
          {"replicate",
           [](const Tensor& x) {
             return List{cubed(at::replication_pad1d(x, {0, 3})),
                         cubed(at::replication_pad1d(x.permute({2, 1, 0}), {11, 2}))};
           },
           kTwice},
          {"replicate_2d",
           [](const Tensor& x) {
             return List{cubed(at::replication_pad2d(x.permute({2, 0, 1}), {2, 0, -1, 4}))};
           }},
          {"replicate_3d",
           [](const Tensor& x) {
             return List{cubed(at::replication_pad3d(x.unsqueeze(0), {1, 1, 2, 3, 4, 12}))};
           },
           kTwice},
          {"cropped_to_nothing_along_one_dim",
           [](const Tensor& x) {
             const Tensor y = x.permute({2, 0, 1});
             // From 2.15 LibTorch refuses it.
             if (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15) return List{y};
             return List{cubed(at::reflection_pad2d(y, {0, 0, -4, -5})),
                         cubed(at::replication_pad2d(y, {-3, -4, 1, 0}))};
           }},
          {"by_name",
           [](const Tensor& x) {
             return List{cubed(at::pad(x.permute({2, 0, 1}), {1, 2, 3, 4}, "reflect")),
                         at::pad(x, {1, 1}, "replicate")};
           }},
      },
      make_tensor({9, 7, 2}, 5));
}

TEST(Join, PaddingThatTheFieldCannotFillIsRefused) {
  const std::string text = message_of([] {
    on_mesh({2}, [](const MeshPtr& mesh) {
      at::reflection_pad1d(shard_of(make_tensor({3, 9}, 5), mesh, {shard(1)}), {9, 0});
    });
  });
  EXPECT_NE(text.find("aten::reflection_pad1d: padding 9 reflects beyond the 9 rows of dim 1"), std::string::npos)
      << text;
  const std::string nothing = message_of([] {
    on_mesh({2}, [](const MeshPtr& mesh) {
      at::replication_pad2d(shard_of(make_tensor({3, 9, 2}, 5), mesh, {shard(1)}), {-1, -1, -4, -5});
    });
  });
  EXPECT_NE(nothing.find("aten::replication_pad2d: nothing is left of the 9 rows of dim 1"), std::string::npos)
      << nothing;
}

TEST(Join, GivenResultsAreWrittenBack) {
  const Tensor full = make_tensor({9, 4}, 7), more = make_tensor({18, 4}, 8);
  on_mesh(
      {2},
      [&](const MeshPtr& mesh) {
        const Tensor x = shard_of(full, mesh, {shard(0, {5, 4})});
        Tensor out = shard_of(more, mesh, {shard(0, {3, 15})}), plain = more.clone();
        at::cat_out(out, {x, x * 2}, 0);
        at::cat_out(plain, {x, x * 2}, 0);
        const Tensor expected = at::cat({full, full * 2}, 0);
        EXPECT_EQ(difference(full_tensor(out), expected, 1e-12), "");
        EXPECT_EQ(difference(plain, expected, 1e-12), "");
        EXPECT_EQ(spec(out)->placements()[0].to_string(), "Shard(0, {3, 15})");
      },
      Fallback::kReplicate);
}

TEST(Join, WhatCameFromOneCutMovesNothingBack) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({10, 4}, 5), mesh, {shard(0)});
    mesh->group().reset_stats();
    const Tensor y = at::cat(x.split(3, 0), 0);
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
    EXPECT_EQ(spec(y), spec(x));
    // A row goes round the end: 9 -> 0, and one over each inner border.
    x.roll(1, 0);
    EXPECT_EQ(mesh->group().stats().total().bytes, 4 * 8);
  });
}

TEST(Join, RefusesWhatOneDeviceRefuses) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({4, 4}, 5), mesh, {shard(0)});
    const std::string sizes = message_of([&] { at::cat({x, x.narrow(1, 0, 3)}, 0); });
    EXPECT_NE(sizes.find("Sizes of tensors must match except in dimension 0"), std::string::npos) << sizes;
    const std::string roll = message_of([&] { x.roll({1, 2}, {0}); });
    EXPECT_EQ(roll.rfind("roll: 2 shifts for 1 dims", 0), 0u) << roll;
    const std::string flip = message_of([&] { x.flip({0, -2}); });
    EXPECT_EQ(flip.rfind("aten::flip: dim 0 appears more than once", 0), 0u) << flip;
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_join
