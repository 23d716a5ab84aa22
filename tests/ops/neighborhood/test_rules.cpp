// SPDX-License-Identifier: Apache-2.0
// ops/neighborhood/rules.cpp: cut tensors against whole ones, results and all gradients; which themselves
// equal dense masked attention (test_neighborhood_attention.cpp, and the first test here without that step between).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/support/dense_neighborhood.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_rules {
namespace {

using Sizes = std::vector<int64_t>;

struct Way {
  std::string name;
  Sizes mesh;
  std::vector<Placement> placements;
};

Program attend(const Neighborhood& n) {
  return [n](const Tensors& t) {
    const auto [output, logsumexp] = neighborhood_attention(t[0], t[1], t[2], n);
    return Tensors{output, logsumexp};
  };
}

// query, key and value of shape [2, dims..., 2, 3], held identically.
void check(const Way& way, const Sizes& dims, const Neighborhood& n, at::ScalarType type = at::kDouble) {
  SCOPED_TRACE(way.name);
  Sizes shape = {2};
  shape.insert(shape.end(), dims.begin(), dims.end());
  shape.insert(shape.end(), {2, 3});
  std::vector<Input> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back({make_tensor(shape, 60 + i, type) * 2, way.placements});
  expect_same_as_plain(way.mesh, inputs, attend(n), {.tolerance = type == at::kDouble ? 1e-10 : 1e-5});
}

const std::vector<Way> kNineRows = {
    {"5_4", {2}, {shard(1, {5, 4})}},
    {"3_6", {2}, {shard(1, {3, 6})}},
    {"1_8", {2}, {shard(1, {1, 8})}},
    {"empty_block", {3}, {shard(1, {4, 0, 5})}},
    {"empty_ends", {4}, {shard(1, {0, 2, 7, 0})}},
    {"thin", {4}, {shard(1, {1, 1, 6, 1})}},
    {"cut_twice", {2, 2}, {shard(1, {5, 4}), shard(1)}},
    {"replicate_and_cut", {2, 2}, {replicate(), shard(1, {2, 7})}},
};

TEST(NeighborhoodAttentionSharded, S06_X04_X05_EveryWindowOverEveryCut) {
  size_t turn = 0;
  for (int64_t window = 2; window <= 9; ++window) {
    for (int64_t dilation = 1; dilation <= 3 && window * dilation <= 9; ++dilation) {
      for (const int64_t stride : {int64_t{1}, int64_t{2}, window}) {
        for (const bool causal : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "window " << window << " dilation " << dilation << " stride " << stride
                                            << " causal " << causal);
          // Three ways to hold them each, all in turn.
          for (int i = 0; i < 3; ++i, ++turn) {
            check(kNineRows[turn % kNineRows.size()], {9}, {{window}, {stride}, {dilation}, {causal}});
          }
        }
      }
    }
  }
}

TEST(NeighborhoodAttentionSharded, S06_X05_BlocksThinnerThanTheWindow) {
  check({"2_2_2_2", {4}, {shard(1, {2, 2, 2, 2})}}, {8}, {{7}});
  check({"2_2_2_2 by 2", {2, 2}, {shard(1), shard(1)}}, {8, 3}, {{7, 2}});
  check({"1_8", {2}, {shard(1, {1, 8})}}, {9, 4}, {{5, 3}});
  check({"1_1_1_1", {4}, {shard(2, {1, 1, 1, 1})}}, {5, 4}, {{2, 4}});
  check({"dilated", {4}, {shard(1, {3, 2, 5, 2})}}, {12}, {{4}, {2}, {3}});
  check({"one row each of seven", {8}, {shard(1)}}, {7, 2}, {{5, 1}});
}

struct GridCase {
  Way way;
  Sizes dims;
  Neighborhood n;
};

TEST(NeighborhoodAttentionSharded, S06_X04_TwoAndThreeDims) {
  const std::vector<GridCase> cases = {
      {{"rows", {3}, {shard(1, {1, 5, 3})}}, {9, 7}, {{3, 4}}},
      {{"columns", {2}, {shard(2, {3, 4})}}, {9, 7}, {{5, 3}, {2, 1}}},
      {{"grid", {2, 2}, {shard(1, {3, 6}), shard(2, {3, 4})}}, {9, 7}, {{5, 4}}},
      {{"grid with corners of one", {2, 2}, {shard(1, {1, 8}), shard(2, {6, 1})}}, {9, 7}, {{6, 3}, {1, 3}, {1, 2}}},
      {{"grid, causal", {2, 2}, {shard(1), shard(2)}}, {9, 7}, {{3, 3}, {1, 2}, {2, 2}, {true, false}}},
      {{"grid with an empty row", {3, 2}, {shard(1, {4, 0, 5}), shard(2)}}, {9, 7}, {{4, 7}}},
      {{"batch and rows", {2, 2}, {shard(0), shard(1, {3, 6})}}, {9, 7}, {{3}}},
      {{"heads and rows", {2, 2}, {shard(3), shard(1, {8, 1})}}, {9, 7}, {{3}}},
      {{"replicate and columns", {2, 2}, {replicate(), shard(2)}}, {9, 7}, {{3}}},
      {{"partial and rows", {2, 2}, {partial(), shard(1)}}, {9, 7}, {{3}}},
      {{"features", {3}, {shard(4)}}, {9, 7}, {{3}}},
      {{"batch", {3}, {shard(0, {1, 0, 1})}}, {5, 6}, {{3}}},
      {{"planes", {2}, {shard(1, {1, 3})}}, {4, 5, 6}, {{3, 2, 5}}},
      {{"last dim", {4}, {shard(3, {1, 2, 0, 3})}}, {4, 5, 6}, {{3, 2, 5}, {1, 2, 3}}},
      {{"three dims", {2, 2, 2}, {shard(1), shard(2, {1, 4}), shard(3, {2, 4})}},
       {4, 5, 6},
       {{3, 4, 3}, {1}, {1, 1, 2}}},
      {{"two of three, causal", {2, 2}, {shard(3, {5, 1}), shard(1)}},
       {4, 5, 6},
       {{2, 3, 4}, {1}, {2, 1, 1}, {true, false, true}}},
  };
  for (const GridCase& c : cases) {
    check(c.way, c.dims, c.n);
    check(c.way, c.dims, c.n, at::kFloat);
  }
}

TEST(NeighborhoodAttentionSharded, X04_X05_SecondDerivatives) {
  const std::vector<GridCase> cases = {
      {{"rows", {3}, {shard(1, {1, 5, 3})}}, {9, 4}, {{3, 4}}},
      {{"thin", {4}, {shard(1, {1, 1, 6, 1})}}, {9}, {{7}, {2}}},
      {{"empty_block", {3}, {shard(1, {4, 0, 5})}}, {9}, {{4}, {1}, {2}, {true}}},
      {{"grid", {2, 2}, {shard(1, {3, 6}), shard(2, {3, 4})}}, {9, 7}, {{5, 4}, {2, 1}}},
      {{"replicate and columns", {2, 2}, {replicate(), shard(2)}}, {5, 7}, {{3}}},
      {{"batch and rows", {2, 2}, {shard(0), shard(1, {3, 6})}}, {9}, {{3}}},
      {{"heads", {2}, {shard(2)}}, {9}, {{3}}},
      {{"partial and rows", {2, 2}, {partial(), shard(1)}}, {9}, {{3}}},
      {{"three dims", {2, 2, 2}, {shard(1), shard(2, {1, 4}), shard(3, {2, 2})}},
       {4, 5, 4},
       {{3, 4, 2}, {1}, {1, 1, 2}}},
  };
  for (const GridCase& c : cases) {
    SCOPED_TRACE(c.way.name);
    Sizes shape = {2};
    shape.insert(shape.end(), c.dims.begin(), c.dims.end());
    shape.insert(shape.end(), {2, 3});
    std::vector<Input> inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back({make_tensor(shape, 60 + i) * 2, c.way.placements});
    expect_same_as_plain(c.way.mesh, inputs, attend(c.n), {.double_backward = true});
  }
}

// Straight against the definition, on an uneven cut.
TEST(NeighborhoodAttentionSharded, S06_X04_EqualsDenseMaskedAttention) {
  const Neighborhood n{{3, 4}, {2, 1}, {2, 1}, {false, true}};
  const at::Tensor q = make_tensor({1, 9, 7, 2, 3}, 1), k = make_tensor({1, 9, 7, 2, 3}, 2),
                   v = make_tensor({1, 9, 7, 2, 5}, 3);
  const auto [output, logsumexp] = dense_neighborhood_attention(q, k, v, n);
  on_mesh({3}, [&, output = output, logsumexp = logsumexp](const MeshPtr& mesh) {
    const auto rows = [&](const at::Tensor& t) { return shard_of(t, mesh, {shard(1, {1, 6, 2})}); };
    const auto [cut, sums] = neighborhood_attention(rows(q), rows(k), rows(v), n);
    EXPECT_EQ(difference(full_tensor(cut), output, 1e-10), "");
    EXPECT_EQ(difference(full_tensor(sums), logsumexp, 1e-10), "");
    EXPECT_EQ(spec(cut)->placements()[0].to_string(), "Shard(1, {1, 6, 2})");
  });
}

// Tensors that are held in different ways; the result is cut as the cheapest of them.
TEST(NeighborhoodAttentionSharded, X04_MixedPlacements) {
  const at::Tensor q = make_tensor({2, 9, 7, 2, 3}, 1), k = make_tensor({2, 9, 7, 2, 3}, 2),
                   v = make_tensor({2, 9, 7, 2, 4}, 3);
  const std::vector<Placement> rows = {shard(1, {3, 6})}, other = {shard(1, {5, 4})}, columns = {shard(2)},
                               whole = {replicate()};
  const std::vector<std::vector<Input>> mixes = {
      {{q, rows}, {k, other}, {v, columns}},     {{q, rows}, {k, whole}, {v, whole}},
      {{q, whole}, {k, rows}, {v, rows}},        {{q, {}, true, true}, {k, rows}, {v, {}, true, true}},
      {{q, {partial()}}, {k, rows}, {v, whole}},
  };
  for (const auto& inputs : mixes) expect_same_as_plain({2}, inputs, attend({{3}}));

  on_mesh({2}, [&](const MeshPtr& mesh) {
    const auto output = std::get<0>(
        neighborhood_attention(shard_of(q, mesh, whole), shard_of(k, mesh, rows), shard_of(v, mesh, rows), {{3}}));
    EXPECT_EQ(spec(output)->placements()[0].to_string(), "Shard(1, {3, 6})");
  });
}

// Keys and values are sent together, and no row that no window reaches.
TEST(NeighborhoodAttentionSharded, S06_KeysAndValuesInOneExchange) {
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 12, 4, 1, 2}, 1), mesh, {shard(1, {4, 4, 4})});
    auto& dispatch = Dispatch::of_this_thread();
    std::vector<TraceRecord> trace;
    const auto sent = [&] { return mesh->group().stats().by_kind[CommStats::kExchange]; };
    const auto before = sent();
    dispatch.trace = &trace;
    neighborhood_attention(x, x, x, {{5, 1}});
    dispatch.trace = nullptr;
    const auto after = sent();
    ASSERT_EQ(trace.size(), 1U);
    // An outer rank sends 2 rows of 4 keys and values of 2 numbers, the inner one to both sides, and reaches over no
    // more.
    const int64_t neighbours = mesh->rank() == 1 ? 2 : 1;
    EXPECT_EQ(trace[0].bytes, neighbours * 2 * 4 * (2 + 2) * 8);
    EXPECT_EQ(after.calls - before.calls, 1);
    EXPECT_EQ(after.messages - before.messages, neighbours);
  });
}

TEST(NeighborhoodAttentionSharded, X04_RefusedOnEveryRankAlike) {
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({2, 7, 4, 1, 2}, 1), mesh, {shard(1, {4, 2, 1})});
    const std::string message = message_of([&] { neighborhood_attention(x, x, x, {{9, 1}}); });
    EXPECT_THAT(message,
                ::testing::StartsWith("neighborhood_attention: window 9 along dim 1 is larger than the domain of 7"));
    EXPECT_THAT(message, ::testing::HasSubstr("blocks of dim 1: {4, 2, 1}"));
    const c10::InferenceMode inference;  // passes autograd by
    for (const at::Tensor& held :
         {make_tensor({2, 7, 4, 1, 2}, 1), shard_of(make_tensor({2, 7, 4, 1, 2}, 1), mesh, {shard(1)})})
      EXPECT_EQ(message_of([&] {
                  neighborhood_attention(held, held, held, {{9, 1}});
                }).substr(0, 76),
                message.substr(0, 76));
  });
}

// The derivatives' operators may be called with anything.
TEST(NeighborhoodAttentionSharded, X04_DerivativesRefuseWhatDoesNotFit) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::neighborhood_attention_backward", "");
  const auto second =
      c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::neighborhood_attention_double_backward", "");
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (const bool cut : {false, true}) {
      const auto field = [&](const Sizes& shape, at::ScalarType type = at::kDouble) {
        const at::Tensor whole = make_tensor(shape, 1, type);
        return cut ? shard_of(whole, mesh, {shard(1, {shape[1], 0})}) : whole;
      };
      const at::Tensor x = field({2, 7, 1, 3}), v = field({2, 7, 1, 4}), sums = field({2, 7, 1});
      const auto refused = [&](const std::string& text, const at::Tensor& grad, const c10::IValue& grad_sums,
                               const at::Tensor& out, const at::Tensor& logsumexp) {
        torch::jit::Stack stack{
            grad,         grad_sums, x, x, v, out, logsumexp, Sizes{3}, Sizes{1}, Sizes{1}, c10::List<bool>{false},
            c10::IValue()};
        EXPECT_THAT(message_of([&] { op.callBoxed(stack); }),
                    ::testing::StartsWith("neighborhood_attention_backward: " + text))
            << cut;
      };
      refused("grad_output has shape [2, 6, 1, 4] instead of [2, 7, 1, 4]", field({2, 6, 1, 4}), {}, v, sums);
      refused("grad_output is Float instead of Double", field({2, 7, 1, 4}, at::kFloat), {}, v, sums);
      refused("output has shape [2, 7, 1, 3] instead of [2, 7, 1, 4]", v, {}, x, sums);
      refused("logsumexp has shape [2, 7] instead of [2, 7, 1]", v, {}, v, field({2, 7}));
      refused("grad_logsumexp is Float instead of Double", v, field({2, 7, 1}, at::kFloat), v, sums);
      // The place of the tensor among the arguments of the second derivative, and what it is there instead.
      const std::tuple<size_t, at::Tensor, const char*> wrong[] = {
          {0, field({2, 6, 1, 3}), "cotangent_query has shape [2, 6, 1, 3] instead of [2, 7, 1, 3]"},
          {1, field({2, 7, 1, 3}, at::kFloat), "cotangent_key is Float instead of Double"},
          {2, x, "cotangent_value has shape [2, 7, 1, 3] instead of [2, 7, 1, 4]"},
          {3, field({2, 7, 1, 4}, at::kFloat), "grad_output is Float instead of Double"},
          {4, v, "grad_logsumexp has shape [2, 7, 1, 4] instead of [2, 7, 1]"},
      };
      for (const auto& [place, tensor, text] : wrong) {
        torch::jit::Stack stack{
            x, x, v, v, sums, x, x, v, Sizes{3}, Sizes{1}, Sizes{1}, c10::List<bool>{false}, c10::IValue()};
        stack[place] = tensor;
        EXPECT_THAT(message_of([&] { second.callBoxed(stack); }),
                    ::testing::StartsWith("neighborhood_attention_double_backward: " + std::string(text)))
            << cut;
      }
    }
  });
}

// A block needs, row by row, what the definition says.
TEST(NeighborhoodAttentionPlan, X05_KeysReachedAreTheWindowsEnds) {
  for (int64_t window = 1; window <= 5; ++window) {
    for (int64_t dilation = 1; dilation <= 3; ++dilation) {
      for (int64_t stride = 1; stride <= window; ++stride) {
        for (const bool causal : {false, true}) {
          const neighborhood::Axis axis{
              .extent = 17, .window = window, .stride = stride, .dilation = dilation, .causal = causal};
          const at::Tensor seen = seen_along(17, window, stride, dilation, causal);
          for (int64_t begin = 0; begin < 17; ++begin) {
            for (int64_t end = begin + 1; end <= 17; ++end) {
              const at::Tensor keys = seen.narrow(0, begin, end - begin).any(0).nonzero();
              const auto reached = keys_reached(axis, {begin, end});
              ASSERT_EQ(reached.begin, keys.min().item<int64_t>())
                  << window << dilation << stride << causal << begin << end;
              ASSERT_EQ(reached.end, keys.max().item<int64_t>() + 1)
                  << window << dilation << stride << causal << begin << end;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_rules
