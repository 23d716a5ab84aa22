// SPDX-License-Identifier: Apache-2.0
// Linear layers on cuts against the whole tensors: cuts of any dim, biases, gradients.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_linear {
namespace {

using Placements = std::vector<Placement>;
const Placement kUncut = replicate();

// Placements for the same tensor with all dims but the last merged.
Placements rows_of(Placements placements) {
  bool cut = false;
  for (Placement& placement : placements) {
    if (placement.is_shard()) placement = placement.dim == 3 ? shard(1, placement.sizes) : cut ? kUncut : shard(0);
    cut = cut || (placement.is_shard() && placement.dim == 0);
  }
  return placements;
}

TEST(Linear, KeepsTheCutOfAnyDim) {
  struct Case {
    std::vector<int64_t> mesh;
    Placements x, w;
    bool plain = false;
    Placements bias = {};
  };
  const Case cases[] = {
      {{2}, {shard(1, {3, 2})}, {kUncut}, false, {shard(0, {1, 2})}},
      {{2}, {shard(3, {4, 2})}, {shard(1)}, false, {shard(0, {0, 3})}},
      {{2}, {shard(0)}, {kUncut}, false, {partial()}},
      {{3}, {shard(3, {4, 0, 2})}, {shard(1)}, false, {kUncut}},
      {{2, 2}, {shard(0), shard(3)}, {kUncut, shard(1)}, false, {partial(), shard(0)}},
      {{2}, {shard(1, {3, 2})}, {kUncut}},
      {{2}, {shard(2, {1, 3})}, {kUncut}, true},
      {{2}, {shard(0)}, {kUncut}, true},
      {{2}, {shard(3, {4, 2})}, {kUncut}},
      {{2}, {shard(3, {4, 2})}, {shard(1)}},
      {{2}, {kUncut}, {shard(0, {1, 2})}},
      {{2}, {partial()}, {kUncut}},
      {{2}, {shard(1)}, {shard(0)}},
      {{3}, {shard(1, {4, 0, 1})}, {kUncut}, true},
      {{2, 2}, {shard(1), shard(2)}, {kUncut, kUncut}, true},
      {{2, 2}, {shard(1), kUncut}, {kUncut, shard(0)}},
  };
  for (const Case& c : cases) {
    for (const bool inner : {false, true}) {
      const auto program = [&](const Tensors& t) {
        return Tensors{inner ? at::matmul(t[0], t[1].t()) : at::linear(t[0], t[1], t[2])};
      };
      expect_same_as_plain(c.mesh,
                           {{.full = make_tensor({2, 5, 4, 6}, 1), .placements = c.x},
                            {.full = make_tensor({3, 6}, 2), .placements = c.w, .plain = c.plain},
                            {.full = make_tensor({3}, 3), .placements = c.bias, .plain = c.plain}},
                           program, {.double_backward = true});
      expect_same_as_plain(c.mesh,
                           {{.full = make_tensor({5, 6}, 1), .placements = rows_of(c.x)},
                            {.full = make_tensor({3, 6}, 2), .placements = c.w, .plain = c.plain},
                            {.full = make_tensor({3}, 3), .placements = c.bias, .plain = c.plain}},
                           program, {.double_backward = true});
    }
  }
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({2, 5, 4, 6}, 1), mesh, {shard(2, {1, 3})});
    mesh->group().reset_stats();
    const at::Tensor y = at::linear(x, make_tensor({3, 6}, 2), make_tensor({3}, 3));
    EXPECT_EQ(sharding_sizes(y).at(0), (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
    const c10::InferenceMode inference;
    EXPECT_EQ(
        sharding_sizes(at::linear(shard_of(make_tensor({2, 5, 6}, 1), mesh, {shard(1)}), make_tensor({3, 6}, 2))).at(0),
        (std::vector<int64_t>{3, 2}));
  });
}

TEST(Linear, AddsTheBiasAsOneDeviceDoes) {
  const at::Tensor w = make_tensor({17, 33}, 2), b = make_tensor({17}, 3) * 100;
  for (const at::Tensor& x : {make_tensor({40, 33}, 1), make_tensor({10, 6, 33}, 1)}) {
    for (const int ranks : {2, 3}) {
      on_mesh({ranks}, [&](const MeshPtr& mesh) {
        const at::Tensor weight = shard_of(w, mesh, {kUncut}).requires_grad_(),
                         bias = shard_of(b, mesh, {kUncut}).requires_grad_(), cut = shard_of(x, mesh, {shard(0)});
        mesh->group().reset_stats();
        at::linear(cut, weight, bias).square().sum().backward();
        EXPECT_EQ(mesh->group().stats().total().calls, 0);
        const at::Tensor y = at::linear(cut, weight, bias);
        EXPECT_TRUE(at::equal(to_local(y.detach()),
                              at::linear(to_local(cut), to_local(weight.detach()), to_local(bias.detach()))));
      });
    }
  }
}

TEST(Linear, WithoutGradientsAWeightIsPlainOnEveryRankOrOnNone) {
  const at::Tensor x = make_tensor({5, 6}, 1), w = make_tensor({3, 6}, 2), b = make_tensor({3}, 3);
  const Placements of_weights[] = {{kUncut}, {shard(0, {3, 0})}, {shard(0, {0, 3})}, {shard(1, {6, 0})}, {partial()}};
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::NoGradGuard no_grad;
    for (const Placements& held : of_weights) {
      for (const Placements& field : {Placements{shard(0, {4, 1})}, {kUncut}, {shard(1, {0, 6})}}) {
        const at::Tensor y = at::linear(shard_of(x, mesh, field), shard_of(w, mesh, held), b);

        EXPECT_EQ(difference(full_tensor(y), at::linear(x, w, b), 1e-12), "")
            << field[0].to_string() << " " << held[0].to_string();
      }
    }
  });
}

TEST(Linear, PlainTensorsTakeTheirOwnWay) {
  const at::Tensor x = make_tensor({2, 3, 4}, 1), w = make_tensor({5, 4}, 2).requires_grad_(), b = make_tensor({5}, 3);
  EXPECT_EQ(difference(at::linear(x, w, b), (x.unsqueeze(2) * w).sum(-1) + b, 1e-12), "");
  EXPECT_EQ(difference(at::matmul(x, w.t()), at::einsum("abc,dc->abd", {x, w}), 1e-12), "");
  EXPECT_EQ(at::matmul(x.select(0, 0).to_sparse(), w.t()).sizes(), (at::IntArrayRef{3, 5}));
}

TEST(Linear, RefusesShapesThatDoNotFit) {
  const auto message = [](auto call) {
    return message_of([&] {
      on_mesh({2}, [&](const MeshPtr& mesh) { call(shard_of(make_tensor({4, 3, 6}, 1), mesh, {shard(1)})); });
    });
  };
  EXPECT_THAT(message([](const at::Tensor& x) {
                return at::linear(x, make_tensor({3, 5}, 2));
              }),
              ::testing::HasSubstr("linear: the input has 6 features, the weight takes 5"));
  EXPECT_THAT(message([](const at::Tensor& x) {
                return at::matmul(x, make_tensor({5, 2}, 2));
              }),
              ::testing::HasSubstr("matmul: 6 columns are multiplied by 5 rows"));
  EXPECT_THAT(message([](const at::Tensor& x) {
                return at::matmul(x, make_tensor({3, 6, 2}, 2));
              }),
              ::testing::HasSubstr("matmul: batch dims of 4 and 3 do not broadcast"));
}

}  // namespace
}  // namespace moonhalo::testing::test_linear
