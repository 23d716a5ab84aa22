// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention over cut sequences: dropout, second derivatives, modes, types, what is sent, how work
// is shared.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <ctime>
#include <mutex>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/model/recompute.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/ops/attention/block_kernel.h"
#include "moonhalo/ops/attention/specs.h"

#include "tests/support/dual_level.h"
#include "tests/support/live_bytes.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_attention_modes {
namespace {

using Sizes = std::vector<int64_t>;
using Placements = std::vector<Placement>;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Tensors three(at::IntArrayRef shape, at::ScalarType type = at::kDouble) {
  return {make_tensor(shape, 1, type) * 2, make_tensor(shape, 2, type) * 2, make_tensor(shape, 3, type)};
}

Tensors held(const Tensors& tensors, const MeshPtr& mesh, const Placements& placements) {
  Tensors result;
  for (const at::Tensor& t : tensors) result.push_back(shard_of(t, mesh, placements));
  return result;
}

// Whole output, gradients and second gradients with dropout, the same on every rank.
Tensors dropped(const Sizes& mesh, const Placements& query, const Placements& keys, bool causal, double p = 0.4) {
  std::mutex mutex;
  Tensors result;
  on_mesh(mesh, [&](const MeshPtr& made) {
    manual_seed(11);
    const Tensors full = three({2, 3, 9, 4});
    Tensors t = {shard_of(full[0], made, query), shard_of(full[1], made, keys), shard_of(full[2], made, keys)};
    for (at::Tensor& x : t) x.requires_grad_();
    const at::Tensor output = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, p, causal);
    const at::Tensor cotangent = shard_of(make_tensor(output.sizes(), 9), made, Placements(mesh.size(), replicate()));
    const auto first = torch::autograd::grad({output}, t, {cotangent}, /*retain_graph=*/true);
    const auto again = torch::autograd::grad({output}, t, {cotangent}, {}, /*create_graph=*/true);
    at::Tensor penalty;
    for (const at::Tensor& g : again) penalty = penalty.defined() ? penalty + g.sin().sum() : g.sin().sum();
    Tensors whole = {full_tensor(output.detach())};
    for (const at::Tensor& x : first) whole.push_back(full_tensor(x));
    for (const at::Tensor& x : torch::autograd::grad({penalty}, t)) whole.push_back(full_tensor(x));
    whole.push_back(at::rand({2}, at::kDouble));  // as many draws were made
    const std::lock_guard lock(mutex);
    result = std::move(whole);
  });
  return result;
}

TEST(AttentionModes, X07_DropoutIsTheSameForAnyCutAndAnyNumberOfRanks) {
  struct Way {
    Sizes mesh;
    Placements query, keys = query;
  };
  const std::vector<Way> ways = {
      {{2}, {shard(2, {3, 6})}},
      {{2}, {shard(2, {3, 6})}, {shard(2, {1, 8})}},  // keys of a block on both sides of the first query's
      {{3}, {shard(2, {4, 0, 5})}},
      {{4}, {shard(2)}},
      {{2, 2}, {shard(0), shard(2, {1, 8})}},
      {{2, 2}, {shard(1, {1, 2}), shard(2)}},
      {{2}, {shard(1, {1, 2})}},
  };
  at::Tensor undrawn;
  on_mesh({1}, [&](const MeshPtr&) {
    manual_seed(11);
    undrawn = at::rand({2}, at::kDouble);
  });
  for (const bool causal : {false, true}) {
    const Tensors one = dropped({1}, {replicate()}, {replicate()}, causal);
    for (const auto& [mesh, query, keys] : ways) {
      const Tensors many = dropped(mesh, query, keys, causal);
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_EQ(difference(many[i], one[i], 1e-10), "") << query.back().to_string() << i;
      // Nothing is kept: no draw is made, and no gradient is NaN.
      const Tensors nothing = dropped(mesh, query, keys, causal, 1);
      for (size_t i = 0; i + 1 < nothing.size(); ++i) EXPECT_EQ(nothing[i].count_nonzero().item<int64_t>(), 0) << i;
      EXPECT_TRUE(at::equal(nothing.back(), undrawn));
      EXPECT_FALSE(at::equal(many.back(), undrawn));
    }
  }
}

TEST(AttentionModes, X07_SecondDerivatives) {
  struct Case {
    const char* name;
    Sizes mesh;
    Placements query, keys;
    bool causal, groups;
  };
  const std::vector<Case> cases = {
      {"ring", {2}, {shard(2, {3, 6})}, {shard(2, {3, 6})}, false, false},
      {"causal", {3}, {shard(2, {4, 0, 5})}, {shard(2, {4, 0, 5})}, true, false},
      {"keys cut", {2}, {replicate()}, {shard(2, {3, 6})}, true, false},
      {"groups on a grid", {2, 2}, {shard(0), shard(2, {3, 6})}, {shard(0), shard(2, {3, 6})}, false, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Sizes keys = {2, c.groups ? 1 : 2, 9, 4};
    const std::vector<Input> inputs = {{make_tensor({2, 2, 9, 4}, 1), c.query},
                                       {make_tensor(keys, 2), c.keys},
                                       {make_tensor(keys, 3), c.keys},
                                       {make_tensor({9, 9}, 4)}};
    // A mask with a gradient sends plain tensors to LibTorch's composite, which can be differentiated twice.
    expect_same_as_plain(
        c.mesh, inputs,
        [&](const Tensors& t) {
          const at::Tensor unseen = at::ones({9, 9}, at::kBool).triu(1);
          const at::Tensor mask = c.causal ? t[3].masked_fill(unseen, -INFINITY) : t[3];
          return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, false, {}, c.groups)};
        },
        {.double_backward = true});
  }
}

// LibTorch's fused kernel cannot do this for plain tensors: the second derivative without a mask.
TEST(AttentionModes, X07_SecondDerivativesOfCausalAttention) {
  const Tensors plain = three({1, 2, 7, 3});
  const auto penalty = [](Tensors t, bool by_hand) {
    for (at::Tensor& x : t) x.requires_grad_();
    at::Tensor output;
    if (by_hand) {
      const at::Tensor scores = t[0].matmul(t[1].transpose(-1, -2)) / std::sqrt(3.0);
      output = scores.masked_fill(at::ones({7, 7}, at::kBool).triu(1), -INFINITY).softmax(-1).matmul(t[2]);
    } else {
      output = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, true);
    }
    const auto first = torch::autograd::grad({output.sin().sum()}, {t[0], t[1]}, {}, std::nullopt,
                                             /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {t[0], t[1], t[2]});
  };
  const auto expected = penalty(plain, true);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const auto actual = penalty(held(plain, mesh, {shard(2, {1, 4, 2})}), false);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(difference(full_tensor(actual[i]), expected[i], 1e-10), "") << i;
  });
}

TEST(AttentionModes, X07_InferenceModeNoGradAndTypes) {
  for (const auto& [type, tolerance] :
       {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}}) {
    const Tensors plain = three({2, 2, 9, 8}, type);
    for (const bool causal : {false, true}) {
      const at::Tensor expected =
          at::scaled_dot_product_attention(plain[0], plain[1], plain[2], {}, 0, causal).to(at::kDouble);
      on_mesh({3}, [&](const MeshPtr& mesh) {
        const Placements cut = {shard(2, {2, 3, 4})};
        Tensors t = held(plain, mesh, cut);
        const auto attend = [&] {
          const at::Tensor output = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal);
          EXPECT_EQ(output.scalar_type(), type);
          EXPECT_EQ(spec(output)->placements()[0].to_string(), "Shard(2, {2, 3, 4})");
          return full_tensor(output.detach()).to(at::kDouble);
        };
        EXPECT_EQ(difference(attend(), expected, tolerance), "");
        {
          const c10::InferenceMode inference;
          t = held(plain, mesh, cut);
          EXPECT_EQ(difference(attend(), expected, tolerance), "");
        }
        t = held(plain, mesh, cut);
        for (at::Tensor& x : t) x.requires_grad_();
        const at::NoGradGuard no_grad;
        EXPECT_EQ(difference(attend(), expected, tolerance), "");
        EXPECT_FALSE(at::scaled_dot_product_attention(t[0], t[1], t[2]).requires_grad());
      });
    }
  }
}

// Queries that are sent take sum(grad * output) of theirs along. All values are the same, so scores have no
// gradient, unless those sums were made in the type of the tensors: 3 (1 + epsilon) has no space there, and times
// 2^15 no float16 at all.
TEST(AttentionModes, X07_SumsOfGradientsAndOutputsInHalfTypes) {
  for (const auto& [type, epsilon] : {std::pair{at::kHalf, 0x1p-10}, {at::kBFloat16, 0x1p-7}}) {
    const at::Tensor q = make_tensor({1, 2, 9, 3}, 1, type), k = make_tensor({1, 2, 9, 3}, 2, type),
                     v = at::full({1, 2, 9, 3}, 0x1p7 * (1 + epsilon), type),
                     grad = at::full({1, 2, 9, 3}, 0x1p8, type);
    for (const bool causal : {false, true}) {
      const at::Tensor scores = q.to(at::kDouble).matmul(k.to(at::kDouble).transpose(-1, -2)) / std::sqrt(3.0);
      const at::Tensor unseen = at::ones({9, 9}, at::kBool).triu(1).logical_and(at::full({}, causal));
      const at::Tensor by_value =
          scores.masked_fill(unseen, -INFINITY).softmax(-1).transpose(-1, -2).matmul(grad.to(at::kDouble));
      for (const Placements& keys : {Placements{shard(2, {4, 5})}, {shard(2, {0, 9})}, {replicate()}}) {
        on_mesh({2}, [&](const MeshPtr& mesh) {
          const Placements rows = {shard(2, {4, 5})};
          Tensors t = {shard_of(q, mesh, rows), shard_of(k, mesh, keys), shard_of(v, mesh, keys)};
          for (at::Tensor& x : t) x.requires_grad_();
          const at::Tensor output = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal);
          const auto g = torch::autograd::grad({output}, t, {shard_of(grad, mesh, rows)});
          EXPECT_TRUE(at::equal(full_tensor(output.detach()), v)) << type;
          for (const int i : {0, 1})
            EXPECT_LT(full_tensor(g[i]).abs().max().item<double>(), 1e-3 * 0x1p15 * epsilon) << type << i;
          EXPECT_EQ(difference(full_tensor(g[2]).to(at::kDouble), by_value, 8 * epsilon), "") << type;
        });
      }
    }
  }
}

// Float tensors are cast for the call; gradients come back in float.
TEST(AttentionModes, X07_Autocast) {
  const Tensors plain = three({2, 2, 9, 8}, at::kFloat);
  const auto run = [](Tensors t) {
    for (at::Tensor& x : t) x = x.detach().requires_grad_();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor output = at::scaled_dot_product_attention(t[0], t[1], t[2]);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.to(at::kFloat).square().sum().backward();
    return Tensors{output.detach().to(at::kFloat), t[0].grad(), t[1].grad(), t[2].grad()};
  };
  const Tensors expected = run(plain);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Tensors actual = run(held(plain, mesh, {shard(2, {3, 6})}));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), at::kFloat);
      EXPECT_EQ(difference(full_tensor(actual[i]), expected[i], 4e-2), "") << i;
    }
  });
}

// A segment that is run again draws the same numbers again.
TEST(AttentionModes, X07_CheckpointsOfDropout) {
  const Tensors plain = three({1, 2, 9, 4});
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const auto run = [&](bool again) {
      manual_seed(5);
      Tensors t = held(plain, mesh, {shard(2, {2, 6, 1})});
      for (at::Tensor& x : t) x.requires_grad_();
      const auto segment = [](const Tensors& in) {
        return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.5, true)};
      };
      const at::Tensor output = (again ? checkpoint(segment, t) : segment(t))[0];
      output.square().sum().backward();
      Tensors whole = {full_tensor(output.detach())};
      for (const at::Tensor& x : t) whole.push_back(full_tensor(x.grad()));
      return whole;
    };
    const Tensors kept = run(false), recomputed = run(true);
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(difference(recomputed[i], kept[i], 1e-14), "") << i;
  });
}

TEST(AttentionModes, X07_ForwardMode) {
  const Tensors plain = three({1, 2, 9, 4});
  const at::Tensor tangent = make_tensor({1, 2, 9, 4}, 5);
  const DualLevel dual_level;
  const int64_t level = dual_level.index();
  const auto derivative = [&](const Tensors& t, const at::Tensor& along, bool masked, bool causal) {
    const at::Tensor dual = at::_make_dual(t[1], along, level);
    // A mask with a gradient keeps the plain call off the fused kernel, which has no such derivative.
    at::Tensor mask = at::zeros({9, 9}, at::kDouble);
    if (causal) mask.masked_fill_(at::ones({9, 9}, at::kBool).triu(1), -INFINITY);
    const at::Tensor y = at::scaled_dot_product_attention(
        t[0], dual, t[2], masked ? std::optional(mask.requires_grad_()) : std::nullopt, 0, causal && !masked);
    return std::get<1>(at::_unpack_dual(y, level)).detach();
  };
  for (const bool causal : {false, true}) {
    const at::Tensor expected = derivative(plain, tangent, true, causal);
    for (const bool masked : {false, true}) {
      on_mesh({2}, [&](const MeshPtr& mesh) {
        const Placements cut = {shard(2, {3, 6})};
        const at::Tensor actual = derivative(held(plain, mesh, cut), shard_of(tangent, mesh, cut), masked, causal);
        EXPECT_EQ(difference(full_tensor(actual), expected, 1e-10), "") << causal << masked;
      });
    }
  }
}

// Elements that all ranks send, forward and backward: what must be sent, and no more. Gathered, keys and values
// would be (ranks - 1) * rows * 48, both ways again backward.
TEST(AttentionModes, X07_WhatTravels) {
  struct Case {
    const char* name;
    Sizes mesh;
    Placements query, keys;
    int64_t queries, keys_count;
    bool causal;
    int64_t forward, backward;
  };
  // Batch 2, heads 3, features 4: a row has 24 elements, a row of logsumexp 6. Backward a sent row comes with its
  // results' gradient and two sums, and comes back as one: 84; a row of keys and values is sent twice.
  const std::vector<Case> cases = {
      {"ring", {2}, {shard(2)}, {shard(2)}, 8, 8, false, 8 * 48, 8 * 84},
      {"keys are many: queries are sent", {2}, {shard(2)}, {shard(2)}, 4, 40, false, 4 * 54, 4 * 84},
      {"few queries, many keys", {2}, {shard(2, {5, 1})}, {shard(2, {100, 200})}, 6, 300, false, 6 * 54, 6 * 84},
      {"many queries, few keys", {2}, {shard(2, {100, 200})}, {shard(2, {5, 1})}, 300, 6, false, 6 * 48, 6 * 96},
      {"each as few", {2}, {shard(2, {1, 20})}, {shard(2, {3, 4})}, 21, 7, false, 54 + 3 * 48, 84 + 3 * 96},
      {"queries cut, keys everywhere", {2}, {shard(2)}, {replicate()}, 8, 8, false, 0, 0},
      {"causal: two rows shared, keys for two",
       {2},
       {shard(2)},
       {shard(2)},
       8,
       8,
       true,
       2 * 54 + 4 * 48,
       2 * 84 + 4 * 96},
      {"causal: keys of the future stay",
       {2},
       {shard(2, {4, 0})},
       {shard(2, {0, 8})},
       4,
       8,
       true,
       2 * 54 + 4 * 48,
       3 * 84 + 4 * 96},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      const at::Tensor q = shard_of(make_tensor({2, 3, c.queries, 4}, 1), mesh, c.query).requires_grad_();
      const at::Tensor k = shard_of(make_tensor({2, 3, c.keys_count, 4}, 2), mesh, c.keys).requires_grad_();
      const at::Tensor v = shard_of(make_tensor({2, 3, c.keys_count, 4}, 3), mesh, c.keys).requires_grad_();
      const auto sent_by_all = [&](const std::function<void()>& what) {
        const int64_t before = bytes_sent_by_this_thread();
        what();
        at::Tensor elements = at::full({1}, (bytes_sent_by_this_thread() - before) / 8, at::kLong);
        mesh->group().all_reduce(elements);
        return elements.item<int64_t>();
      };
      at::Tensor output;
      EXPECT_EQ(sent_by_all([&] { output = at::scaled_dot_product_attention(q, k, v, {}, 0, c.causal); }), c.forward);
      const at::Tensor cotangent = output.detach();
      EXPECT_EQ(sent_by_all([&] { torch::autograd::grad({output}, {q, k, v}, {cotangent}); }), c.backward);
    });
  }
}

// Queries do not are sent where there is a mask: with few of them they are gathered, and their results are added up,
// instead of many keys that go round.
TEST(AttentionModes, X07_AMaskKeepsManyKeysWhereTheyAre) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensors t = held({make_tensor({1, 2, 4, 4}, 1), make_tensor({1, 2, 400, 4}, 2)}, mesh, {shard(2)});
    const at::Tensor mask = shard_of(make_tensor({4, 400}, 3), mesh, {replicate()});
    const int64_t before = bytes_sent_by_this_thread();
    at::scaled_dot_product_attention(t[0], t[1], t[1], mask);
    EXPECT_EQ(bytes_sent_by_this_thread() - before, 8 * (2 * 2 * 4 + 2 * 4 + 4));  // queries, sums, the mask's largest
  });
}

// Keys that are cut, queries that are not: results are sent, not keys.
TEST(AttentionModes, X07_QueriesEverywhereMoveResultsOnly) {
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor q = shard_of(make_tensor({1, 2, 3, 4}, 1), mesh, {replicate()});
    const at::Tensor k = shard_of(make_tensor({1, 2, 400, 4}, 2), mesh, {shard(2)});
    const int64_t before = bytes_sent_by_this_thread();
    const at::Tensor output = at::scaled_dot_product_attention(q, k, k);
    EXPECT_EQ(spec(output)->placements()[0].to_string(), "Partial(sum)");
    EXPECT_EQ(bytes_sent_by_this_thread() - before, 8 * 2 * 3);  // logsumexp
  });
}

// Twice the sequence, twice the memory of a rank; and never the scores, or the whole of the keys.
TEST(AttentionModes, X07_MemoryIsLinearInTheSequence) {
  const auto peak = [](int64_t rows, bool causal) {
    int64_t most = 0;
    on_mesh({2}, [&](const MeshPtr& mesh) {
      Tensors t = held(three({1, 1, rows, 8}), mesh, {shard(2)});
      for (at::Tensor& x : t) x.requires_grad_();
      const auto live = std::make_shared<LiveBytes>();
      {
        const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
        const at::Tensor output = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal);
        torch::autograd::grad({output}, {t[0], t[1], t[2]}, {output.detach()});
      }
      at::Tensor all = at::full({1}, live->peak, at::kLong);
      mesh->group().all_reduce(all, ReduceOp::kMax);
      most = mesh->rank() == 0 ? all.item<int64_t>() : most;
    });
    return static_cast<double>(most);
  };
  for (const bool causal : {false, true}) {
    // Buffers of the kernel itself stop growing at 768 rows of a block.
    const double some = peak(2048, causal), more = peak(4096, causal);
    EXPECT_LT(more, 2.2 * some) << (causal ? "causal" : "all");
    EXPECT_LT(more, 8.0 * 4096 * 4096 / 2) << "scores of a rank's queries";
  }
}

// Causal work: the rank with the most against the mean, or against what its own queries and keys alone make.
TEST(AttentionWorkTest, X07_CausalWorkIsBalanced) {
  const std::vector<Sizes> cases = {{512, 512},          {256, 256, 256, 256}, {100, 100, 100},
                                    {300, 100, 100, 12}, {100, 0, 300},        {64, 64, 64, 64, 64, 64, 64, 64},
                                    {100, 300, 200}};
  for (const Sizes& sizes : cases) {
    std::vector<Interval> blocks;
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      blocks.push_back({begin, begin + size});
      begin += size;
    }
    const AttentionWork work(blocks, blocks, true, true, {1, 2, 1});
    double most = 0, sum = 0;
    for (int64_t i = 0; i < work.size(); ++i) {
      most = std::max(most, work.load(i));
      sum += work.load(i);
    }
    const auto n = static_cast<double>(begin);
    EXPECT_EQ(sum, n * (n + 1) / 2);
    const auto largest = static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
    EXPECT_LE(most, 1.05 * std::max(sum / static_cast<double>(work.size()), largest * (largest + 1) / 2))
        << shape_string(sizes);
  }
}

// Where queries end that are sent, by all pairs of ranks, as one number: that of a search which added all loads again
// after each move, of all pairs of ranks, each time. `tries`: the pairs that are tried at most.
TEST(AttentionWorkTest, X07_RingsOfManyRanksAreBalancedInFewTries) {
  struct Ring {
    int64_t ranks, rows;
    bool uneven;
    uint64_t splits;
    int64_t tries;
  };
  const Ring rings[] = {{8, 64, false, 0x92f90b42c9bba5c3, 226},       {64, 64, false, 0x8328f0b037b1a283, 62288},
                        {8, 64, true, 0x14c036afb46261c, 459},         {32, 64, true, 0xd51eebb2c92c7186, 14936},
                        {128, 4, true, 0x5a05b0e03cf66ead, 804593},    {256, 64, false, 0xcf889f6100bbff83, 3568832},
                        {512, 64, false, 0xf6ce7b526beefcc3, 27864965}};
  for (const auto& [ranks, rows, uneven, splits, tries] : rings) {
    std::vector<Interval> blocks;
    for (int64_t i = 0, begin = 0; i < ranks; ++i) {
      const int64_t some = i % 3 == 2 ? 0 : 1 + (i * 7) % (2 * rows), size = uneven ? some : rows;
      blocks.push_back({begin, begin + size});
      begin += size;
    }

    const AttentionWork work(blocks, blocks, true, true, {1, 2, 1});

    uint64_t hash = 1469598103934665603U;
    for (int64_t i = 0; i < ranks; ++i) {
      for (int64_t j = 0; j < ranks; ++j)
        hash = (hash ^ static_cast<uint64_t>(work.local_queries(i, j).begin)) * 1099511628211U;
    }
    EXPECT_EQ(hash, splits) << ranks << " ranks";
    EXPECT_LE(work.pairs_tried(), tries) << ranks << " ranks";
  }
}

// Work that is even within a twentieth is left where it is: what is sent would cost more.
TEST(AttentionWorkTest, X07_NothingIsSentForALittleLessWork) {
  const std::vector<Interval> blocks = {{0, 700}, {700, 1000}};  // 245350 and 255150 scores
  const AttentionWork work(blocks, blocks, true, true, {1e9, 1, 1e9});
  for (const auto& [from, to] : {std::pair{0, 1}, {1, 0}}) EXPECT_TRUE(work.sent_queries(from, to).empty()) << from;
  EXPECT_EQ(work.load(1), 300 * 700 + 300 * 301 / 2);
}

// A mask that is not computed moves no scores, so that a dry run takes the kernel that masks usually take.
TEST(AttentionModes, X14_MasksOfDryRunsTakeTheUsualKernel) {
  EXPECT_FALSE(attention_shift(make_fake({1, 1, 8192, 1}, at::kFloat)).defined());
}

TEST(AttentionModes, X07_Refusals) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const auto cut = [&](at::IntArrayRef shape, at::ScalarType type = at::kDouble) {
      return shard_of(make_tensor(shape, 1, type), mesh, {shard(2)});
    };
    const at::Tensor x = cut({1, 4, 6, 8});
    const auto message = [&](const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask = {},
                             bool groups = false) {
      return message_of([&] { at::scaled_dot_product_attention(x, k, v, mask, 0, false, {}, groups); });
    };
    EXPECT_THAT(message(cut({1, 4, 6, 7}), x),
                StartsWith("scaled_dot_product_attention: 8 features of queries are multiplied by 7 of keys"));
    EXPECT_THAT(message(x, cut({1, 4, 5, 8})), HasSubstr("6 keys are multiplied by 5 values"));
    EXPECT_THAT(message(cut({1, 4, 6, 8}, at::kFloat), x),
                StartsWith("scaled_dot_product_attention: query is Double, key Float"));
    EXPECT_THAT(message(cut({1, 3, 6, 8}), cut({1, 3, 6, 8}), {}, true), HasSubstr("do not divide those of queries"));
    EXPECT_THAT(message(x, x, at::ones({5, 6}, at::kDouble)),
                StartsWith("scaled_dot_product_attention: a mask [5, 6]"));
    EXPECT_THAT(message(x, x, at::ones({6, 6}, at::kLong)), HasSubstr("the mask is Long"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_attention_modes
