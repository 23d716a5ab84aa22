// SPDX-License-Identifier: Apache-2.0
// Layer, group, batch, instance and RMS norm with the statistics of the whole tensor, however it is
// cut.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_norm {
namespace {

using at::Tensor;

// Ways to hold [4, 6, 7, 5]: batch, channels, height, width.
const std::vector<PlacementCase> kFields = {
    {"batch", {2}, {shard(0, {1, 3})}},
    {"batch_empty", {3}, {shard(0, {1, 0, 3})}},
    {"channels_inside_a_group", {2}, {shard(1, {2, 4})}},
    {"channels_of_whole_groups", {3}, {shard(1, {3, 3, 0})}},
    {"height", {3}, {shard(2, {1, 5, 1})}},
    {"height_empty", {3}, {shard(2, {3, 0, 4})}},
    {"width", {4}, {shard(3)}},
    {"batch_height", {2, 2}, {shard(0), shard(2, {2, 5})}},
    {"channels_width", {2, 2}, {shard(1, {1, 5}), shard(3, {4, 1})}},
    {"height_width", {2, 2}, {shard(2), shard(3)}},
    {"replicated_and_height", {2, 2}, {replicate(), shard(2)}},
    {"partial", {2}, {partial()}},
};

Tensor field(int64_t seed) { return make_tensor({4, 6, 7, 5}, seed) * 2 + 3; }
Tensor channels(int64_t seed) { return make_tensor({6}, seed) + 1.5; }

// Weights plain and as ShardTensors, replicated or cut as the channels are.
void check_affine(const std::vector<PlacementCase>& ways, const Tensor& full, const Tensor& weight, const Tensor& bias,
                  const Program& program, Oracle options = {}) {
  for (const PlacementCase& held : ways) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(held.mesh, {{full, held.placements}, {weight, {}, true, true}, {bias}}, program, options);
  }
}

TEST(Norm, LayerNormOverCutAndWholeDims) {
  for (const PlacementCase& held : kPlacements972) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {7, 2}, {9, 7, 2}}) {
      SCOPED_TRACE(std::string(held.name) + " " + std::to_string(shape.size()));
      const Tensor full = make_tensor({9, 7, 2}, 1) * 3 + 5, weight = make_tensor(shape, 2),
                   bias = make_tensor(shape, 3);
      expect_same_as_plain(held.mesh, {{full, held.placements}, {weight, {}, true, true}, {bias}}, [&](const List& t) {
        return List{at::layer_norm(t[0], shape, t[1], t[2], 1e-3), at::layer_norm(t[0], shape)};
      });
    }
  }
}

TEST(Norm, LayerNormSecondDerivativeAndCutWeights) {
  const Tensor full = make_tensor({9, 7, 2}, 1), weight = make_tensor({7, 2}, 2), bias = make_tensor({7, 2}, 3);
  for (const PlacementCase& held : {kPlacements972[0], kPlacements972[2], kPlacements972[5]}) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(held.mesh, {{full, held.placements}, {weight}, {bias}},
                         [&](const List& t) {
                           return List{at::layer_norm(t[0], {7, 2}, t[1], t[2])};
                         },
                         {.tolerance = 1e-10, .double_backward = true});
  }
  expect_same_as_plain({2}, {{full, {shard(1, {3, 4})}}, {weight, {shard(0, {3, 4})}}, {bias, {shard(0, {3, 4})}}},
                       [&](const List& t) {
                         return List{at::layer_norm(t[0], {7, 2}, t[1], t[2])};
                       });
}

// Without leading dims the bias gets dy itself as its gradient, in memory of its own: gradients accumulate in place.
TEST(Norm, LayerNormOfOneRowLeavesItsGradientAsItIs) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const std::vector<Placement> cut{shard(0, {5, 4})};
    const Tensor bias = shard_of(make_tensor({9}, 2), mesh, cut).requires_grad_(),
                 dy = shard_of(make_tensor({9}, 3), mesh, cut);
    const Tensor y = at::layer_norm(shard_of(make_tensor({9}, 1), mesh, cut), {9}, {}, bias);

    for (int i = 0; i < 3; ++i) y.backward(dy, /*retain_graph=*/true);

    EXPECT_EQ(difference(full_tensor(dy), make_tensor({9}, 3), 0), "");
    EXPECT_EQ(difference(full_tensor(bias.grad()), make_tensor({9}, 3) * 3, 1e-12), "");
  });
}

TEST(Norm, RmsNorm) {
  for (const PlacementCase& held : kPlacements972) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(held.mesh,
                         {{make_tensor({9, 7, 2}, 1), held.placements}, {make_tensor({7, 2}, 2), {}, true, true}},
                         [&](const List& t) {
                           return List{at::rms_norm(t[0], {7, 2}, t[1], 1e-5), at::rms_norm(t[0], {2})};
                         });
  }
}

TEST(Norm, GroupNormWithGroupsOverSeveralRanks) {
  for (const int64_t groups : {1, 2, 3, 6}) {
    SCOPED_TRACE(groups);
    check_affine(kFields, field(1), channels(2), channels(3), [&](const List& t) {
      return List{at::group_norm(t[0], groups, t[1], t[2], 1e-4), at::group_norm(t[0], groups)};
    });
  }
}

// float32 sums its squares in float64, for one message less: far from zero that must not show.
TEST(Norm, GroupNormOfFloatsFarFromZero) {
  const Tensor exact = field(1) + 1000, w = channels(2), b = channels(3);
  const Tensor full = exact.to(at::kFloat), given = full.to(at::kDouble).requires_grad_();
  const Tensor expected = at::group_norm(given, 2, w, b);
  expected.square().sum().backward();
  for (const PlacementCase& held : kFields) {
    if (std::any_of(held.placements.begin(), held.placements.end(), [](const Placement& p) { return p.is_partial(); }))
      continue;
    SCOPED_TRACE(held.name);
    on_mesh(held.mesh, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(full, mesh, held.placements).requires_grad_();
      const Tensor y = at::group_norm(x, 2, w.to(at::kFloat), b.to(at::kFloat));
      y.square().sum().backward();
      // The mean is rounded to float32, 1000 * 6e-8 of a standard deviation of 0.6.
      EXPECT_EQ(difference(full_tensor(y.detach()).to(at::kDouble), expected.detach(), 3e-4), "");
      EXPECT_EQ(difference(full_tensor(x.grad()).to(at::kDouble), given.grad(), 3e-3), "");
    });
  }
}

TEST(Norm, GroupNormKeepsNanInItsGroup) {
  Tensor full = field(1);
  full[1][2][6][3] = std::nan("");  // group 0 of sample 1
  for (const PlacementCase& held : {kFields[2], kFields[4], kFields[8]}) {
    on_mesh(held.mesh, [&](const MeshPtr& mesh) {
      std::vector<List> all;
      for (const bool cut : {false, true}) {
        const Tensor x = (cut ? shard_of(full, mesh, held.placements) : full.clone()).requires_grad_();
        const Tensor w = channels(2).requires_grad_(), b = channels(3).requires_grad_();
        const Tensor y = at::group_norm(x, 2, w, b, 1e-4);
        y.square().sum().backward();
        all.push_back({y, x.grad(), w.grad(), b.grad()});
      }
      for (size_t i = 0; i < all[0].size(); ++i) {
        const Tensor got = is_shard_tensor(all[1][i]) ? full_tensor(all[1][i]) : all[1][i].detach();
        EXPECT_TRUE(all[0][i].isfinite().any().item<bool>()) << i;
        EXPECT_TRUE(at::allclose(got, all[0][i], 1e-10, 1e-10, /*equal_nan=*/true)) << held.name << " " << i;
      }
    });
  }
}

TEST(Norm, BatchNormInTrainingUpdatesRunningStatisticsAlike) {
  const Input mean{channels(4), {}, false}, var{channels(5), {}, false, true};
  for (const PlacementCase& held : kFields) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(held.mesh,
                         {{field(1), held.placements}, {channels(2), {}, true, true}, {channels(3)}, mean, var},
                         [](const List& t) {
                           const Tensor y = at::batch_norm(t[0], t[1], t[2], t[3], t[4], true, 0.3, 1e-4, false);
                           return List{y, t[3], t[4]};
                         },
                         {.tolerance = 1e-10});
    expect_same_as_plain(
        held.mesh, {{field(1), held.placements}},
        [](const List& t) { return List{at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false)}; },
        {.tolerance = 1e-10});
  }
}

TEST(Norm, BatchNormInEvaluation) {
  const Input mean{channels(4), {}, false}, var{channels(5), {}, false, true};
  for (const PlacementCase& held : kFields) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(
        held.mesh, {{field(1), held.placements}, {channels(2), {}, true, true}, {channels(3)}, mean, var},
        [](const List& t) {
          return List{at::batch_norm(t[0], t[1], t[2], t[3], t[4], false, 0.3, 1e-4, false), t[3], t[4]};
        });
  }
}

// Gradients of weight and bias are sums over the ranks, resolved in place one by one.
TEST(Norm, BatchNormInEvaluationLeavesGradientsThatCanBeClamped) {
  const Tensor full = field(1), mean = channels(4), var = channels(5);
  const Tensor w = channels(2).requires_grad_(), b = channels(3).requires_grad_();
  at::batch_norm(full, w, b, mean, var, false, 0.3, 1e-4, false).square().sum().backward();
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const auto held = [&](const Tensor& t) { return shard_of(t.detach(), mesh, {replicate()}).requires_grad_(); };
    const Tensor x = shard_of(full, mesh, {shard(0, {1, 3})}), weight = held(w), bias = held(b);
    at::batch_norm(x, weight, bias, mean, var, false, 0.3, 1e-4, false).square().sum().backward();

    weight.mutable_grad().clamp_(-1, 1);
    bias.mutable_grad().clamp_(-5, 5);

    EXPECT_EQ(difference(full_tensor(weight.grad()), w.grad().clamp(-1, 1), 1e-10), "");
    EXPECT_EQ(difference(full_tensor(bias.grad()), b.grad().clamp(-5, 5), 1e-10), "");
  });
}

TEST(Norm, BatchNormOfCutChannelsWithCutStatistics) {
  const std::vector<Placement> cut{shard(0, {2, 4})};
  for (const bool training : {true, false}) {
    expect_same_as_plain(
        {2},
        {{field(1), {shard(1, {2, 4})}},
         {channels(2), cut},
         {channels(3), cut},
         {channels(4), cut, false},
         {channels(5), cut, false}},
        [&](const List& t) {
          return List{at::batch_norm(t[0], t[1], t[2], t[3], t[4], training, 0.3, 1e-4, false), t[3], t[4]};
        },
        {.tolerance = 1e-10});
  }
}

TEST(Norm, BatchNormSecondDerivativeAndRows) {
  for (const PlacementCase& held : {kFields[0], kFields[4], kFields[8]}) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(
        held.mesh, {{field(1), held.placements}, {channels(2)}, {channels(3)}},
        [](const List& t) { return List{at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false)}; },
        {.tolerance = 1e-10, .double_backward = true});
  }
  expect_same_as_plain(
      {3}, {{make_tensor({9, 6}, 1), {shard(0, {4, 0, 5})}}, {channels(2)}, {channels(3)}},
      [](const List& t) { return List{at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false)}; });
}

TEST(Norm, OtherOperatorsOfTheBatchNormFamily) {
  const Input mean{channels(4), {}, false}, var{channels(5), {}, false};
  for (const PlacementCase& held : {kFields[2], kFields[7]}) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(
        held.mesh, {{field(1), held.placements, false}, {channels(2), {}, false}, {channels(3), {}, false}, mean, var},
        [](const List& t) {
          auto [a, b, c] = at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.1, 1e-5);
          auto [d, e, f] = at::_native_batch_norm_legit_no_training(t[0], t[1], t[2], t[3], t[4], 0.1, 1e-5);
          Tensor running_mean = t[3], running_var = t[4];
          auto [g, h, i] = at::_native_batch_norm_legit(t[0], t[1], t[2], running_mean, running_var, true, 0.1, 1e-5);
          // Here the running statistics are results, and the arguments stay.
          auto [j, k, l, m, n] = at::_native_batch_norm_legit_functional(t[0], t[1], t[2], t[3], t[4], true, 0.1, 1e-5);
          auto [o, p, q, r, s] =
              at::_native_batch_norm_legit_functional(t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-5);
          return List{a, b, c, d, e, f, g, h, i, running_mean, running_var, j, k, l, m, n, o, p, q, r, s};
        });
  }
}

// A GPU calls these; the rules need no kernel of these, so they are tested against their CPU
// counterparts.
TEST(Norm, OperatorsOfAGpu) {
  const Tensor full = field(1), weight = channels(2), bias = channels(3), rows = make_tensor({9, 7, 2}, 4);
  for (const bool training : {true, false}) {
    on_mesh({2, 2}, [&](const MeshPtr& mesh) {
      std::vector<List> all;
      for (const bool cut : {false, true}) {
        Tensor x = (cut ? shard_of(full, mesh, {shard(1, {2, 4}), shard(2, {6, 1})}) : full.clone()).requires_grad_();
        Tensor w = weight.clone().requires_grad_(), b = bias.clone().requires_grad_();
        const Tensor mean = channels(5), var = channels(6);
        const Tensor y = cut ? std::get<0>(at::cudnn_batch_norm(x, w, b, mean, var, training, 0.2, 1e-4))
                             : at::batch_norm(x, w, b, mean, var, training, 0.2, 1e-4, false);
        if (training) (y * y * y).sum().backward();
        all.push_back({y, x.grad(), w.grad(), b.grad(), mean, var});
      }
      for (size_t i = 0; i < all[0].size(); ++i) {
        const Tensor got = all[1][i].defined() && is_shard_tensor(all[1][i]) ? full_tensor(all[1][i]) : all[1][i];
        EXPECT_EQ(difference(got, all[0][i], 1e-10), "") << i;
      }
    });
  }
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (const int64_t dim : {0, 1, 2}) {
      const Tensor w = make_tensor({7, 2}, 5);
      Tensor whole = rows.clone().requires_grad_(), x = shard_of(rows, mesh, {shard(dim)}).requires_grad_();
      at::rms_norm(whole, {7, 2}, w, 1e-4).square().sum().backward();
      const auto [y, rstd] = at::_fused_rms_norm(x.detach(), {7, 2}, w, 1e-4);
      const auto [dx, dw] = at::_fused_rms_norm_backward(2 * y, x.detach(), {7, 2}, rstd, w, {true, true});
      EXPECT_EQ(difference(full_tensor(y), at::rms_norm(rows, {7, 2}, w, 1e-4), 1e-12), "");
      EXPECT_EQ(difference(full_tensor(dx), whole.grad(), 1e-10), "");
      EXPECT_EQ(full_tensor(dw).sizes(), w.sizes());
    }
  });
}

TEST(Norm, InstanceNorm) {
  for (const PlacementCase& held : {kFields[0], kFields[4], kFields[5], kFields[6], kFields[7], kFields[9]}) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(
        held.mesh, {{field(1), held.placements}, {channels(2), {}, true, true}, {channels(3)}},
        [](const List& t) { return List{at::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false)}; });
  }
}

// Blocks of one sample whose memory is channels-last, though the global tensor is contiguous: their strides along the
// batch are those of a view that one device never makes.
TEST(Norm, InstanceNormOfOneSampleInOtherStrides) {
  for (const PlacementCase& held :
       {PlacementCase{"one_each", {2}, {shard(0)}}, PlacementCase{"one_and_none", {3}, {shard(0, {1, 0, 1})}}}) {
    SCOPED_TRACE(held.name);
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 3, 5, 4}, {2, 2, 3, 5, 4}}) {
      const Tensor weight = make_tensor({4}, 2) + 1.5, bias = make_tensor({4}, 3);
      expect_same_as_plain(held.mesh, {{make_tensor(shape, 1), held.placements}, {weight}, {bias}}, [](const List& t) {
        const Tensor x = t[0].movedim(-1, 1);
        return List{at::instance_norm(x, t[1], t[2], {}, {}, true, 0.1, 1e-3, false),
                    at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-3, false)};
      });
    }
  }
}

TEST(Norm, SinglePrecisionAndBfloat16) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 0.1}}) {
    for (const PlacementCase& held : {kFields[0], kFields[2], kFields[4], kFields[9]}) {
      SCOPED_TRACE(held.name);
      expect_same_as_plain(held.mesh,
                           {{field(1).to(dtype), held.placements},
                            {channels(2).to(at::kFloat), {}, true, true},
                            {channels(3).to(at::kFloat)}},
                           [](const List& t) {
                             return List{at::group_norm(t[0], 2, t[1], t[2]),
                                         at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false)};
                           },
                           {.tolerance = tolerance});
    }
  }
}

TEST(Norm, SpatialCutMovesOnlyStatistics) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Tensor x = shard_of(make_tensor({2, 8, 60, 50}, 1), mesh, {shard(2, {20, 40})}).requires_grad_();
    const Tensor weights = shard_of(make_tensor({2, 8, 60, 50}, 2), mesh, {shard(2, {20, 40})});
    mesh->group().reset_stats();

    const Tensor y = at::group_norm(x, 4);
    (y * weights).sum().backward();

    const CommStats& stats = mesh->group().stats();
    EXPECT_EQ(stats.by_kind[CommStats::kAllReduce].calls, 3);
    EXPECT_EQ(stats.total().bytes, stats.by_kind[CommStats::kAllReduce].bytes);
    EXPECT_LE(stats.total().bytes, 4 * 2 * 4 * 8);
    EXPECT_EQ(spec(x.grad()), spec(x));
  });
}

TEST(SweepLayersNorms, AndWeights) {
  const at::Tensor image = make_tensor({2, 4, 5, 6}, 11), logits = make_tensor({5, 4}, 3),
                   weight4 = make_tensor({4}, 7).abs() + 0.1;
  sweep({
      row("rms_norm_two", {image, make_tensor({5, 6}, 15)},
          [](X x, X w) {
            return at::rms_norm(x, {5, 6}, w, 1e-6);
          }),
      row("instance_running", {image},
          [](X x) {
            at::Tensor mean = at::zeros({4}, at::kDouble), var = at::ones({4}, at::kDouble);
            return List{at::instance_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false), mean, var};
          }),
      row("instance_eval", {image, weight4},
          [](X x, X w) { return at::instance_norm(x, {}, {}, w.detach(), w.detach() + 1, false, 0.1, 1e-5, false); }),
      row("batch_norm_rows", {logits, weight4},
          [](X x, X w) { return at::batch_norm(x, w, {}, {}, {}, true, 0.1, 1e-5, false); }),
      row("native_group_norm", {image, weight4, weight4 * 2},
          [](X x, X w, X c) { return std::get<0>(at::native_group_norm(x, w, c, 2, 4, 30, 2, 1e-5)); }),
      row("weight_norm", {make_tensor({3, 4, 3}, 16), make_tensor({3, 1, 1}, 17).abs() + 0.5},
          [](X v, X g) { return at::_weight_norm(v, g, 0); }),
      row("weight_norm_last", {make_tensor({4, 6}, 16), make_tensor({1, 6}, 17).abs() + 0.5},
          [](X v, X g) { return at::_weight_norm(v, g, 1); }),
      row("weight_norm_interface", {make_tensor({3, 4, 3}, 16), make_tensor({3, 1, 1}, 17).abs() + 0.5},
          [](X v, X g) { return at::_weight_norm_interface(v, g, 0); }),
      row("weight_norm_interface_last", {make_tensor({4, 6}, 16), make_tensor({1, 6}, 17).abs() + 0.5},
          [](X v, X g) { return at::_weight_norm_interface(v, g, 1); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_norm
