// SPDX-License-Identifier: Apache-2.0
// Indexing by tensors, over and off the cut dim: feature S26.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/sweep.h"

namespace moonhalo::testing::test_index {
namespace {

using at::Tensor;
using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

Tensor indices(at::IntArrayRef values) { return at::tensor(values, at::kLong); }

TEST(Index, S26_ReadsEqualThoseOfOneDevice) {
  check(
      {
          {"rows",
           [](const Tensor& x) {
             return List{bent(x.index({indices({8, 0, 3, 3, -1})}))};
           },
           kTwice},
          {"columns",
           [](const Tensor& x) {
             return List{bent(bent(x).index({Slice(), indices({6, 0, 2})}))};
           },
           kTwice},
          {"neighbours",
           [](const Tensor& x) {
             return List{bent(x.index({indices({8, 0, 3}), indices({6, 0, 2})}))};
           }},
          {"apart",
           [](const Tensor& x) {
             return List{bent(x.index({indices({8, 0, 3}), Slice(), indices({1, 0, 1})}))};
           },
           kTwice},
          {"table",
           [](const Tensor& x) {
             return List{bent(x.index({Slice(), indices({1, 6, 0, 2}).view({2, 2}), Ellipsis}))};
           }},
          {"broadcast",
           [](const Tensor& x) {
             return List{bent(x.index({indices({8, 0, 3}).view({3, 1}), indices({6, 0})}))};
           }},
          {"by_cut_index",
           [](const Tensor& x) {
             return List{bent(x.index({(x.detach().select(1, 0) * 9).abs().floor().to(at::kLong)}))};
           }},
          {"index_select",
           [](const Tensor& x) {
             return List{bent(x.index_select(0, indices({8, 0, 3, 3}))), x.index_select(1, indices({6, 1}))};
           },
           kTwice},
          {"gather_0",
           [](const Tensor& x) { return List{bent(x.gather(0, (x.detach() * 9).abs().floor().to(at::kLong)))}; },
           kTwice},
          {"gather_1",
           [](const Tensor& x) {
             return List{bent(x.gather(1, indices({1, 0, 6, 5}).view({2, 2, 1})))};
           }},
          {"take_along_dim",
           [](const Tensor& x) {
             return List{bent(at::take_along_dim(x, (x.detach() * 7).abs().floor().to(at::kLong), 1))};
           }},
          {"mask",
           [](const Tensor& x) {
             return List{bent(x.index({x.detach().gt(0.2)})), x.index({x.detach().select(2, 0).gt(0)})};
           }},
          {"masked_select",
           [](const Tensor& x) {
             return List{x.masked_select(x.gt(0.2)), x.gt(0.4).nonzero()};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(Index, IntegersAndBoolsToo) {
  const std::vector<Case> cases{
      {"rows",
       [](const Tensor& x) {
         return List{x.index({indices({8, 0, 3})}), x.index_select(1, indices({5}))};
       },
       kForward},
      {"gather",
       [](const Tensor& x) {
         return List{x.gather(0, indices({8, 0}).view({2, 1, 1}))};
       },
       kForward},
  };
  check(cases, make_tensor({9, 7, 2}, 2, at::kLong));
  check(cases, make_tensor({9, 7, 2}, 2, at::kBool));
}

TEST(Index, S26_WritesEqualThoseOfOneDevice) {
  check(
      {
          {"rows",
           [](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({indices({8, 0, -5})}, x.narrow(0, 2, 3) * 2);
             return List{y * y};
           },
           kTwice},
          {"add",
           [](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({indices({8, 0, 0, 8})}, x.narrow(0, 2, 4), true);
             return List{y * y};
           }},
          {"functional",
           [](const Tensor& x) {
             return List{bent(x.index_put({None, indices({6, 0})}, x.narrow(1, 2, 2) * 2)),
                         bent(x.index_put({indices({6, 0})}, at::scalar_tensor(2.0, at::kDouble)))};
           }},
          {"apart",
           [](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({indices({8, 0}), Slice(), indices({1, 0})}, x.select(2, 0).narrow(0, 3, 2));
             return List{y};
           }},
          {"mask",
           [](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({x.detach().gt(0.2)}, at::scalar_tensor(2.0, at::kDouble));
             y.index_put_({x.detach().select(2, 0).lt(-0.5)}, at::scalar_tensor(-1.0, at::kDouble));
             return List{y};
           }},
          {"index_add",
           [](const Tensor& x) {
             return List{bent(x.index_add(0, indices({8, 0, 8}), x.narrow(0, 1, 3), 2)),
                         bent(x.index_add(1, indices({3}), x.narrow(1, 0, 1)))};
           },
           kTwice},
          {"index_copy",
           [](const Tensor& x) {
             return List{bent(x.index_copy(0, indices({8, 1}), x.narrow(0, 1, 2) * 2))};
           }},
          {"index_fill",
           [](const Tensor& x) {
             return List{bent(x.index_fill(0, indices({8, -9}), 2)), x.index_fill(1, indices({2}), 0)};
           }},
          {"index_add_",
           [](const Tensor& x) {
             Tensor y = bent(x);
             y.index_add_(0, indices({2, 7}), x.narrow(0, 3, 2)).index_fill_(0, indices({3}), 1);
             return List{y * y};
           }},
          {"scatter",
           [](const Tensor& x) {
             return List{bent(x.scatter(0, indices({8, 1}).view({2, 1, 1}).expand({2, 7, 2}), x.narrow(0, 3, 2)))};
           },
           kTwice},
          {"scatter_value",
           [](const Tensor& x) {
             return List{bent(x.scatter(0, indices({8, 1}).view({2, 1, 1}).expand({2, 7, 2}), 2.0))};
           }},
          {"scatter_add",
           [](const Tensor& x) {
             return List{
                 bent(x.scatter_add(1, indices({2, 2, 6}).view({1, 3, 1}).expand({9, 3, 2}), x.narrow(1, 1, 3)))};
           },
           kTwice},
          {"scatter_add_0",
           [](const Tensor& x) {
             Tensor y = bent(x);
             y.scatter_add_(0, (x.detach() * 9).abs().floor().to(at::kLong), x);
             return List{y * y};
           }},
          {"scatter_reduce",
           [](const Tensor& x) {
             return List{at::scatter_reduce(x, 0, indices({8, 8}).view({2, 1, 1}).expand({2, 7, 2}), x.narrow(0, 3, 2),
                                            "amax")};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 3));
}

// Messages along the edges of a graph, added up at its nodes: both cut, and onto tensors that are not.
TEST(Index, S26_EntriesAreAddedWhereTheyLie) {
  const auto rows = [](const Tensor& x, int64_t dim) {
    return (at::arange(x.size(dim), at::kLong) * 3 + 1).remainder(4);
  };
  const auto places = [rows](const Tensor& x, int64_t dim) {
    std::vector<int64_t> along(x.dim(), 1);
    along[dim] = x.size(dim);
    return rows(x, dim).view(along).expand(x.sizes());
  };
  const auto ones = [](at::IntArrayRef shape) { return at::ones(shape, at::kDouble); };
  check(
      {
          {"index_add",
           [=](const Tensor& x) {
             return List{bent(ones({4, 7, 2}).index_add(0, rows(x, 0), x, -2)),
                         bent(ones({9, 4, 2}).index_add(1, rows(x, 1), x)),
                         bent(ones({9, 7, 4}).index_add(2, rows(x, 2), x))};
           },
           kTwice},
          {"scatter_add",
           [=](const Tensor& x) {
             return List{bent(ones({4, 7, 2}).scatter_add(0, places(x, 0), x)),
                         bent(ones({9, 4, 2}).scatter_add(1, places(x, 1), x)),
                         bent(ones({9, 7, 4}).scatter_reduce(2, places(x, 2), x, "sum"))};
           },
           kTwice},
          {"by_cut_indices",
           [=](const Tensor& x) {
             const Tensor of_elements = (x.detach() * 9).abs().floor().to(at::kLong).remainder(4);
             return List{bent(ones({4, 7, 2}).scatter_add(0, of_elements, x)),
                         bent(ones({9, 4, 2}).scatter_add(1, of_elements, x)),
                         bent(ones({4, 7, 2}).index_add(0, of_elements.select(1, 1).select(1, 0), x))};
           }},
          {"shorter",
           [=](const Tensor& x) {
             return List{bent(ones({4, 8, 2}).scatter_add(0, places(x, 0), x)),
                         bent(ones({4, 7, 2}).scatter_add(0, places(x, 0).narrow(0, 0, 5), x)),
                         bent(ones({4, 7, 2}).scatter_add(0, places(x, 0).narrow(1, 1, 3), x)),
                         bent(ones({4, 7, 2}).scatter_reduce(0, places(x, 0), x, "sum", false)),
                         bent(ones({4, 7, 2}).scatter_reduce(0, places(x, 0), x, "mean"))};
           },
           kForward},
          {"onto_cut",
           [=](const Tensor& x) {
             const Tensor y = bent(x).narrow(0, 2, 4), z = bent(x).narrow(1, 2, 4);
             return List{bent(y.index_add(0, rows(x, 0), x)), bent(y.scatter_add(0, places(x, 0), x)),
                         bent(z.index_add(1, rows(x, 1), x))};
           },
           kTwice},
          {"in_place",
           [=](const Tensor& x) {
             Tensor plain = ones({4, 7, 2}), y = x.new_ones({4, 7, 2}), z = bent(x).narrow(0, 2, 4).clone(),
                    w = x.new_ones({9, 4, 2});
             plain.index_add_(0, rows(x, 0), x);
             y.scatter_add_(0, places(x, 0), x).index_add_(0, rows(x, 0), x, 3);
             z.index_add_(0, rows(x, 0), x).scatter_add_(0, places(x, 0), x);
             w.index_add_(1, rows(x, 1), x);
             return List{bent(plain), bent(y), bent(z), bent(w)};
           }},
          {"whole_numbers",
           [=](const Tensor& x) {
             const Tensor counts = (x.detach() * 9).to(at::kLong);
             return List{at::zeros({4, 7, 2}, at::kLong).index_add(0, rows(x, 0), counts),
                         at::zeros({4, 7, 2}, at::kBool).index_add(0, rows(x, 0), counts.gt(0))};
           }},
      },
      make_tensor({9, 7, 2}, 3));
}

// The gradient of x[mask] is written to new zeros of x's shape. They need not lie on every rank.
TEST(Index, S26_GradientsOfPickedElementsStayCut) {
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
    const Tensor expected = torch::autograd::grad({bent(picked(leaf)).sum()}, {leaf})[0];
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(full, mesh, {row.cut}).requires_grad_().mul(1);
      const Tensor loss = bent(picked(x)).sum();
      loss.item();
      mesh->group().reset_stats();
      const Tensor grad = torch::autograd::grad({loss}, {x})[0];
      EXPECT_LE(mesh->group().stats().total().bytes, row.most) << row.name;
      EXPECT_TRUE(spec(grad)->has_cut()) << row.name << spec(grad)->to_string();
      EXPECT_EQ(difference(full_tensor(grad), expected, 1e-12), "") << row.name;
    });
  }
}

// Most elements of a tensor that is cut in an inner dim are picked, or few: all of it moves, or what was picked.
TEST(Index, S26_WhatTravelsForTheGradientOfAMaskedSelect) {
  for (const bool most : {true, false}) {
    std::atomic<int64_t> sent = 0;
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(make_tensor({4, 16, 8}, 1), mesh, {shard(1)}).requires_grad_().mul(1);
      const Tensor loss = bent(x.masked_select(most ? x.detach().lt(0.9) : x.detach().gt(0.98))).sum();
      loss.item();
      mesh->group().reset_stats();
      const Tensor grad = torch::autograd::grad({loss}, {x})[0];
      sent += mesh->group().stats().total().bytes;
      EXPECT_EQ(spec(grad), spec(x));
    });
    EXPECT_LT(sent, most ? 2 * 8 * 4 * 16 * 8 : 8 * 4 * 16 * 8 / 4) << most;
  }
}

// A source of many rows, and what travels where it is added to few: nothing, or the few.
TEST(Index, S26_WhatTravelsToAddEntries) {
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
    // The last row, which rank 1 has, says that it goes where there is none: every rank hears of it.
    for (const int64_t wrong : {4, -1}) {
      const Tensor bad = rows.clone().index_fill_(0, indices({99}), wrong);
      EXPECT_THAT(message_of([&] { zeros.index_add(0, bad, x); }), ::testing::HasSubstr("is out of bounds"));
      EXPECT_THAT(message_of([&] {
                    zeros.scatter_add(0, bad.unsqueeze(1).expand({100, 6}), x);
                  }),
                  ::testing::HasSubstr("is out of bounds"));
    }
  });
}

// Masks beside others and beside indices are gathered, whatever is written and however the mask is held.
TEST(Index, S26_WritesByMasks) {
  const Oracle gathered{.fallback = Fallback::kReplicate},
      gathered_twice{.double_backward = true, .fallback = Fallback::kReplicate};
  const auto every = [](const Tensor& x, int64_t dim, int64_t step) {
    Tensor place = x.detach();
    for (int64_t d = x.dim(); d-- > 0;) place = d == dim ? place : place.select(d, 0);
    return (place * 0 + at::arange(x.size(dim), place.options())).remainder(step).eq(0);
  };
  check(
      {
          {"beside_an_index",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({every(x, 0, 2), indices({1})}, x.narrow(0, 0, 5).select(1, 3));
             y.index_put_({indices({4}), Slice(), every(x, 2, 2)}, x.select(0, 2).narrow(1, 0, 1).t());
             return List{y * y};
           },
           gathered_twice},
          {"two",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({every(x, 0, 3), every(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3));
             return List{y * y};
           },
           gathered_twice},
          {"two_added",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({every(x, 0, 3), every(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3), true);
             return List{y * y};
           },
           gathered},
          {"two_functional",
           [=](const Tensor& x) {
             return List{bent(x.index_put({every(x, 0, 3), every(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3)))};
           },
           gathered_twice},
          {"read_two",
           [=](const Tensor& x) {
             return List{bent(x.index({every(x, 0, 3), every(x, 1, 3)})),
                         bent(x.index({every(x, 0, 2), indices({1})}))};
           },
           gathered_twice},
          {"of_no_dims",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({Tensor(x.detach().sum().lt(1e9))}, x.narrow(0, 2, 1) * 2);
             y.index_put_({Slice(), x.detach().sum().gt(1e9)}, at::scalar_tensor(5.0, at::kDouble));
             return List{y * y, x.index({x.detach().sum().lt(1e9)})};
           },
           gathered},
          {"bytes",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.index_put_({every(x, 0, 3).to(at::kByte), every(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3));
             return List{y * y};
           },
           gathered},
          {"values_of_the_mask",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             const Tensor mask = x.detach().gt(0.2), rows = every(x, 0, 2), columns = every(x, 1, 2);
             y.index_put_({mask}, x.index({mask}) * 2);
             y.index_put_({rows}, x.index({rows}) * 3);
             y.index_put_({Slice(), columns}, x.index({Slice(), columns}) * 2);
             y.index_put_({Slice(), Slice(), every(x, 2, 2)}, x.sum(2, true));
             return List{y * y};
           },
           gathered_twice},
          {"of_sums",
           [=](const Tensor& x) {
             Tensor y = x.sum(0), z = x.sum(1);
             y.index_put_({every(x, 1, 3), every(x, 2, 2)}, x.select(0, 1).select(1, 1).narrow(0, 0, 3));
             y.index_put_({every(x, 1, 2)}, x.select(0, 1).narrow(0, 0, 4));
             z.index_put_({every(x, 0, 3), indices({1})}, x.select(1, 1).select(1, 1).narrow(0, 0, 3));
             return List{y * y, z * z};
           },
           gathered},
          {"through_views",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.transpose(0, 1).index_put_({every(x, 1, 3), every(x, 0, 3)}, x.select(0, 0).narrow(0, 2, 3));
             y.select(0, 3).index_put_({every(x, 1, 2), indices({1})}, x.select(0, 1).narrow(0, 0, 4).select(1, 0));
             y.narrow(0, 1, 4).index_put_({Slice(), every(x, 1, 2), indices({0})},
                                          x.narrow(0, 0, 4).narrow(1, 0, 4).select(2, 1));
             return List{y * y};
           },
           gathered},
          {"masked_scatter",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.masked_scatter_(every(x, 0, 2).view({9, 1, 1}), x.narrow(0, 0, 6));
             y.select(0, 3).masked_scatter_(every(x, 1, 2).view({7, 1}), x.select(2, 0));
             return List{y * y, y.masked_scatter(x.detach().gt(0), x * 2)};
           },
           gathered},
          {"masked_fill",
           [=](const Tensor& x) {
             Tensor y = bent(x);
             y.masked_fill_(every(x, 1, 2).view({7, 1}), x.sum());
             y.select(1, 3).masked_fill_(every(x, 0, 2).view({9, 1}), 2);
             return List{y * y};
           },
           gathered},
      },
      make_tensor({9, 7, 2}, 5));
}

TEST(Index, RowsThatDoNotExistAreRefusedOnEveryRank) {
  struct Wrong {
    const char* name;
    std::function<void(const Tensor&)> run;
  };
  const Wrong cases[] = {
      {"index",
       [](const Tensor& x) {
         x.index({indices({0, 9})});
       }},
      {"index_put_",
       [](const Tensor& x) {
         Tensor(x).index_put_({indices({-10})}, at::ones({1, 2}, at::kDouble));
       }},
      {"index_select", [](const Tensor& x) { x.index_select(0, indices({-1})); }},
      {"gather",
       [](const Tensor& x) {
         x.gather(0, indices({9, 0}).view({1, 2}));
       }},
      {"embedding", [](const Tensor& x) { at::embedding(x, indices({12})); }},
  };
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({9, 2}, 7), mesh, {shard(0)});
    for (const Wrong& c : cases) {
      const std::string text = message_of([&] { c.run(x); });
      EXPECT_NE(text.find("is out of bounds for dimension 0 with size 9"), std::string::npos) << c.name << ": " << text;
    }
  });
}

TEST(SweepIndex, S26_Take) {
  const Tensor m = make_tensor({5, 7}, 1), places = indices({3, 34, 0, 12, 7, -1}).view({2, 3});
  sweep({
      row("take_places", {m, places}, [](X x, X i) { return x.take(i); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_index
