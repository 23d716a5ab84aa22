// SPDX-License-Identifier: Apache-2.0
// Programs that go wrong on uneven blocks where averages are averaged, sizes are taken to be equal or views are
// merged, and what may be sent where a dim that is cut is moved or picked from.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/fewest.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_uneven_blocks {
namespace {

using at::Tensor;

// Nine rows.
const std::vector<std::vector<int64_t>> kRows = {{5, 4}, {3, 6}, {4, 0, 5}, {1, 5, 1, 2}};

Input rows_of(const Tensor& full, const std::vector<int64_t>& sizes) { return {full, {shard(0, sizes)}}; }

TEST(UnevenBlocks, MseAndL1LossInEveryReduction) {
  for (const auto& sizes : kRows) {
    for (const int64_t how : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      SCOPED_TRACE(at::str(sizes, " reduction ", how));
      const auto count = static_cast<int64_t>(sizes.size());
      expect_same_as_plain({count}, {rows_of(make_tensor({9, 4}, 1), sizes), rows_of(make_tensor({9, 4}, 2), sizes)},
                           [&](const List& t) {
                             return List{at::mse_loss(t[0], t[1], how), at::l1_loss(t[0], t[1], how)};
                           },
                           {.double_backward = how != at::Reduction::None});
    }
  }
}

TEST(UnevenBlocks, AlongTheCutDim) {
  const std::vector<Case> cases = {
      {"std",
       [](const Tensor& x) {
         return List{x.std(), x.std(0), x.var(1, false)};
       },
       kTwice},
      {"mean",
       [](const Tensor& x) {
         return List{x.square().mean(), x.square().mean(0)};
       },
       kTwice},
      {"softmax",
       [](const Tensor& x) {
         return List{x.softmax(0), x.log_softmax(0), x.softmax(1)};
       },
       kTwice},
      {"cat",
       [](const Tensor& x) {
         return List{at::cat({x, x.sin()}), at::cat({x, x.sin()}, 1)};
       },
       kTwice},
      {"slice",
       [](const Tensor& x) {
         return List{x.slice(0, 2, 8).square(), x.slice(0, 1, 9, 3).square(), x.narrow(0, 4, 1)};
       },
       kTwice},
      {"cumsum",
       [](const Tensor& x) {
         return List{x.cumsum(0), x.square().cumsum(1)};
       },
       kTwice},
      {"topk",
       [](const Tensor& x) {
         const auto [values, places] = x.topk(4, 0);
         return List{values.square(), places, std::get<0>(x.topk(2, 1, false))};
       },
       kTwice},
      {"adaptive_pool",
       [](const Tensor& x) {
         const Tensor field = x.t().unsqueeze(0);
         return List{at::adaptive_avg_pool1d(field, 1).square(), at::adaptive_avg_pool1d(field, 4)};
       },
       kTwice},
      {"flatten",
       [](const Tensor& x) {
         const Tensor cube = x.square().unsqueeze(1).expand({9, 3, 4});
         return List{cube.flatten(), cube.flatten(0, 1), cube.flatten(1), x.t().flatten()};
       },
       kTwice},
  };
  for (const auto& sizes : kRows) {
    check(cases, make_tensor({9, 4}, 3), {{"rows", {static_cast<int64_t>(sizes.size())}, {shard(0, sizes)}}});
  }
}

// The mask is the field's own, or has one value for each row.
TEST(UnevenBlocks, MaskedReductionsFollowOneAnother) {
  const auto loss = [](const List& t) {
    const Tensor error = (t[2] * (t[0] - t[1]).pow(2)).sum(1) / t[2].sum();
    return List{error.mean(), error, (t[2] * (t[0] - t[1]).pow(2)).sum(1) / t[2].sum(1)};
  };
  const Tensor output = make_tensor({2, 401, 5}, 1), target = make_tensor({2, 401, 5}, 2);
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {201, 200}, {1, 400}, {150, 0, 251}, {134, 134, 133}, {101, 100, 100, 100}, {0, 399, 2, 0}}) {
    const std::vector<Placement> cut{shard(1, sizes)};
    for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 401, 5}, {1, 401, 1}}) {
      SCOPED_TRACE(at::str(sizes, " mask ", shape));
      const Tensor mask = make_tensor(shape, 3, at::kBool).to(at::kDouble);
      const std::vector<int64_t> mesh{static_cast<int64_t>(sizes.size())};
      expect_same_as_plain(mesh, {{output, cut}, {target, cut}, {mask, cut, false}}, loss, kTwice);
      expect_same_as_plain(mesh, {{output, cut}, {target}, {mask, {}, false, true}}, loss);
    }
  }
}

// Every dim of [2, 5, 4, 6]: the inner ones are those that a product merges.
TEST(UnevenBlocks, ProductsOfFourDims) {
  const std::vector<std::pair<int64_t, std::vector<int64_t>>> cuts = {{1, {1, 4}}, {1, {2, 0, 3}}, {1, {2, 1, 1, 1}},
                                                                      {2, {3, 1}}, {2, {1, 3, 0}}, {3, {5, 1}}};
  for (const auto& [dim, sizes] : cuts) {
    SCOPED_TRACE(shard(dim, sizes).to_string());
    expect_same_as_plain(
        {static_cast<int64_t>(sizes.size())},
        {{make_tensor({2, 5, 4, 6}, 1), {shard(dim, sizes)}},
         {make_tensor({3, 6}, 2)},
         {make_tensor({3}, 3), {}, true, true}},
        [](const List& t) {
          const Tensor turned = t[0].transpose(2, 3);
          return List{at::linear(t[0], t[1], t[2]), t[0].matmul(t[1].t()), t[0].matmul(turned), turned.matmul(t[0])};
        },
        kTwice);
  }
}

// Bytes

struct Moved {
  const char* name;
  std::function<Tensor(const Tensor&)> run;
  /// The row of the input that row `row` of the result is.
  std::function<int64_t(int64_t row)> source;
};

// Rows that `rank` owns and other ranks' blocks of the result are made of, each once for every rank that lacks it.
int64_t rows_to_send(const ShardSpec& from, const ShardSpec& to, int64_t rank, const Moved& moved) {
  const Interval owned = from.block_range(0, rank);
  int64_t count = 0;
  for (int64_t other = 0; other < from.mesh()->size(0); ++other) {
    const auto [first, last] = to.block_range(0, other);
    for (int64_t row = first; other != rank && row < last; ++row) {
      count += owned.contains(moved.source(row));
    }
  }
  return count;
}

TEST(UnevenBlocks, OnlyRowsWithANewOwnerTravel) {
  const Moved cases[] = {
      {"roll", [](const Tensor& x) { return x.roll(2, 0); }, [](int64_t row) { return (row + 7) % 9; }},
      {"roll_back",
       [](const Tensor& x) {
         return x.roll({-1, 1}, {0, 1});
       },
       [](int64_t row) { return (row + 1) % 9; }},
      {"roll_round", [](const Tensor& x) { return x.roll(18, 0); }, [](int64_t row) { return row; }},
      {"flip",
       [](const Tensor& x) {
         return x.flip({0, 1});
       },
       [](int64_t row) { return 8 - row; }},
      {"rot90",
       [](const Tensor& x) {
         return x.rot90(2, {0, 1});
       },
       [](int64_t row) { return 8 - row; }},
  };
  for (const auto& sizes : kRows) {
    on_mesh({static_cast<int64_t>(sizes.size())}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(make_tensor({9, 4}, 1), mesh, {shard(0, sizes)});
      for (const Moved& moved : cases) {
        mesh->group().reset_stats();
        const Tensor y = moved.run(x);
        const int64_t bytes = mesh->group().stats().total().bytes;
        const int64_t rows = rows_to_send(*spec(x), *spec(y), mesh->rank(), moved);
        EXPECT_EQ(bytes, rows * 4 * 8) << moved.name << " of " << at::str(sizes);
        EXPECT_TRUE(spec(y)->is_cut(0)) << moved.name;
      }
    });
  }
}

// A row goes from its owner to each other rank. Several stay addends until they are required, and then cost what the
// fewest bytes of a sum cost; forward and backward.
TEST(UnevenBlocks, PickingRowsGathersNothing) {
  for (const auto& sizes : kRows) {
    on_mesh({static_cast<int64_t>(sizes.size())}, [&](const MeshPtr& mesh) {
      const int64_t ranks = mesh->size(0);
      Tensor x = shard_of(make_tensor({9, 4}, 1), mesh, {shard(0, sizes)}).requires_grad_();
      const auto sent = [&] { return mesh->group().stats().total().bytes; };
      for (int64_t row = 0; row < 9; ++row) {
        const auto [begin, end] = spec(x)->block_range(0, mesh->rank());
        mesh->group().reset_stats();
        const Tensor y = x.select(0, row);
        EXPECT_EQ(sent(), row >= begin && row < end ? (ranks - 1) * 4 * 8 : 0) << "row " << row;
        mesh->group().reset_stats();
        y.sum().backward();
        EXPECT_EQ(sent(), 0) << "gradient of row " << row;
      }
      mesh->group().reset_stats();
      const Tensor y = x.index_select(0, at::tensor({8, 0, 4, 4}));
      EXPECT_LE(sent(), 4 * 4 * 8) << "the rows that are named";
      mesh->group().reset_stats();
      std::vector<int64_t> there(ranks);
      for (int64_t r = 0; r < ranks; ++r) there[r] = r;
      const SpecPtr whole = replicated(mesh, y.sizes());
      const int64_t fewest = fewest_elements(*spec(y), *whole, there);
      redistribute(y, {replicate()});
      at::Tensor all = at::full({1}, sent(), at::kLong);
      mesh->group().all_reduce(all);
      EXPECT_LE(all.item<int64_t>(), fewest * 8);
      mesh->group().reset_stats();
      y.sum().backward();
      EXPECT_EQ(sent(), 0);
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_uneven_blocks
