// SPDX-License-Identifier: Apache-2.0
// Losses with true global counts: feature S24 and the losses of S12.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_loss {
namespace {

using at::Tensor;

const int64_t kReductions[] = {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum};

TEST(Loss, ElementwiseLossesOfUnevenBlocks) {
  const Tensor target = make_tensor({9, 7, 2}, 2), share = target.abs();
  const std::pair<const char*, std::function<Tensor(const Tensor&, const Tensor&, int64_t)>> losses[] = {
      {"mse", [](const Tensor& x, const Tensor& y, int64_t r) { return at::mse_loss(x, y, r); }},
      {"l1", [](const Tensor& x, const Tensor& y, int64_t r) { return at::l1_loss(x, y, r); }},
      {"huber", [](const Tensor& x, const Tensor& y, int64_t r) { return at::huber_loss(x, y, r, 0.4); }},
      {"smooth_l1", [](const Tensor& x, const Tensor& y, int64_t r) { return at::smooth_l1_loss(x, y, r, 0.3); }},
      {"soft_margin", [](const Tensor& x, const Tensor& y, int64_t r) { return at::soft_margin_loss(x, y.sign(), r); }},
      {"bce", [](const Tensor& x, const Tensor& y,
                 int64_t r) { return at::binary_cross_entropy(x.sigmoid(), y.abs(), {}, r); }},
      {"bce_logits", [](const Tensor& x, const Tensor& y,
                        int64_t r) { return at::binary_cross_entropy_with_logits(x, y.abs(), {}, {}, r); }},
      {"kl", [](const Tensor& x, const Tensor& y, int64_t r) { return at::kl_div(x.log_softmax(1), y.abs(), r); }},
      {"kl_log", [](const Tensor& x, const Tensor& y, int64_t r) { return at::kl_div(x, y, r, true); }},
  };
  for (const auto& [name, loss] : losses) {
    for (const int64_t reduction : kReductions) {
      for (const size_t way : {0, 2, 3, 5, 9}) {
        const PlacementCase& held = kPlacements972[way];
        SCOPED_TRACE(std::string(name) + " " + held.name + " reduction " + std::to_string(reduction));
        const bool target_grad = std::string(name) == "mse" || std::string(name) == "l1";
        expect_same_as_plain(held.mesh,
                             {{make_tensor({9, 7, 2}, 1), held.placements}, {target, held.placements, target_grad}},
                             [&](const List& t) { return List{loss(t[0], t[1], reduction)}; });
      }
    }
  }
}

TEST(Loss, WeightsBroadcastPlainTargetsAndDoubleBackward) {
  const std::vector<Placement> cut{shard(0, {5, 4})};
  const Tensor x = make_tensor({9, 7}, 1), y = make_tensor({9, 7}, 2).abs();
  const Tensor w = make_tensor({7}, 3).abs();
  // The derivative of the loss with pos_weight writes into a tensor made of target and weight
  // alone.
  const Oracle gathers{.same_cut_gradients = false};
  const Input plain_y{y, {}, false, true}, plain_w{w, {}, false, true};
  for (const int64_t reduction : kReductions) {
    expect_same_as_plain(
        {2}, {{x, cut}, plain_y, plain_w},
        [&](const List& t) {
          return List{at::binary_cross_entropy(t[0].sigmoid(), t[1], t[2], reduction),
                      at::binary_cross_entropy_with_logits(t[0], t[1], t[2], {}, reduction)};
        },
        gathers);
    expect_same_as_plain({2}, {{x, cut}, {y, cut, false}, plain_w}, [&](const List& t) {
      return List{at::binary_cross_entropy_with_logits(t[0], t[1], t[2], t[2] + 1, reduction)};
    });
    expect_same_as_plain({2}, {{x, cut}, {y, {shard(1, {3, 4})}}},
                         [&](const List& t) { return List{at::mse_loss(t[0], t[1], reduction)}; },
                         {.double_backward = true, .same_cut_gradients = false});
    expect_same_as_plain({2}, {{x, cut}, {w, {}, true, true}}, [&](const List& t) {
      return List{at::mse_loss(t[0], t[1].expand({9, 7}), reduction)};
    });
  }
}

struct Points {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Placement> scores, target;
};

// Scores [3, 6, 5, 4]: batch, classes, height, width.
const Points kPoints[] = {
    {"batch", {2}, {shard(0, {1, 2})}, {shard(0, {1, 2})}},
    {"height", {2}, {shard(2, {2, 3})}, {shard(1, {2, 3})}},
    {"height_empty", {3}, {shard(2, {2, 0, 3})}, {shard(1, {2, 0, 3})}},
    {"width", {3}, {shard(3, {1, 2, 1})}, {shard(2, {1, 2, 1})}},
    {"classes", {2}, {shard(1, {2, 4})}, {replicate()}},
    {"classes_empty", {3}, {shard(1, {2, 0, 4})}, {shard(1)}},
    {"height_width", {2, 2}, {shard(2), shard(3)}, {shard(1), shard(2)}},
    {"batch_classes", {2, 2}, {shard(0), shard(1)}, {shard(0), replicate()}},
    {"target_elsewhere", {2}, {shard(2)}, {shard(0)}},
    {"partial", {2}, {partial()}, {shard(1)}},
};

TEST(Loss, S24_CrossEntropyOfCutFields) {
  Tensor target = make_tensor({3, 5, 4}, 2, at::kLong).abs().remainder(6);
  target.select(1, 2).fill_(-100);
  target.select(0, 1).select(0, 0).fill_(4);
  const Tensor weight = make_tensor({6}, 3).abs() + 0.1;
  for (const Points& points : kPoints) {
    for (const int64_t reduction : kReductions) {
      SCOPED_TRACE(std::string(points.name) + " reduction " + std::to_string(reduction));
      const Input scores{make_tensor({3, 6, 5, 4}, 1), points.scores};
      const Oracle options{.same_cut_gradients = std::string(points.name) != "target_elsewhere"};
      expect_same_as_plain(
          points.mesh, {scores, {target, points.target}},
          [&](const List& t) { return List{at::cross_entropy_loss(t[0], t[1], {}, reduction)}; }, options);
      expect_same_as_plain(
          points.mesh, {scores, {target, points.target}, {weight, {}, false, true}},
          [&](const List& t) {
            return List{at::cross_entropy_loss(t[0], t[1].clamp_min(0), t[2], reduction, 4),
                        at::nll_loss_nd(t[0], t[1], t[2], reduction)};
          },
          options);
    }
  }
}

TEST(Loss, CrossEntropyOfRowsAndVolumes) {
  const Tensor rows = make_tensor({9}, 2, at::kLong).abs().remainder(4);
  const Tensor share = make_tensor({9, 4}, 4).softmax(1);
  const Tensor volume = make_tensor({2, 5, 3, 2}, 5, at::kLong).abs().remainder(4);
  for (const int64_t reduction : kReductions) {
    for (const auto& [scores, target] : {std::pair{shard(0, {5, 4}), shard(0, {5, 4})},
                                         {shard(0, {9, 0}), replicate()},
                                         {shard(1, {1, 3}), replicate()}}) {
      expect_same_as_plain({2}, {{make_tensor({9, 4}, 1), {scores}}, {rows, {target}}}, [&](const List& t) {
        return List{at::cross_entropy_loss(t[0], t[1], {}, reduction),
                    at::cross_entropy_loss(t[0], t[1], {}, reduction, -100, 0.1)};
      });
      expect_same_as_plain({2}, {{make_tensor({9, 4}, 1), {scores}}, {share, {target}}},
                           [&](const List& t) { return List{at::cross_entropy_loss(t[0], t[1], {}, reduction)}; });
    }
    expect_same_as_plain({2}, {{make_tensor({2, 4, 5, 3, 2}, 1), {shard(2, {2, 3})}}, {volume, {shard(1, {2, 3})}}},
                         [&](const List& t) { return List{at::cross_entropy_loss(t[0], t[1], {}, reduction)}; });
  }
}

TEST(Loss, S24_CrossEntropyOfACutFieldMovesOnlyScalars) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const Tensor target = make_tensor({3, 50, 40}, 2, at::kLong).abs().remainder(6);
    const Tensor full = make_tensor({3, 6, 50, 40}, 1);
    Tensor scores = shard_of(full, mesh, {shard(2, {20, 30}), shard(3, {30, 10})}).requires_grad_();
    const Tensor classes = shard_of(target, mesh, {shard(1, {20, 30}), shard(2, {30, 10})});
    mesh->group().reset_stats();

    const Tensor loss = at::cross_entropy_loss(scores, classes);
    loss.backward();

    const CommStats& stats = mesh->group().stats();
    EXPECT_EQ(stats.total().calls, stats.by_kind[CommStats::kAllReduce].calls);
    EXPECT_LE(stats.total().calls, 2);
    EXPECT_LE(stats.total().bytes, 64);
    EXPECT_EQ(spec(scores.grad()), spec(scores));
    EXPECT_EQ(difference(full_tensor(loss.detach()), at::cross_entropy_loss(full, target), 1e-12), "");
  });
}

TEST(Loss, AWrongClassNumberEndsEveryRank) {
  const Tensor target = at::tensor({0, 1, 9, 2}, at::kLong);
  const auto message_with = [&](int64_t cut) {
    return message_of([&] {
      on_mesh({2}, [&](const MeshPtr& mesh) {
        at::nll_loss(shard_of(make_tensor({4, 3}, 1), mesh, {shard(cut)}), shard_of(target, mesh, {replicate()}));
      });
    });
  };

  EXPECT_NE(message_with(0).find("Target 9 is out of bounds"), std::string::npos);
  EXPECT_NE(message_with(1).find("a target is not a class number\n  have  target 9 and 3 classes"), std::string::npos);
}

}  // namespace
}  // namespace moonhalo::testing::test_loss
