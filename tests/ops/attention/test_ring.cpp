// SPDX-License-Identifier: Apache-2.0
// ops/attention/ring.cpp and ops/attention/rules.cpp: scaled_dot_product_attention over cut sequences against
// LibTorch's on whole ones.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <limits>

#include "moonhalo/ops/attention/attention.h"

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_ring {
namespace {

using Sizes = std::vector<int64_t>;
using Placements = std::vector<Placement>;

// Says how query, key and value of [2, 4, rows, 6] are held.
struct Way {
  std::string name;
  Sizes mesh;
  Placements query, keys;
};

// Nine queries, nine keys.
const std::vector<Way> kAlike = {
    {"5_4", {2}, {shard(2, {5, 4})}, {shard(2, {5, 4})}},
    {"3_6", {2}, {shard(2, {3, 6})}, {shard(2, {3, 6})}},
    {"1_8", {2}, {shard(2, {1, 8})}, {shard(2, {1, 8})}},
    {"empty_block", {3}, {shard(2, {4, 0, 5})}, {shard(2, {4, 0, 5})}},
    {"three", {3}, {shard(2, {2, 6, 1})}, {shard(2, {2, 6, 1})}},
    {"four", {4}, {shard(2)}, {shard(2)}},
    {"four_mostly_empty", {4}, {shard(2, {0, 7, 2, 0})}, {shard(2, {0, 7, 2, 0})}},
    {"cut_twice", {2, 2}, {shard(2, {5, 4}), shard(2)}, {shard(2, {5, 4}), shard(2)}},
    {"batch_beside", {2, 2}, {shard(0), shard(2, {3, 6})}, {shard(0), shard(2, {3, 6})}},
    {"heads_beside", {2, 2}, {shard(2, {8, 1}), shard(1, {2, 2})}, {shard(2, {8, 1}), shard(1, {2, 2})}},
    {"replicated_beside", {2, 2}, {replicate(), shard(2, {2, 7})}, {replicate(), shard(2, {2, 7})}},
};

const std::vector<Way> kUnlike = {
    {"other_blocks", {3}, {shard(2, {1, 6, 2})}, {shard(2, {5, 0, 4})}},
    {"keys_cut", {3}, {replicate()}, {shard(2, {4, 0, 5})}},
    {"queries_cut", {3}, {shard(2, {4, 0, 5})}, {replicate()}},
    {"queries_here_keys_there", {2, 2}, {shard(2, {3, 6}), replicate()}, {replicate(), shard(2, {5, 4})}},
    {"keys_cut_twice", {2, 2}, {shard(2, {3, 6}), replicate()}, {shard(2, {4, 5}), shard(2)}},
    {"queries_cut_twice", {2, 2}, {shard(2, {3, 6}), shard(2)}, {replicate(), shard(2, {2, 7})}},
    {"batch_and_keys", {2, 2}, {shard(0), replicate()}, {shard(0), shard(2, {8, 1})}},
    {"partial_queries", {2}, {partial()}, {shard(2, {3, 6})}},
    {"features_cut", {2}, {shard(3)}, {shard(2, {3, 6})}},
    {"batch_meets_keys", {2}, {shard(0)}, {shard(2, {3, 6})}},
};

struct Call {
  std::string name;
  int64_t queries = 9, keys = 9;
  bool causal = false;
  std::optional<double> scale = std::nullopt;
  int64_t value_dim = 6;
  std::optional<at::Tensor> mask = std::nullopt;
  Placements mask_placements = {};
  bool mask_grad = true;
};

void check(const Way& way, const Call& call, Oracle options = {}) {
  SCOPED_TRACE(way.name + " " + call.name);
  std::vector<Input> inputs = {{make_tensor({2, 4, call.queries, 6}, 40) * 2, way.query},
                               {make_tensor({2, 4, call.keys, 6}, 41) * 2, way.keys},
                               {make_tensor({2, 4, call.keys, call.value_dim}, 42), way.keys}};
  if (call.mask) inputs.push_back({*call.mask, call.mask_placements, call.mask_grad});
  expect_same_as_plain(
      way.mesh, inputs,
      [&](const Tensors& t) {
        const auto mask = call.mask ? std::optional(t[3]) : std::nullopt;
        return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, call.causal, call.scale)};
      },
      options);
}

// A loss of the last rows alone, as of a model that predicts what comes next: most rows of the output have no
// gradient. Queries that another rank works on are sent with their gradients, zero or not.
TEST(AttentionRing, X07_RowsWithoutAGradient) {
  for (const Way& way : kAlike) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(way.name + (causal ? " causal" : ""));
      const std::vector<Input> inputs = {{make_tensor({2, 4, 9, 6}, 40) * 2, way.query},
                                         {make_tensor({2, 4, 9, 6}, 41) * 2, way.keys},
                                         {make_tensor({2, 4, 9, 6}, 42), way.keys}};
      expect_same_as_plain(way.mesh, inputs, [&](const Tensors& t) {
        const at::Tensor y = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal);
        return Tensors{y.slice(2, 7).square().sum(), y.slice(2, 0, 1).sum()};
      });
    }
  }
}

TEST(AttentionRing, X07_CutSequencesEqualWholeOnes) {
  for (const auto* ways : {&kAlike, &kUnlike}) {
    for (const Way& way : *ways) {
      check(way, {.name = "plain"});
      check(way, {.name = "causal", .causal = true});
      check(way, {.name = "scale", .scale = -0.3});
      check(way, {.name = "wide values", .causal = true, .scale = 0.7, .value_dim = 11});
    }
  }
}

// LibTorch's fused kernel multiplies its diagonal of -inf by the scale, and gives NaN on plain tensors. By definition:
TEST(AttentionRing, X07_CausalWithAScaleBelowZero) {
  const Tensors full = {make_tensor({2, 4, 9, 6}, 1), make_tensor({2, 4, 9, 6}, 2), make_tensor({2, 4, 9, 6}, 3)};
  Tensors plain;
  for (const at::Tensor& t : full) plain.push_back(t.clone().requires_grad_());
  const at::Tensor later = at::ones({9, 9}, at::kBool).triu(1);
  const at::Tensor scores = plain[0].matmul(plain[1].transpose(-1, -2)) * -0.3;
  const at::Tensor expected = scores.masked_fill(later, -INFINITY).softmax(-1).matmul(plain[2]);
  const Tensors slopes = torch::autograd::grad({expected.sin().sum()}, plain);
  for (const Way& way : kAlike) {
    SCOPED_TRACE(way.name);
    on_mesh(way.mesh, [&](const MeshPtr& mesh) {
      Tensors cut;
      for (const at::Tensor& t : full) cut.push_back(shard_of(t, mesh, way.query).requires_grad_());
      const at::Tensor y = at::scaled_dot_product_attention(cut[0], cut[1], cut[2], {}, 0, true, -0.3);
      const Tensors found = torch::autograd::grad({y.sin().sum()}, cut);
      EXPECT_EQ(difference(full_tensor(y.detach()), expected.detach(), 1e-10), "");
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(difference(full_tensor(found[i]), slopes[i], 1e-10), "") << i;
    });
  }
}

// Other numbers of queries than of keys: top-left aligned, so the last queries see all keys, or the last keys are never
// seen.
TEST(AttentionRing, X07_QueriesAndKeysOfOtherLengths) {
  const std::vector<Way> ways = {
      {"ring", {2}, {shard(2, {3, 2})}, {shard(2, {10, 3})}},
      {"uneven", {3}, {shard(2, {1, 0, 4})}, {shard(2, {6, 6, 1})}},
      {"keys cut", {3}, {replicate()}, {shard(2, {6, 0, 7})}},
      {"queries cut", {3}, {shard(2, {1, 1, 3})}, {replicate()}},
      {"grid", {2, 2}, {shard(2), replicate()}, {shard(2), shard(2)}},
  };
  const auto turned = [](Way way) { return Way{way.name + " turned", way.mesh, way.keys, way.query}; };
  for (const Way& way : ways) {
    for (const bool causal : {false, true}) {
      check(way, {.name = causal ? "few queries, causal" : "few queries", .queries = 5, .keys = 13, .causal = causal});
      check(turned(way),
            {.name = causal ? "few keys, causal" : "few keys", .queries = 13, .keys = 5, .causal = causal});
    }
  }
  for (const bool causal : {false, true}) {
    check({"no keys", {2}, {shard(2)}, {}}, {.name = "", .keys = 0, .causal = causal});
    check({"no queries", {2}, {}, {shard(2)}}, {.name = "", .queries = 0, .causal = causal});
    check({"one query", {3}, {shard(2)}, {shard(2)}}, {.name = "", .queries = 1, .causal = causal});
  }
}

// Additive masks and their gradients, boolean ones, dims that broadcast, rows that see nothing.
TEST(AttentionRing, X07_Masks) {
  const auto coins = [](at::IntArrayRef shape) { return make_tensor(shape, 51).gt(-0.3); };
  at::Tensor blind = coins({9, 9});
  blind.select(0, 4).fill_(false);
  const at::Tensor never = at::zeros({9, 9}, at::kDouble).masked_fill(blind.logical_not(), -INFINITY);
  struct Mask {
    std::string name;
    at::Tensor mask;
    int64_t rows = -1;  // the dim of the queries, if there is one to cut
  };
  const std::vector<Mask> masks = {
      {"whole", make_tensor({2, 4, 9, 9}, 50), 2},
      {"two dims", make_tensor({9, 9}, 50), 0},
      {"of keys", make_tensor({2, 1, 1, 9}, 50)},
      {"of queries", make_tensor({1, 4, 9, 1}, 50), 2},
      {"one number", make_tensor({1, 1}, 50)},
      {"heads", make_tensor({4, 1, 9}, 50)},
      {"bool", coins({2, 1, 9, 9}), 2},
      {"bool of keys", coins({2, 1, 1, 9})},
      {"blind row", blind, 0},
      {"minus infinity", never, 0},
  };
  size_t turn = 0;
  for (const Mask& m : masks) {
    for (const auto* ways : {&kAlike, &kUnlike}) {
      for (const Way& way : *ways) {
        Placements placements(way.mesh.size(), replicate());
        // Replicated, cut along its queries, cut along its keys, in turn.
        const int64_t cuts = ++turn % 3;
        if (cuts == 1 && m.rows >= 0) placements.back() = shard(m.rows);
        if (cuts == 2) placements.back() = shard(-1);
        check(way, {.name = m.name + " held as " + placements.back().to_string(),
                    .mask = m.mask,
                    .mask_placements = placements,
                    .mask_grad = turn % 2 == 0});
      }
    }
  }
  // LibTorch takes a mask beside is_causal where its fused kernel does; from 2.15 it refuses it.
  if (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15) return;
  // Scores are shifted by the largest number of the keys that a row sees, not by one of later keys.
  const at::Tensor future = make_tensor({9, 9}, 50).masked_fill(at::ones({9, 9}, at::kBool).triu(1), 1e12);
  for (const auto* ways : {&kAlike, &kUnlike}) {
    for (const Way& way : *ways) {
      check(way, {.name = "causal and masked", .causal = true, .mask = make_tensor({9, 9}, 50), .mask_grad = false});
      check(way, {.name = "causal, masked by large numbers", .causal = true, .mask = future, .mask_grad = false});
    }
  }
}

// -1e9 + log(3) is -1e9 in float32: blocks of unequal size must know their weights all the same.
TEST(AttentionRing, X07_RowsMaskedByLargeNumbers) {
  const std::vector<Way> ways = {
      {"3_5", {2}, {shard(2, {3, 5})}, {shard(2, {3, 5})}},
      {"1_7", {2}, {shard(2, {1, 7})}, {shard(2, {1, 7})}},
      {"4_0_4", {3}, {shard(2, {4, 0, 4})}, {shard(2, {4, 0, 4})}},
      {"keys_cut", {3}, {replicate()}, {shard(2, {5, 0, 3})}},
      {"grid", {2, 2}, {shard(2, {3, 5}), replicate()}, {shard(2, {3, 5}), shard(2)}},
  };
  for (const auto type : {at::kFloat, at::kDouble}) {
    const double lowest =
        type == at::kFloat ? std::numeric_limits<float>::lowest() : std::numeric_limits<double>::lowest();
    for (const double number : {-1e4, -1e9, lowest, 1e4}) {
      at::Tensor mask = make_tensor({8, 8}, 60, type);
      mask.select(0, 3).fill_(number);
      mask.select(0, 6).narrow(0, 0, 7).fill_(number);
      for (const Way& way : ways) {
        for (const int64_t mask_cut : {-1, 0, 1}) {
          SCOPED_TRACE(way.name + " " + std::to_string(number) + " mask cut " + std::to_string(mask_cut));
          Placements held(way.mesh.size(), replicate());
          if (mask_cut >= 0) held.back() = shard(mask_cut);
          const std::vector<Input> inputs = {{make_tensor({1, 2, 8, 4}, 1, type), way.query},
                                             {make_tensor({1, 2, 8, 4}, 2, type), way.keys},
                                             {make_tensor({1, 2, 8, 4}, 3, type), way.keys},
                                             {mask, held}};
          // A mask with a gradient: LibTorch's fused kernel loses such rows backward.
          expect_same_as_plain(
              way.mesh, inputs,
              [](const Tensors& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], t[3])}; },
              {.tolerance = type == at::kFloat ? 1e-5 : 1e-10});
        }
      }
    }
  }
}

TEST(AttentionRing, X07_NoHeadsAndMasksOfOneNumber) {
  const Sizes shape = {0, 9, 4};
  const Placements cut = {shard(-2)};
  expect_same_as_plain({2}, {{make_tensor(shape, 1), cut}, {make_tensor(shape, 2), cut}, {make_tensor(shape, 3), cut}},
                       [](const Tensors& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2])}; });
  // LibTorch 2.11 divides by zero heads on one tensor.
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({2, 0, 9, 4}, 1), mesh, cut).requires_grad_();
    const at::Tensor y = at::scaled_dot_product_attention(x, x, x);
    y.sum().backward();
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
  check(kAlike.front(), {.name = "no dims", .mask = at::full({}, 0.3, at::kDouble)});
}

// The operator itself does not broadcast and repeat as scaled_dot_product_attention does.
TEST(AttentionRing, X07_RefusalsOfTheOperator) {
  using ::testing::StartsWith;
  on_mesh({2}, [](const MeshPtr& mesh) {
    // Inference mode passes autograd by, and what may be checked there.
    for (const auto& [inference, cut] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      SCOPED_TRACE(std::to_string(inference) + std::to_string(cut));
      const c10::InferenceMode guard(inference);
      const auto zeros = [&, cut = cut](const Sizes& shape, at::ScalarType type = at::kDouble) {
        const at::Tensor whole = at::zeros(shape, type);
        return cut ? shard_of(whole, mesh, {shard(-2)}) : whole;
      };
      const at::Tensor x = zeros({2, 4, 6, 8});
      const auto message = [&](const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask = {},
                               double dropout = 0) {
        return message_of([&] { attention(x, k, v, mask, dropout, false, {}, {}); });
      };
      EXPECT_THAT(message(zeros({2, 4, 6, 7}), x), StartsWith("attention: 8 features of queries"));
      for (const Sizes& shape : {Sizes{1, 4, 6, 8}, {2, 3, 6, 8}, {2, 0, 6, 8}, {4, 6, 8}})
        EXPECT_THAT(message(zeros(shape), zeros(shape)), StartsWith("attention: dims before the rows"));
      EXPECT_THAT(message(x, zeros({2, 2, 6, 8})), StartsWith("attention: dims before the rows"));
      EXPECT_THAT(message(x, zeros({2, 4, 6, 8}, at::kFloat)), StartsWith("attention: query is Double"));
      EXPECT_THAT(message(x, x, zeros({5, 6})), StartsWith("attention: a mask [5, 6]"));
      EXPECT_THAT(message(x, x, {}, 1.5), StartsWith("attention: the probability 1.5"));
      EXPECT_EQ(message(zeros({2, 2, 6, 8}), zeros({2, 2, 6, 8})), "");
    }
  });
}

TEST(AttentionRing, X07_GroupedQueries) {
  const std::vector<Way> ways = {
      {"ring", {3}, {shard(2, {4, 0, 5})}, {shard(2, {4, 0, 5})}},
      {"heads in groups", {2, 2}, {shard(2, {3, 6}), shard(1, {4, 2})}, {shard(2, {3, 6}), shard(1, {2, 1})}},
      {"heads alone", {2}, {shard(1, {4, 2})}, {shard(1, {2, 1})}},
      {"a group is cut", {2, 2}, {shard(2, {3, 6}), shard(1, {3, 3})}, {shard(2, {3, 6}), replicate()}},
      {"heads of keys", {2, 2}, {shard(2, {3, 6}), replicate()}, {shard(2, {3, 6}), shard(1, {1, 2})}},
      {"keys cut", {2}, {replicate()}, {shard(2, {3, 6})}},
  };
  for (const Way& way : ways) {
    for (const bool causal : {false, true}) {
      for (const bool masked : {false, true}) {
        if (causal && masked) continue;
        SCOPED_TRACE(way.name + (causal ? " causal" : "") + (masked ? " masked" : ""));
        const std::vector<Input> inputs = {{make_tensor({2, 6, 9, 4}, 1), way.query},
                                           {make_tensor({2, 3, 9, 4}, 2), way.keys},
                                           {make_tensor({2, 3, 9, 4}, 3), way.keys},
                                           {make_tensor({6, 9, 9}, 4), {}}};
        expect_same_as_plain(way.mesh, inputs, [&](const Tensors& t) {
          const auto mask = masked ? std::optional(t[3]) : std::nullopt;
          return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, causal, {}, true), t[3] * 1};
        });
      }
    }
  }
}

// One head of keys for all heads of queries, which may be cut anyhow.
TEST(AttentionRing, X07_OneHeadOfKeys) {
  const std::vector<Way> ways = {
      {"heads and ring", {2, 2}, {shard(1, {4, 2}), shard(2, {3, 6})}, {replicate(), shard(2, {3, 6})}},
      {"no heads", {2, 2}, {shard(1, {6, 0}), shard(2)}, {replicate(), shard(2)}},
      {"heads, keys cut", {2, 2}, {shard(1, {1, 5}), replicate()}, {replicate(), shard(2, {8, 1})}},
      {"heads alone", {3}, {shard(1, {3, 1, 2})}, {replicate()}},
      {"heads, queries cut", {2, 2}, {shard(2, {3, 6}), shard(1)}, {replicate(), replicate()}},
  };
  for (const Way& way : ways) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(way.name + (causal ? " causal" : ""));
      const std::vector<Input> inputs = {{make_tensor({2, 6, 9, 4}, 1), way.query},
                                         {make_tensor({2, 1, 9, 4}, 2), way.keys},
                                         {make_tensor({2, 1, 9, 4}, 3), way.keys}};
      expect_same_as_plain(way.mesh, inputs, [&](const Tensors& t) {
        const at::Tensor output = at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal, {}, true);
        if (is_shard_tensor(output)) EXPECT_EQ(spec(output)->cut(1), spec(t[0])->cut(1));
        return Tensors{output};
      });
    }
  }
}

// Two, three and five dims, and batches that broadcast.
TEST(AttentionRing, X07_OtherNumbersOfDims) {
  struct Case {
    std::string name;
    Sizes query, key, mask;
    int64_t dim;
  };
  const std::vector<Case> cases = {
      {"two", {9, 4}, {9, 4}, {}, 0},
      {"three", {3, 9, 4}, {3, 9, 4}, {9, 9}, 1},
      {"five", {2, 3, 2, 9, 4}, {2, 3, 2, 9, 4}, {}, 3},
      {"five, masked", {2, 3, 2, 9, 4}, {2, 3, 2, 9, 4}, {3, 1, 9, 9}, 3},
      {"one batch of keys", {2, 3, 9, 4}, {1, 3, 9, 4}, {}, 2},
      {"one head of queries", {2, 1, 9, 4}, {2, 3, 9, 4}, {}, 2},
  };
  for (const Case& c : cases) {
    for (const bool causal : {false, true}) {
      if (causal && !c.mask.empty()) continue;
      SCOPED_TRACE(c.name + (causal ? " causal" : ""));
      const Placements cut = {shard(c.dim, {4, 0, 5})};
      std::vector<Input> inputs = {
          {make_tensor(c.query, 1), cut}, {make_tensor(c.key, 2), cut}, {make_tensor(c.key, 3), cut}};
      if (!c.mask.empty()) inputs.push_back({make_tensor(c.mask, 4)});
      expect_same_as_plain({3}, inputs, [&](const Tensors& t) {
        const auto mask = c.mask.empty() ? std::nullopt : std::optional(t[3]);
        return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0, causal)};
      });
    }
  }
}

// Plain tensors count as replicated, and their gradients come back plain and whole.
TEST(AttentionRing, X07_PlainTensorsBesideCutOnes) {
  const at::Tensor q = make_tensor({2, 2, 9, 4}, 1), k = make_tensor({2, 2, 9, 4}, 2), v = make_tensor({2, 2, 9, 4}, 3);
  const Placements cut = {shard(2, {4, 0, 5})};
  const std::vector<std::vector<Input>> mixes = {
      {{q, cut}, {k, {}, true, true}, {v, {}, true, true}}, {{q, {}, true, true}, {k, cut}, {v, cut}},
      {{q, {}, true, true}, {k, cut}, {v, {}, true, true}}, {{q, cut}, {k, {shard(1)}}, {v, {shard(3)}}},
      {{q, {}, true, true}, {k, {partial()}}, {v, cut}},
  };
  for (size_t i = 0; i < mixes.size(); ++i) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(std::to_string(i) + (causal ? " causal" : ""));
      expect_same_as_plain({3}, mixes[i], [&](const Tensors& t) {
        return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal)};
      });
    }
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_ring
