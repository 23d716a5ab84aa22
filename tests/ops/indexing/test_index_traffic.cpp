// SPDX-License-Identifier: Apache-2.0
// Indexing of what is cut, as along the edges of a graph or by masks: what stays where it is, and what is sent: S26.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/sent_bytes.h"
#include "tests/support/sweep.h"

namespace moonhalo::testing::test_index_traffic {
namespace {

using at::Tensor;
using at::indexing::Ellipsis;
using at::indexing::Slice;

// For every row of `x` along `dim` the number of a row to add it to, below 4.
Tensor rows(const Tensor& x, int64_t dim) { return (at::arange(x.size(dim), at::kLong) * 3 + 1).remainder(4); }

// The same for every element of `x`.
Tensor places(const Tensor& x, int64_t dim) {
  std::vector<int64_t> along(x.dim(), 1);
  along[dim] = x.size(dim);
  return rows(x, dim).view(along).expand(x.sizes());
}

Tensor ones(at::IntArrayRef shape) { return at::ones(shape, at::kDouble); }

// Messages along the edges of a graph, added up at its nodes: both cut, and onto tensors that are not.
TEST(IndexTraffic, S26_EntriesAreAddedWhereTheyLie) {
  check(
      {
          {"index_add",
           [](const Tensor& x) {
             return List{cubed(ones({4, 7, 2}).index_add(0, rows(x, 0), x, -2)),
                         cubed(ones({9, 4, 2}).index_add(1, rows(x, 1), x)),
                         cubed(ones({9, 7, 4}).index_add(2, rows(x, 2), x))};
           },
           kTwice},
          {"scatter_add",
           [](const Tensor& x) {
             return List{cubed(ones({4, 7, 2}).scatter_add(0, places(x, 0), x)),
                         cubed(ones({9, 4, 2}).scatter_add(1, places(x, 1), x)),
                         cubed(ones({9, 7, 4}).scatter_reduce(2, places(x, 2), x, "sum"))};
           },
           kTwice},
          {"by_cut_indices",
           [](const Tensor& x) {
             const Tensor of_elements = (x.detach() * 9).abs().floor().to(at::kLong).remainder(4);
             return List{cubed(ones({4, 7, 2}).scatter_add(0, of_elements, x)),
                         cubed(ones({9, 4, 2}).scatter_add(1, of_elements, x)),
                         cubed(ones({4, 7, 2}).index_add(0, of_elements.select(1, 1).select(1, 0), x))};
           }},
          {"shorter",
           [](const Tensor& x) {
             return List{cubed(ones({4, 8, 2}).scatter_add(0, places(x, 0), x)),
                         cubed(ones({4, 7, 2}).scatter_add(0, places(x, 0).narrow(0, 0, 5), x)),
                         cubed(ones({4, 7, 2}).scatter_add(0, places(x, 0).narrow(1, 1, 3), x)),
                         cubed(ones({4, 7, 2}).scatter_reduce(0, places(x, 0), x, "sum", false)),
                         cubed(ones({4, 7, 2}).scatter_reduce(0, places(x, 0), x, "mean"))};
           },
           kForward},
          {"onto_cut",
           [](const Tensor& x) {
             const Tensor y = cubed(x).narrow(0, 2, 4), z = cubed(x).narrow(1, 2, 4);
             return List{cubed(y.index_add(0, rows(x, 0), x)), cubed(y.scatter_add(0, places(x, 0), x)),
                         cubed(z.index_add(1, rows(x, 1), x))};
           },
           kTwice},
          {"in_place",
           [](const Tensor& x) {
             Tensor plain = ones({4, 7, 2}), y = x.new_ones({4, 7, 2}), z = cubed(x).narrow(0, 2, 4).clone(),
                    w = x.new_ones({9, 4, 2});
             plain.index_add_(0, rows(x, 0), x);
             y.scatter_add_(0, places(x, 0), x).index_add_(0, rows(x, 0), x, 3);
             z.index_add_(0, rows(x, 0), x).scatter_add_(0, places(x, 0), x);
             w.index_add_(1, rows(x, 1), x);
             return List{cubed(plain), cubed(y), cubed(z), cubed(w)};
           }},
          {"whole_numbers",
           [](const Tensor& x) {
             const Tensor counts = (x.detach() * 9).to(at::kLong);
             return List{at::zeros({4, 7, 2}, at::kLong).index_add(0, rows(x, 0), counts),
                         at::zeros({4, 7, 2}, at::kBool).index_add(0, rows(x, 0), counts.gt(0))};
           }},
      },
      make_tensor({9, 7, 2}, 3));
}

// The gradient of x[mask] is written to new zeros of x's shape. They need not be on every rank.
TEST(IndexTraffic, S26_GradientsOfPickedElementsStayCut) {
  const Tensor full = make_tensor({4, 8, 6}, 1), land = make_tensor({8, 6}, 2).gt(0);
  struct Row {
    const char* name;
    Placement cut;
    bool plain;    // the mask: land alone, of the last two dims
    int64_t most;  // bytes that a rank sends
  };
  // Counts of the blocks are exchanged. A cut of an inner dim moves to the first: half a block goes, and comes back.
  for (const Row& row :
       {Row{"first", shard(0, {1, 3}), false, 64}, Row{"inner", shard(1, {3, 5}), false, 8 * 4 * 8 * 6},
        Row{"beside", shard(0, {1, 3}), true, 0}, Row{"masked", shard(1, {3, 5}), true, 8 * 4 * 8 * 6}}) {
    const Tensor leaf = full.clone().requires_grad_();
    const auto picked = [&](const Tensor& x) {
      return row.plain ? x.index({Ellipsis, land}) : x.index({x.detach().gt(0.1)});
    };
    const Tensor expected = torch::autograd::grad({cubed(picked(leaf)).sum()}, {leaf})[0];
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(full, mesh, {row.cut}).requires_grad_().mul(1);
      const Tensor loss = cubed(picked(x)).sum();
      loss.item();
      mesh->group().reset_stats();
      const Tensor grad = torch::autograd::grad({loss}, {x})[0];
      EXPECT_LE(mesh->group().stats().total().bytes, row.most) << row.name;
      EXPECT_TRUE(spec(grad)->has_cut()) << row.name << spec(grad)->to_string();
      EXPECT_EQ(difference(full_tensor(grad), expected, 1e-12), "") << row.name;
    });
  }
}

// Rows that are picked by indices which are cut too, as of the edges of a graph: their gradients are added up where
// they are, and only the sums move.
TEST(IndexTraffic, S26_WhatTravelsForTheGradientOfRowsByCutIndices) {
  const Tensor full = make_tensor({6, 5}, 1), rows = make_tensor({40}, 2, at::kLong).abs(),
               others = make_tensor({40}, 3, at::kLong).abs().clamp_max(4),
               edges = make_tensor({5, 8}, 4, at::kLong).abs();
  struct Row {
    const char* name;
    std::vector<Placement> cut;
    int64_t most;
  };
  for (const Row& row : {Row{"cut", {shard(0, {1, 3, 2})}, 8 * 6 * 5}, Row{"whole", {replicate()}, 8 * 2 * 6 * 5}}) {
    const auto picked = [](const Tensor& x, const Tensor& a, const Tensor& b, const Tensor& c) {
      return cubed(x.index({a})).sum() + cubed(x.index({a, b}).exp()).sum() + cubed(x.index({c})).sum() +
             cubed(x.t().index({Slice(), a})).sum();
    };
    const Tensor leaf = full.clone().requires_grad_();
    const Tensor expected = torch::autograd::grad({picked(leaf, rows, others, edges)}, {leaf})[0];
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const std::vector<Placement> cut = {shard(0, {20, 0, 20})};
      const Tensor a = shard_of(rows, mesh, cut), b = shard_of(others, mesh, cut),
                   c = shard_of(edges, mesh, {shard(1, {3, 4, 1})});
      const Tensor x = shard_of(full, mesh, row.cut).requires_grad_().mul(1);
      const Tensor grad = torch::autograd::grad({picked(x, a, b, c)}, {x})[0];
      EXPECT_EQ(difference(full_tensor(grad), expected, 1e-12), "") << row.name;
      const Tensor loss = cubed(x.index({a})).sum();
      loss.item();
      mesh->group().reset_stats();
      torch::autograd::grad({loss}, {x});
      EXPECT_LE(mesh->group().stats().total().bytes, row.most) << row.name;
    });
  }
}

// Most elements of a tensor that is cut in an inner dim are picked, or few: all of it moves, or what was picked.
TEST(IndexTraffic, S26_WhatTravelsForTheGradientOfAMaskedSelect) {
  for (const bool most : {true, false}) {
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(make_tensor({4, 16, 8}, 1), mesh, {shard(1)}).requires_grad_().mul(1);
      const Tensor loss = cubed(x.masked_select(most ? x.detach().lt(0.9) : x.detach().gt(0.98))).sum();
      loss.item();
      mesh->group().reset_stats();
      const Tensor grad = torch::autograd::grad({loss}, {x})[0];
      EXPECT_LT(bytes_of_all_ranks(*mesh), most ? 2 * 8 * 4 * 16 * 8 : 8 * 4 * 16 * 8 / 4) << most;
      EXPECT_EQ(spec(grad), spec(x));
    });
  }
}

// A source of many rows, and what is sent where it is added to few: nothing, or the few.
TEST(IndexTraffic, S26_WhatTravelsToAddEntries) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({100, 6}, 1), mesh, {shard(0, {30, 70})}),
                 y = shard_of(make_tensor({100, 6}, 1), mesh, {shard(1)}),
                 nodes = shard_of(make_tensor({4, 6}, 2), mesh, {shard(0, {1, 3})});
    const Tensor rows = at::arange(100, at::kLong).remainder(4), places = rows.unsqueeze(1).expand({100, 6});
    const auto sent = [&](const std::function<Tensor()>& call, const char* result) {
      mesh->group().reset_stats();
      const Tensor sum = call();
      EXPECT_EQ(spec(sum)->placements()[0].to_string(), result);
      return mesh->group().stats().total().bytes;
    };
    const Tensor zeros = at::zeros({4, 6}, at::kDouble);
    EXPECT_EQ(sent([&] { return zeros.index_add(0, rows, x); }, "Partial(sum)"), 0);
    EXPECT_EQ(sent([&] { return zeros.scatter_add(0, places, x); }, "Partial(sum)"), 0);
    EXPECT_EQ(sent([&] { return zeros.index_add(0, rows, y); }, "Shard(1, {3, 3})"), 0);
    EXPECT_EQ(sent([&] { return zeros.scatter_add(0, places, y); }, "Shard(1, {3, 3})"), 0);
    EXPECT_EQ(sent([&] { return nodes.index_add(0, rows, x); }, "Shard(0, {1, 3})"),
              8 * 6 * (mesh->rank() == 0 ? 3 : 1));
    Tensor whole = x.new_zeros({4, 6}).mul(0).sum(0, true).expand({4, 6}).contiguous();
    EXPECT_LE(sent([&] { return whole.scatter_add_(0, places, x); }, "Replicate()"), 8 * 2 * 4 * 6);
    // Every rank gets the sum of what is written in place, so it is sent twice: a source of five rows costs
    // less.
    const Tensor five = shard_of(make_tensor({5, 6}, 1), mesh, {shard(0, {2, 3})}), at_rows = rows.narrow(0, 0, 5);
    EXPECT_EQ(sent([&] { return whole.index_add_(0, at_rows, five); }, "Replicate()"),
              8 * 6 * (mesh->rank() == 0 ? 2 : 3));
    // The last row, which rank 1 has, says that it goes where there is none: every rank is notified.
    for (const int64_t wrong : {4, -1}) {
      const Tensor bad = rows.clone().index_fill_(0, at::tensor({99}, at::kLong), wrong);
      EXPECT_THAT(message_of([&] { zeros.index_add(0, bad, x); }), ::testing::HasSubstr("is out of bounds"));
      EXPECT_THAT(message_of([&] {
                    zeros.scatter_add(0, bad.unsqueeze(1).expand({100, 6}), x);
                  }),
                  ::testing::HasSubstr("is out of bounds"));
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_index_traffic
