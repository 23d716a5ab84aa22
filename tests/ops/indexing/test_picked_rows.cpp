// SPDX-License-Identifier: Apache-2.0
// Rows that are picked from a cut dim: those that are asked for are sent, each once, and nothing else: Y19.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/indexing/cut_graph.h"
#include "tests/support/sweep.h"

namespace moonhalo::testing::test_picked_rows {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kRows = 12, kWidth = 5;

int64_t block_of(const std::vector<int64_t>& sizes, int64_t row) {
  int64_t block = 0, end = sizes[0];
  while (row >= end) end += sizes[++block];
  return block;
}

// Rows that `rank` sends: of every other rank's entries each of its rows once.
int64_t rows_sent(const Tensor& index, const std::vector<int64_t>& nodes, const std::vector<int64_t>& entries,
                  int64_t rank, bool back) {
  std::set<std::pair<int64_t, int64_t>> sent;
  for (int64_t e = 0; e < index.numel(); ++e) {
    const int64_t row = index[e].item<int64_t>(), holder = block_of(nodes, row), asker = block_of(entries, e);
    if (holder != asker && (back ? asker : holder) == rank) sent.insert({asker, row});
  }
  return static_cast<int64_t>(sent.size());
}

// Entries that name rows of their own rank's block; or, at every fourth place, the row before or behind it; or any.
Tensor entries_of(const std::string& kind, const std::vector<int64_t>& nodes, const std::vector<int64_t>& entries) {
  std::vector<int64_t> list;
  int64_t begin = 0;
  for (size_t b = 0; b < nodes.size(); ++b) {
    for (int64_t e = 0; e < entries[b]; ++e) {
      int64_t row = nodes[b] > 0 ? begin + e * 5 % nodes[b] : begin % kRows;
      if (kind == "border" && e % 4 == 0) row = e % 8 == 0 ? begin - 1 : begin + nodes[b];
      if (kind == "random") row = (e * 7 + 3 * static_cast<int64_t>(b) + e / 5) % kRows;
      list.push_back(std::clamp<int64_t>(row, 0, kRows - 1));
    }
    begin += nodes[b];
  }
  return at::tensor(list, at::kLong);
}

struct Cuts {
  std::vector<int64_t> nodes, entries;
};

// Reads rows of the table by the index, and adds what depends on them to such rows.
struct Program {
  const char* name;
  bool adds;
  std::function<Tensor(const Tensor& table, const Tensor& index, const Tensor& source)> run;
};

Tensor columns(const Tensor& index) { return index.unsqueeze(1).expand({index.size(0), kWidth}); }

const std::vector<Program> kPrograms = {
    {"index_select", false, [](X t, X i, X) { return t.index_select(0, i); }},
    {"index", false, [](X t, X i, X) { return t.index({i}); }},
    {"gather", false, [](X t, X i, X) { return t.gather(0, columns(i)); }},
    {"embedding", false, [](X t, X i, X) { return at::embedding(t, i); }},
    {"index_add", true, [](X t, X i, X s) { return t.index_add(0, i, s, 2); }},
    {"index_add_", true, [](X t, X i, X s) { return t.clone().index_add_(0, i, s); }},
    {"scatter_add", true, [](X t, X i, X s) { return t.scatter_add(0, columns(i), s); }},
    {"index_put", true, [](X t, X i, X s) { return t.index_put({i}, s, true); }},
};

void count_bytes(const Cuts& cuts, const std::string& kind, const Program& program, bool whole_index) {
  const auto ranks = static_cast<int64_t>(cuts.nodes.size());
  const Tensor table = make_tensor({kRows, kWidth}, 1), index = entries_of(kind, cuts.nodes, cuts.entries),
               source = make_tensor({index.size(0), kWidth}, 2);
  const Tensor t = table.clone().requires_grad_(), s = source.clone().requires_grad_();
  const Tensor expected = program.run(t, index, s);
  const Tensor cotangent = make_tensor(expected.sizes(), 3);
  const auto gradients = torch::autograd::grad({expected}, {t, s}, {cotangent}, std::nullopt, false, true);
  on_mesh({ranks}, [&](const MeshPtr& mesh) {
    const std::vector<Placement> by_nodes = {shard(0, cuts.nodes)}, by_entries = {shard(0, cuts.entries)};
    const Tensor x = shard_of(table, mesh, by_nodes).requires_grad_(),
                 y = shard_of(source, mesh, by_entries).requires_grad_(),
                 g = shard_of(cotangent, mesh, program.adds ? by_nodes : by_entries),
                 i = whole_index ? index : shard_of(index, mesh, by_entries);
    const std::string what = program.name + (" " + kind) + (whole_index ? " whole" : "");
    const auto bytes = [&](bool back) {
      return 8 * kWidth * rows_sent(index, cuts.nodes, cuts.entries, mesh->rank(), back);
    };
    for (const bool again : {false, true}) {
      mesh->group().reset_stats();
      const Tensor result = program.run(x, i, y);
      int64_t sent = mesh->group().stats().total().bytes;
      if (again) EXPECT_EQ(sent, bytes(program.adds)) << what << " forward";
      mesh->group().reset_stats();
      const auto back = torch::autograd::grad({result}, {x, y}, {g}, std::nullopt, false, true);
      sent = mesh->group().stats().total().bytes;
      if (again) EXPECT_EQ(sent, bytes(!program.adds)) << what << " backward";
      EXPECT_EQ(spec(back[0]), spec(x)) << what;
      EXPECT_EQ(difference(full_tensor(result), expected.detach(), program.adds ? 1e-12 : 0), "") << what;
      EXPECT_EQ(difference(full_tensor(back[0]), gradients[0], program.adds ? 0 : 1e-12), "") << what;
      if (program.adds) EXPECT_EQ(difference(full_tensor(back[1]), gradients[1], 0), "") << what;
    }
  });
}

TEST(PickedRows, Y19_BytesAreThoseOfTheRows) {
  for (const Cuts& cuts : {Cuts{{5, 7}, {9, 11}}, Cuts{{4, 5, 3}, {10, 0, 20}}, Cuts{{0, 8, 4}, {7, 20, 3}},
                           Cuts{{3, 4, 0, 5}, {9, 8, 8, 8}}}) {
    for (const char* kind : {"local", "border", "random"}) {
      for (const Program& program : kPrograms) count_bytes(cuts, kind, program, false);
    }
  }
}

// Every rank has the whole index: nothing is asked for. What is read is shared as the table is.
TEST(PickedRows, Y19_BytesAreThoseOfTheRowsOfAWholeIndex) {
  for (const Cuts& cuts : {Cuts{{6, 6}, {10, 10}}, Cuts{{4, 4, 4}, {10, 10, 10}}}) {
    for (const char* kind : {"local", "border", "random"}) {
      for (const Program& program : kPrograms) {
        if (std::string(program.name) != "embedding") count_bytes(cuts, kind, program, true);
      }
    }
  }
}

// Tables and entries cut over the same mesh dims, over others, or over some of the same; whole and plain ones too.
TEST(PickedRows, Y19_ValuesAndGradientsEqualThoseOfOneDevice) {
  using Placements = std::vector<Placement>;
  const Tensor table = make_tensor({kRows, 3, kWidth}, 1),
               index = (make_tensor({14}, 2) * kRows).abs().floor().to(at::kLong),
               source = make_tensor({14, 3, kWidth}, 3),
               wide = (make_tensor({14, 3, kWidth}, 4) * kRows).abs().floor().to(at::kLong);
  struct Way {
    std::vector<int64_t> mesh;
    Placements table, entries;
  };
  const std::vector<Way> ways = {
      {{3}, {shard(0, {5, 0, 7})}, {shard(0, {0, 10, 4})}},
      {{3}, {shard(0, {5, 0, 7})}, {replicate()}},
      {{3}, {shard(2, {1, 1, 3})}, {shard(0)}},
      {{2, 2}, {shard(0, {3, 9}), replicate()}, {shard(0, {9, 5}), replicate()}},
      {{2, 2}, {shard(0, {3, 9}), replicate()}, {replicate(), shard(0, {9, 5})}},
      {{2, 2}, {shard(0, {3, 9}), replicate()}, {shard(0), shard(0)}},
      {{2, 2}, {replicate(), shard(0, {3, 9})}, {shard(0), shard(0)}},
      {{2, 2}, {shard(0, {4, 8}), shard(0)}, {shard(0, {9, 5}), replicate()}},
      {{2, 2}, {shard(0, {4, 8}), shard(0)}, {replicate(), shard(0, {9, 5})}},
      {{2, 2}, {shard(0, {4, 8}), shard(0)}, {shard(0), shard(0)}},
      {{2, 2}, {shard(0, {4, 8}), shard(1)}, {shard(0), replicate()}},
      {{2, 2}, {shard(0, {4, 8}), shard(2)}, {shard(0), shard(0)}},
      {{2, 2}, {shard(0, {4, 8}), partial()}, {shard(0), shard(0)}},
      {{2, 2}, {stored(0), replicate()}, {shard(0), replicate()}},
  };
  for (const Way& way : ways) {
    for (const bool plain : {false, true}) {
      const std::vector<Input> inputs = {{table, way.table},
                                         {index, way.entries, false, plain},
                                         {source, way.entries},
                                         {wide, way.entries, false, plain}};
      const bool sums = way.table[1 % way.table.size()].is_partial();
      const auto run = [&](const std::function<Tensor(const Tensors&)>& program) {
        expect_same_as_plain(
            way.mesh, inputs, [&](const Tensors& t) { return Tensors{cubed(program(t))}; }, kTwice);
      };
      run([](const Tensors& t) { return t[0].index_select(0, t[1]) * t[2]; });
      run([](const Tensors& t) { return t[0].index({t[1]}) * t[2]; });
      run([](const Tensors& t) { return t[0].transpose(0, 1).index_select(1, t[1]); });
      run([](const Tensors& t) { return t[0].index({t[1], t[1].remainder(3)}); });
      run([](const Tensors& t) { return t[0].gather(0, t[3]) * t[2]; });
      run([](const Tensors& t) { return at::embedding(t[0].select(1, 1), t[1], 4); });
      run([](const Tensors& t) { return at::embedding(t[0].select(1, 1), t[3].select(2, 0)); });
      if (sums) continue;
      run([](const Tensors& t) { return t[0].index_add(0, t[1], t[2], -2); });
      run([](const Tensors& t) { return cubed(t[0]).index_add_(0, t[1], t[2]); });
      run([](const Tensors& t) { return t[0].scatter_add(0, t[3], t[2]); });
      run([](const Tensors& t) { return cubed(t[0]).scatter_add_(0, t[3], t[2]); });
      run([](const Tensors& t) { return t[0].index_put({t[1]}, t[2], true); });
      run([](const Tensors& t) { return t[0].index_put({t[1], t[1].remainder(3)}, t[2].select(1, 0), true); });
      run([](const Tensors& t) { return t[0].index_put({t[1]}, t[2].select(0, 3), true); });
    }
  }
}

// A whole index whose entries are fewer than the blocks, as of one row, leaves a sum.
TEST(PickedRows, Y19_FewRowsStaySums) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({kRows, kWidth}, 1), mesh, {shard(0)});
    mesh->group().reset_stats();
    const Tensor few = x.index_select(0, at::tensor({7, 2}, at::kLong));
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
    EXPECT_EQ(spec(few)->to_string(), "[2, 5] on mesh(3: dim_0): Partial(sum)");
  });
}

// Rows are asked for once, as long as the index is the same; after a write they are asked for again.
TEST(PickedRows, Y19_KeptRoutesFollowTheirIndex) {
  const Tensor table = make_tensor({kRows, kWidth}, 1), edges = make_tensor({2, 30}, 2, at::kLong).abs(),
               others = make_tensor({30}, 3, at::kLong).abs().add(6);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(table, mesh, {shard(0)}), cut = shard_of(edges, mesh, {shard(1)});
    constexpr int64_t kPlanned = 3;  // rows that exist, whether any are sent, how many
    const auto calls = [&](const Tensor& index, const Tensor& expected) {
      mesh->group().reset_stats();
      const Tensor rows = x.index_select(0, index);
      const CommStats& stats = mesh->group().stats();
      const int64_t planned = stats.by_kind[CommStats::kAllReduce].calls + stats.by_kind[CommStats::kAllToAll].calls;
      EXPECT_EQ(difference(full_tensor(rows), table.index_select(0, expected), 0), "");
      return planned;
    };
    // Views of one tensor are distinguished, and each keeps its own.
    EXPECT_EQ(calls(cut.select(0, 0), edges[0]), kPlanned);
    EXPECT_EQ(calls(cut.select(0, 1), edges[1]), kPlanned);
    EXPECT_EQ(calls(cut.select(0, 0), edges[0]), 0);
    EXPECT_EQ(calls(cut.select(0, 1), edges[1]), 0);
    cut.select(0, 0).copy_(shard_of(others, mesh, {shard(0)}));
    EXPECT_EQ(calls(cut.select(0, 0), others), kPlanned);
    EXPECT_EQ(calls(cut.select(0, 0), others), 0);
    // Blocks that are written behind the tensor's back are found by their ranks.
    to_local(cut).fill_(mesh->rank());
    EXPECT_THAT(message_of([&] { x.index_select(0, cut.select(0, 0)); }),
                HasSubstr("was written behind the ShardTensor's back"));
    // An index that every rank has whole may change as it likes.
    Tensor whole = edges[0].clone();
    EXPECT_EQ(calls(whole, edges[0]), 0);
    whole.copy_(others);
    EXPECT_EQ(calls(whole, others), 0);
  });
}

// One rank's entry names a row that does not exist: every rank says so.
TEST(PickedRows, Y19_EveryRankNamesARowThatDoesNotExist) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({kRows, kWidth}, 1), mesh, {shard(0)}),
                 source = shard_of(make_tensor({9, kWidth}, 2), mesh, {shard(0)});
    for (const int64_t wrong : {kRows, int64_t{-1}, -kRows - 1}) {
      const Tensor index =
          shard_of(at::arange(9, at::kLong).index_fill_(0, at::tensor({8}, at::kLong), wrong), mesh, {shard(0)});
      const auto says = HasSubstr(c10::str("index ", wrong, " is out of bounds for dimension 0 with size 12"));
      EXPECT_THAT(message_of([&] { x.index_select(0, index); }), says);
      EXPECT_THAT(message_of([&] { x.index_add(0, index, source); }), says);
      EXPECT_THAT(message_of([&] { x.gather(0, columns(index)); }), says);
      EXPECT_THAT(message_of([&] { at::embedding(x, index); }), says);
      if (wrong == -1) continue;
      EXPECT_THAT(message_of([&] { x.index({index}); }), says);
    }
  });
}

// A field of numbered points in a strip of triangles, 60 x 50, cut in four strips.
Tensor triangles(int64_t rows, int64_t columns) {
  std::vector<int64_t> sources, targets;
  const auto join = [&](int64_t a, int64_t b) {
    sources.insert(sources.end(), {a, b});
    targets.insert(targets.end(), {b, a});
  };
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t node = i * columns + j;
      if (j + 1 < columns) join(node, node + 1);
      if (i + 1 < rows) join(node, node + columns);
      if (i + 1 < rows && j + 1 < columns) join(node, node + columns + 1);
    }
  }
  return at::stack({at::tensor(sources, at::kLong), at::tensor(targets, at::kLong)});
}

TEST(PickedRows, Y19_AMeshGraphNetSendsItsBorderRows) {
  const int64_t nodes = 3000, width = 8, layers = 3;
  const Tensor edges = triangles(60, 50);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{750, 750, 750, 750}, {620, 900, 0, 1480}}) {
    const GraphCut cut = cut_graph(edges, sizes);
    const Tensor ordered = edges.index_select(1, cut.order);
    const Tensor v0 = make_tensor({nodes, width}, 1), e0 = make_tensor({edges.size(1), width}, 2),
                 of_edges = make_tensor({width, 3 * width}, 3), of_nodes = make_tensor({width, 2 * width}, 4);
    const auto loss = [&](Tensor v, Tensor e, const Tensor& src, const Tensor& dst, const Tensor& a, const Tensor& b) {
      for (int64_t layer = 0; layer < layers; ++layer) {
        e = e + at::linear(at::cat({v.index_select(0, src), v.index_select(0, dst), e}, 1), a).tanh();
        const Tensor sums = at::zeros_like(v).index_add(0, dst, e);
        v = v + at::linear(at::cat({v, sums}, 1), b).tanh();
      }
      return (v * v).sum();
    };
    const Tensor v1 = v0.clone().requires_grad_();
    const Tensor expected = loss(v1, e0.index_select(0, cut.order), ordered[0], ordered[1], of_edges, of_nodes);
    const Tensor gradient = torch::autograd::grad({expected}, {v1})[0];
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const std::vector<Placement> by_nodes = {shard(0, sizes)}, by_edges = {shard(0, cut.sizes)};
      const Tensor pairs = shard_of(ordered, mesh, {shard(1, cut.sizes)});
      const Tensor v = shard_of(v0, mesh, by_nodes).requires_grad_(),
                   e = shard_of(e0.index_select(0, cut.order), mesh, by_edges),
                   a = shard_of(of_edges, mesh, {replicate()}).requires_grad_(),
                   b = shard_of(of_nodes, mesh, {replicate()}).requires_grad_();
      int64_t forward = 0, back = 0;
      for (int step = 0; step < 2; ++step) {
        mesh->group().reset_stats();
        const Tensor value = loss(v, e, pairs.select(0, 0), pairs.select(0, 1), a, b);
        forward = mesh->group().stats().total().bytes;
        mesh->group().reset_stats();
        const auto gradients = torch::autograd::grad({value}, {v, a, b});
        back = mesh->group().stats().total().bytes;
        EXPECT_LT((full_tensor(value) - expected).abs().item<double>(), 1e-8);
        EXPECT_EQ(difference(full_tensor(gradients[0]), gradient, 1e-10), "");
      }
      const auto border = [&](bool home) {
        return 8 * width * rows_sent(ordered[0], sizes, cut.sizes, mesh->rank(), home);
      };
      EXPECT_LE(forward, 1.2 * layers * border(false));
      EXPECT_LE(back, 1.2 * layers * border(true) + 64);
      EXPECT_LE(border(false) + border(true), 8 * width * 4 * 102);
    });
  }
}

TEST(PickedRows, Y19_AnEdgeGoesWithItsTarget) {
  const Tensor edges = at::tensor({0, 1, 2, 3, 4, 0, 5, 1, 3, 3, 0, 5}, at::kLong).view({2, 6});
  const GraphCut cut = cut_graph(edges, {2, 0, 3, 1});
  EXPECT_TRUE(cut.order.equal(at::tensor({1, 4, 2, 3, 0, 5}, at::kLong))) << cut.order;
  EXPECT_EQ(cut.sizes, (std::vector<int64_t>{2, 0, 2, 2}));
  EXPECT_THAT(message_of([&] { cut_graph(edges, {2, 3}); }), HasSubstr("an edge names node 5 of 5"));
  EXPECT_THAT(message_of([&] { cut_graph(edges.t(), {6}); }), HasSubstr("edges of shape [6, 2]"));
  EXPECT_THAT(message_of([&] { cut_graph(edges, {}); }), HasSubstr("give the rows of each block"));
  on_mesh({2}, [&](const MeshPtr& mesh) {
    EXPECT_THAT(message_of([&] {
                  cut_graph(shard_of(edges, mesh, {shard(1)}), {3, 3});
                }),
                HasSubstr("the edges are a ShardTensor"));
  });
}

// Dry runs: an index without values names no rows.
TEST(PickedRows, Y19_AnIndexThatIsNotComputedIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const FakeResults nothing_computed;
    const int64_t rows = 40000;
    const Tensor table = at::zeros({rows, kWidth}), index = at::zeros({rows}, at::kLong);
    const Tensor x = from_local(table, mesh, {shard(0)}), cut = from_local(index, mesh, {shard(0)});
    const Tensor whole = at::zeros({rows}, at::kLong), columns = cut.unsqueeze(1).expand({2 * rows, kWidth});
    const std::vector<std::pair<const char*, std::function<Tensor()>>> calls = {
        {"index_select: ", [&] { return x.index_select(0, whole); }},
        {"index_select: ", [&] { return x.index_select(0, cut); }},
        {"index: ", [&] { return x.index({cut}); }},
        {"gather: ", [&] { return x.gather(0, columns); }},
        {"index_add: ", [&] { return x.index_add(0, cut, x); }},
        {"scatter_add: ", [&] { return x.scatter_add(0, columns, x); }},
        {"embedding: ", [&] { return at::embedding(x, cut); }},
    };
    for (const auto& [op, call] : calls) {
      EXPECT_THAT(message_of(call),
                  AllOf(HasSubstr(op), HasSubstr("which rows of a cut dim are sent depends on values"),
                        HasSubstr("have  a fake index"), HasSubstr("such that dim 0 is whole")));
      EXPECT_THAT(message_of(call), Not(HasSubstr("out of bounds")));
    }
    const Tensor known = redistribute(x, {replicate()});
    EXPECT_EQ(known.index_select(0, cut).sizes(), x.sizes());
    EXPECT_EQ(x.scatter(0, columns, 1.0).sizes(), x.sizes());
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_picked_rows
