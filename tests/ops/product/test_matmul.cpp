// SPDX-License-Identifier: Apache-2.0
// Products on cuts against the whole tensors: placements of both operands, cut contractions, merged
// dims.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_matmul {
namespace {

using at::Tensor;
using Placements = std::vector<Placement>;
const Placement kUncut = replicate();

Program of(at::Tensor (*op)(const at::Tensor&, const at::Tensor&)) {
  return [op](const Tensors& t) { return Tensors{op(t[0], t[1])}; };
}

// Every placement of one operand against every placement of the other.
TEST(Matmul, TableOfPlacements) {
  struct Pair {
    const char* name;
    std::vector<int64_t> left, right;
    Program program;
  };
  const Pair pairs[] = {
      {"mm", {9, 7}, {7, 5}, of(at::mm)},
      {"bmm", {4, 9, 7}, {4, 7, 5}, of(at::bmm)},
      {"mv", {9, 7}, {7}, of(at::mv)},
      {"dot", {9}, {9}, of(at::dot)},
      {"matmul 3x2", {2, 9, 7}, {7, 5}, of(at::matmul)},
      {"matmul 2x3", {9, 7}, {4, 7, 5}, of(at::matmul)},
      {"matmul 4x4 broadcast", {2, 1, 5, 7}, {4, 7, 3}, of(at::matmul)},
      {"matmul 4x3 ones", {1, 3, 5, 7}, {3, 7, 4}, of(at::matmul)},
      {"matmul 1x3", {7}, {3, 7, 4}, of(at::matmul)},
      {"matmul 4x1", {2, 3, 5, 7}, {7}, of(at::matmul)},
  };
  for (const Pair& pair : pairs) {
    const auto placements = [](const std::vector<int64_t>& shape, bool second) {
      Placements all = {kUncut, partial()};
      for (size_t d = 0; d < shape.size(); ++d) {
        if (shape[d] == 1) continue;
        const int64_t part = second ? 1 : (shape[d] + 1) / 2;
        all.push_back(shard(static_cast<int64_t>(d), {part, shape[d] - part}));
      }
      return all;
    };
    for (const Placement& left : placements(pair.left, false)) {
      for (const Placement& right : placements(pair.right, true)) {
        SCOPED_TRACE(std::string(pair.name) + " " + left.to_string() + " x " + right.to_string());
        expect_same_as_plain({2},
                             {{.full = make_tensor(pair.left, 1), .placements = {left}},
                              {.full = make_tensor(pair.right, 2), .placements = {right}}},
                             pair.program);
      }
    }
  }
}

TEST(Matmul, OnMoreRanksEmptyBlocksAndTwoMeshDims) {
  struct Case {
    std::vector<int64_t> mesh;
    Placements left, right;
  };
  const Case cases[] = {
      {{3}, {shard(0, {4, 0, 5})}, {kUncut}},
      {{3}, {shard(1, {1, 5, 1})}, {shard(0, {3, 4, 0})}},
      {{4}, {shard(1)}, {shard(1)}},
      {{2, 2}, {shard(0), shard(1)}, {kUncut, shard(0, {1, 6})}},
      {{2, 2}, {kUncut, shard(1)}, {shard(1), kUncut}},
      {{2, 2}, {shard(1), shard(1)}, {kUncut, kUncut}},
      {{2, 2}, {partial(), shard(0)}, {kUncut, kUncut}},
      {{2, 2}, {partial(), kUncut}, {kUncut, partial()}},
  };
  for (const Case& c : cases) {
    for (const bool batched : {false, true}) {
      const auto shifted = [&](Placements placements) {
        for (Placement& p : placements) p.dim += batched && p.is_shard();
        return placements;
      };
      expect_same_as_plain(c.mesh,
                           {{.full = make_tensor(batched ? at::IntArrayRef{2, 9, 7} : at::IntArrayRef{9, 7}, 1),
                             .placements = shifted(c.left)},
                            {.full = make_tensor(batched ? at::IntArrayRef{2, 7, 5} : at::IntArrayRef{7, 5}, 2),
                             .placements = shifted(c.right)}},
                           of(at::matmul), {.double_backward = true});
    }
  }
}

TEST(Matmul, AddsItsFirstTensorOnce) {
  const auto addmm = [](const Tensors& t) {
    return Tensors{at::addmm(t[0], t[1], t[2], 0.5, 2), at::addmm(t[0][0], t[1], t[2])};
  };
  for (const auto& [added, left, right] :
       std::vector<std::tuple<Placement, Placement, Placement>>{{kUncut, shard(1, {3, 4}), shard(0, {1, 6})},
                                                                {kUncut, shard(0), kUncut},
                                                                {shard(0), shard(1), shard(0)},
                                                                {shard(1, {1, 4}), kUncut, shard(1)},
                                                                {partial(), shard(0), kUncut},
                                                                {kUncut, partial(), kUncut},
                                                                {shard(1), kUncut, partial()}}) {
    SCOPED_TRACE(added.to_string() + " + " + left.to_string() + " x " + right.to_string());
    expect_same_as_plain({2},
                         {{.full = make_tensor({9, 5}, 1), .placements = {added}},
                          {.full = make_tensor({9, 7}, 2), .placements = {left}},
                          {.full = make_tensor({7, 5}, 3), .placements = {right}}},
                         addmm);
  }
  const auto others = [](const Tensors& t) {
    return Tensors{at::baddbmm(t[0], t[1], t[2], 2, 0.5),
                   at::addbmm(t[0][0], t[1], t[2]),
                   at::addmv(t[3], t[1][0], t[2][0].select(1, 0)),
                   at::addr(t[0][0], t[3], t[0][0][0]),
                   at::vdot(t[3], t[3]),
                   at::outer(t[3], t[3])};
  };
  for (const auto& [left, right] : std::vector<std::pair<Placement, Placement>>{{shard(2, {3, 4}), shard(1, {1, 6})},
                                                                                {shard(1), kUncut},
                                                                                {shard(0, {1, 2}), shard(0)},
                                                                                {kUncut, shard(2)}}) {
    SCOPED_TRACE(left.to_string() + " x " + right.to_string());
    expect_same_as_plain({2},
                         {{.full = make_tensor({3, 9, 5}, 1)},
                          {.full = make_tensor({3, 9, 7}, 2), .placements = {left}},
                          {.full = make_tensor({3, 7, 5}, 3), .placements = {right}},
                          {.full = make_tensor({9}, 4), .placements = {shard(0, {5, 4})}}},
                         others);
  }
}

// Resolved in one of its places, a tensor is no longer the sum of addends that the other was planned with.
TEST(Matmul, APartialTensorMeetsItself) {
  const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> calls{
      {"mm", [](const at::Tensor& x) { return x.mm(x); }},
      {"addmm", [](const at::Tensor& x) { return at::addmm(x, x, x); }},
      {"mul", [](const at::Tensor& x) { return x * x; }},
      {"addcmul", [](const at::Tensor& x) { return at::addcmul(x, x, x); }},
      {"einsum",
       [](const at::Tensor& x) {
         return at::einsum("ij,kj->ik", {x, x});
       }},
      {"outer",
       [](const at::Tensor& x) {
         return at::einsum("ij,kl->ijkl", {x, x});
       }},
      {"tensordot",
       [](const at::Tensor& x) {
         return at::tensordot(x, x, {0, 1}, {1, 0});
       }},
      {"cat",
       [](const at::Tensor& x) {
         return at::cat({x, x.sin(), x});
       }},
      {"linear", [](const at::Tensor& x) { return at::linear(x.unsqueeze(0), x, x[0]); }}};
  for (const auto& [name, call] : calls) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      SCOPED_TRACE(std::string(name) + " " + partial(op).to_string());
      const auto program = [&](const Tensors& t) { return Tensors{call(t[0] * 1)}; };
      expect_same_as_plain({2}, {{make_tensor({4, 4}, 1), {partial(op)}}}, program);
      expect_same_as_plain({2, 2}, {{make_tensor({4, 4}, 1), {partial(op), shard(0, {1, 3})}}}, program);
    }
  }
}

TEST(Matmul, InPlaceKeepsItsOwnCut) {
  const auto program = [](const Tensors& t) {
    at::Tensor sum = t[0] * 1.0;
    sum.addmm_(t[1], t[2], 0.5, 2);
    return Tensors{sum};
  };
  for (const Placement& target : {kUncut, shard(0, {4, 5}), shard(1), partial()}) {
    expect_same_as_plain({2},
                         {{.full = make_tensor({9, 5}, 1), .placements = {target}},
                          {.full = make_tensor({9, 7}, 2), .placements = {shard(1, {3, 4})}},
                          {.full = make_tensor({7, 5}, 3), .placements = {shard(0, {1, 6})}}},
                         program);
  }
}

// A cut dim that LibTorch would merge with others stays cut, forward and backward, with plain and
// cut weights.
// LibTorch's kernel of a linear layer adds the bias, so the numbers are those of one device to the last bit, and the
// sum of a bias's gradient waits for the others.
TEST(Einsum, KeepsCutsAndSumsOverThem) {
  struct Case {
    const char* equation;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<std::vector<Placements>> placements;  // several sets
    std::vector<int64_t> mesh = {2};
    at::ScalarType dtype = at::kDouble;
  };
  const Case cases[] = {
      {"bixy,ioxy->boxy",
       {{2, 3, 5, 4}, {3, 2, 5, 4}},
       {{{shard(2, {1, 4})}, {shard(2)}}, {{shard(3)}, {kUncut}}, {{shard(1)}, {kUncut}}},
       {2},
       at::kComplexDouble},
      {"bixy,ioxy->boxy", {{2, 3, 5, 4}, {3, 2, 5, 4}}, {{{shard(2), shard(3)}, {kUncut, kUncut}}}, {2, 2}},
      {"bthd,bshd->bhts",
       {{2, 5, 3, 4}, {2, 6, 3, 4}},
       {{{shard(1)}, {kUncut}}, {{kUncut}, {shard(1)}}, {{shard(2, {1, 2})}, {shard(2)}}, {{shard(3)}, {shard(3)}}}},
      {"ij,jk", {{5, 6}, {6, 3}}, {{{shard(0)}, {kUncut}}, {{shard(1)}, {kUncut}}}},
      {"ij,jk,kl->il",
       {{5, 6}, {6, 3}, {3, 4}},
       {{{shard(0)}, {kUncut}, {shard(1)}}, {{shard(1)}, {kUncut}, {shard(0)}}}},
      {"ij,k->k", {{5, 6}, {3}}, {{{shard(0)}, {kUncut}}}},
      {"i,j->ij", {{5}, {6}}, {{{shard(0)}, {kUncut}}, {{shard(0)}, {shard(0)}}}},
      {"bij,bij->", {{2, 5, 3}, {2, 5, 3}}, {{{shard(1)}, {shard(1)}}}},
  };
  for (const Case& c : cases) {
    for (const auto& placements : c.placements) {
      SCOPED_TRACE(c.equation);
      std::vector<Input> inputs;
      for (size_t i = 0; i < c.shapes.size(); ++i) {
        inputs.push_back(
            {.full = make_tensor(c.shapes[i], static_cast<int64_t>(i), c.dtype), .placements = placements[i]});
      }
      expect_same_as_plain(c.mesh, inputs, [&](const Tensors& t) { return Tensors{at::einsum(c.equation, t)}; },
                           {.double_backward = true});
    }
  }
}

TEST(Einsum, EllipsisKeepsCuts) {
  const auto program = [](const Tensors& t) {
    return Tensors{at::einsum("...ij,...jk->...ik", {t[0], t[1]}), at::einsum("b...j, kj -> k...b", {t[0], t[2]}),
                   at::einsum("...j,kj", {t[0], t[2]}), at::einsum("...ij,...jk->ik", {t[0], t[1]})};
  };
  for (const Placement& placement : {shard(1, {2, 1}), shard(2, {1, 4}), shard(3), shard(0)}) {
    SCOPED_TRACE(placement.to_string());
    expect_same_as_plain({2},
                         {{.full = make_tensor({2, 3, 5, 4}, 1), .placements = {placement}},
                          {.full = make_tensor({2, 3, 4, 6}, 2)},
                          {.full = make_tensor({7, 4}, 3)}},
                         program);
  }
}

// Only LibTorch's own einsum reads these: it may gather.
TEST(Einsum, RepeatedLettersAndBroadcast) {
  const auto program = [](const Tensors& t) {
    return Tensors{at::einsum("...ij,...jk->...ik", {t[0], t[1]}), at::einsum("bii->bi", {t[1]}),
                   at::einsum("bij,bjk->bik", {t[0], t[2]})};
  };
  expect_same_as_plain({2},
                       {{.full = make_tensor({2, 5, 4}, 1), .placements = {shard(1)}},
                        {.full = make_tensor({2, 4, 4}, 2)},
                        {.full = make_tensor({1, 4, 3}, 3)}},
                       program, {.fallback = Fallback::kReplicate});
}

TEST(Tensordot, KeepsCutsAndSumsOverThem) {
  const auto program = [](const Tensors& t) {
    return Tensors{at::tensordot(t[0], t[1], {-1, 1}, {0, 1}), at::tensordot(t[0], t[1], {3}, {0}),
                   at::inner(t[0], t[2])};
  };
  for (const Placement& placement : {shard(0), shard(1, {2, 1}), shard(2, {1, 4}), shard(3)}) {
    expect_same_as_plain({2},
                         {{.full = make_tensor({2, 3, 5, 4}, 1), .placements = {placement}},
                          {.full = make_tensor({4, 3, 6}, 2), .placements = {shard(1, {1, 2})}},
                          {.full = make_tensor({7, 4}, 3)}},
                         program);
  }
}

// LibTorch's own addmv reads the memory of such a tensor as if it were of the matrix's type.
TEST(Matmul, AddmvRefusesAnAddedTensorOfAnotherType) {
  const at::Tensor matrix = make_tensor({5, 4}, 1), vector = make_tensor({4}, 2);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor m = shard_of(matrix, mesh, {shard(0, {5, 0})});
    for (const at::ScalarType dtype : {at::kLong, at::kFloat, at::kComplexDouble}) {
      EXPECT_THAT(message_of([&] { at::addmv(make_tensor({5}, 3, dtype), m, vector); }),
                  ::testing::HasSubstr("addmv: the added tensor is "));
    }
  });
}

TEST(Embedding, CutInRowsAndColumns) {
  struct Table {
    const char* name;
    std::vector<int64_t> mesh;
    std::vector<Placement> weight, words;
    bool plain = false;
  };
  const Table cases[] = {
      {"columns", {2}, {shard(1, {1, 3})}, {replicate()}},
      {"rows", {3}, {shard(0, {4, 0, 7})}, {replicate()}},
      {"rows_plain_words", {2}, {shard(0, {5, 6})}, {}, true},
      {"words", {3}, {replicate()}, {shard(0, {1, 4, 0})}},
      {"rows_and_words", {2, 2}, {shard(0), replicate()}, {replicate(), shard(0)}},
      {"grid", {2, 2}, {shard(0), shard(1)}, {replicate(), replicate()}},
      {"rows_and_words_on_one_dim", {2}, {shard(0)}, {shard(1)}},
      {"partial_table", {2}, {partial()}, {shard(0)}},
  };
  const Tensor weight = make_tensor({11, 4}, 5), words = (make_tensor({5, 3}, 6) * 11).abs().to(at::kLong);
  for (const Table& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string thrown = message_of([&] {
      expect_same_as_plain(
          c.mesh, {{weight, c.weight}, {.full = words, .placements = c.words, .plain = c.plain}},
          [](const List& x) { return List{cubed(at::embedding(x[0], x[1], 3))}; }, kTwice);
      expect_same_as_plain(c.mesh, {{weight, c.weight}, {.full = words, .placements = c.words, .plain = c.plain}},
                           [](const List& x) { return List{cubed(at::embedding(x[0], x[1], -1, true))}; });
    });
    EXPECT_EQ(thrown, "");
  }
}

TEST(SweepProduct, S20_EmbeddingBagsAndThreeFactors) {
  const auto numbers = [](at::IntArrayRef values) { return at::tensor(values, at::kLong); };
  const Tensor words = numbers({1, 2, 3, 2, 2, 1, 4, 1, 0, 3, 0, 0}).view({4, 3});
  sweep({
      row("embedding_bag_sum", {make_tensor({7, 3}, 18), words, numbers({0, 4, 9})},
          [](X w, X i, X o) { return std::get<0>(at::embedding_bag(w, i.flatten(), o, false, 0)); }),
      row("embedding_bag_mean", {make_tensor({7, 3}, 18), words, numbers({0, 4, 9, 12})},
          [](X w, X i, X o) { return std::get<0>(at::embedding_bag(w, i.flatten(), o, true, 1, false, {}, true)); }),
      row("embedding_bag_max", {make_tensor({7, 3}, 18), words, numbers({0, 4, 9})},
          [](X w, X i, X o) { return std::get<0>(at::embedding_bag(w, i.flatten(), o, false, 2)); }),
      row("embedding_bag_weighted", {make_tensor({7, 3}, 18), words, numbers({0, 4, 9}), make_tensor({12}, 19)},
          [](X w, X i, X o, X s) { return std::get<0>(at::embedding_bag(w, i.flatten(), o, false, 0, false, s)); }),
      row("embedding_renorm", {make_tensor({7, 3}, 18), words},
          [](X w, X i) {
            at::Tensor rows = w.detach() * 1;
            return at::embedding_renorm_(rows, i, 0.8, 2);
          }),
      row("trilinear", {make_tensor({4, 5, 3}, 87), make_tensor({4, 5, 3}, 88), make_tensor({4, 5, 3}, 89)},
          [](X x, X y, X z) {
            return List{at::_trilinear(x, y, z, {}, {}, {}, {2}, 0), at::_trilinear(x, y, z, {}, {}, {}, {1, 2}, 2)};
          }),
  });
}

TEST(SweepProduct, S20_Distances) {
  const Tensor a = make_tensor({5, 4, 3}, 1), b = make_tensor({5, 4, 3}, 2), m = make_tensor({5, 7}, 4),
               n = make_tensor({6, 7}, 5);
  std::vector<Row> rows;
  for (const double p : {0.0, 1.0, 2.0, 3.0, double(INFINITY)}) {
    const std::string name = std::to_string(static_cast<int>(std::min(p, 9.0)));
    rows.push_back(row(
        "dist_" + name, {a, b}, [=](X x, X y) { return at::dist(x, y, p); },
        p == 0 ? Allowed{.backward = false} : Allowed{}));
    if (p > 0 && !std::isinf(p))
      rows.push_back(row("renorm_" + name, {m}, [=](X x) {
        return List{at::renorm(x, p, 0, 0.5), at::renorm(x, p, 1, 0.5)};
      }));
    rows.push_back(row("cdist_" + name, {m, n}, [=](X x, X y) { return at::cdist(x, y, p); }));
    rows.push_back(row("pdist_" + name, {m}, [=](X x) { return at::pdist(x, p); }));
    rows.push_back(
        row("pairwise_" + name, {m, m * 0.5 + 0.1}, [=](X x, X y) { return at::pairwise_distance(x, y, p); }));
  }
  rows.push_back(row("cdist_batch", {make_tensor({2, 1, 4, 3}, 20), make_tensor({3, 5, 3}, 21)},
                     [](X x, X y) { return at::cdist(x, y, 1); }));
  rows.push_back(row("cdist_mm", {m, n}, [](X x, X y) { return at::cdist(x, y, 2, 1); }));
  rows.push_back(row("dist_broadcast", {m, make_tensor({7}, 22)}, [](X x, X y) { return at::dist(x, y); }));
  for (const int64_t dim : {0, 1, 2}) {
    const Tensor x3 = make_tensor({3, 3, 3}, 23), y3 = make_tensor({3, 3, 3}, 24);
    rows.push_back(
        row("cross_" + std::to_string(dim), {x3, y3}, [=](X x, X y) { return at::linalg_cross(x, y, dim); }));
    rows.push_back(
        row("cosine_" + std::to_string(dim), {x3, y3}, [=](X x, X y) { return at::cosine_similarity(x, y, dim); }));
  }
  rows.push_back(
      row("cross_any", {make_tensor({5, 3}, 25), make_tensor({5, 3}, 26)}, [](X x, X y) { return at::cross(x, y); }));
  rows.push_back(row("cross_broadcast", {make_tensor({5, 3}, 25), make_tensor({1, 3}, 26)},
                     [](X x, X y) { return at::linalg_cross(x, y); }));
  sweep(rows);
}

}  // namespace
}  // namespace moonhalo::testing::test_matmul
