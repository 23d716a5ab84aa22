// SPDX-License-Identifier: Apache-2.0
// Statistics over dims that several mesh dims cut, and where numbers of two bytes or integers leave their range: S01
// S12.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_range_and_cubes {
namespace {

const std::vector<PlacementCase> kCubes = {
    {"rows_columns_replicated", {2, 2, 2}, {shard(0), shard(1), replicate()}},
    {"replicated_between", {2, 2, 2}, {shard(0, {1, 4}), replicate(), shard(1, {5, 1})}},
    {"one_dim_cut_twice", {2, 2, 2}, {shard(0), shard(0), shard(1)}},
    {"empty_blocks", {2, 2, 2}, {shard(0, {0, 5}), shard(1, {6, 0}), shard(2)}},
    {"partial_between", {2, 2, 2}, {shard(0), partial(), shard(1)}},
};

TEST(StatisticsOfCubes, S12_OverDimsThatTwoOfThreeMeshDimsCut) {
  const std::vector<int64_t> dims{0, 1};
  const at::OptionalIntArrayRef some(dims);
  check({{"std", [=](const at::Tensor& x) { return List{at::std(x, some, true, false)}; }},
         {"var_mean",
          [=](const at::Tensor& x) {
            const auto [var, mean] = at::var_mean(x, some, false, true);
            return List{var, mean};
          }},
         {"norm", [=](const at::Tensor& x) { return List{at::linalg_vector_norm(x, 3, some)}; }},
         {"logsumexp", [=](const at::Tensor& x) { return List{at::logsumexp(x, dims, false)}; }},
         {"softmax",
          [=](const at::Tensor& x) {
            return List{x.softmax(0), x.log_softmax(1)};
          }},
         {"mean",
          [=](const at::Tensor& x) {
            return List{x.mean(some), x.amax(dims), x.prod(1)};
          }}},
        make_tensor({5, 6, 4}, 1), kCubes);
}

TEST(StatisticsInHalf, NormsAndVariancesStayInRange) {
  const at::Tensor large = at::full({200}, 300, at::kHalf);                // the sum of squares is 1.8e7
  const at::Tensor offset = (make_tensor({4000}, 3) + 100).to(at::kHalf);  // the sum is 4e5
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(large, mesh, {shard(0, {150, 50})}), y = shard_of(offset, mesh, {shard(0)});

    EXPECT_EQ(difference(full_tensor(x.norm()), large.norm(), 1e-2), "");
    EXPECT_EQ(difference(full_tensor(at::linalg_vector_norm(x, 3)).to(at::kDouble),
                         at::linalg_vector_norm(large.to(at::kDouble), 3), 1e-2),
              "");
    const at::Tensor exact = at::var(offset.to(at::kDouble), 0);
    EXPECT_EQ(difference(full_tensor(at::var(y, 0)).to(at::kDouble), exact, 1e-2), "");
    EXPECT_EQ(difference(full_tensor(at::std(y, 0)).to(at::kDouble), exact.sqrt(), 1e-2), "");
  });
}

TEST(ScansOfPartials, AreMadeOfSumsBeforeTheyBecomeIntegers) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor addend = at::full({6}, 1.5, at::kDouble);
    const at::Tensor x = from_local(addend, make_spec(mesh, {6}, {partial()}));
    EXPECT_EQ(difference(full_tensor(x.cumsum(0, at::kLong)), (addend * 2).cumsum(0, at::kLong), 0), "");
  });
}

TEST(Search, BoundariesAndTheirSorterMayBothBeCut) {
  const at::Tensor edges = make_tensor({9}, 4), values = make_tensor({7}, 5), order = edges.argsort();
  const at::Tensor expected = at::searchsorted(edges, values, false, false, "left", order);
  for (const bool cut_values : {false, true}) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const at::Tensor e = shard_of(edges, mesh, {shard(0)}), o = shard_of(order, mesh, {shard(0, {1, 8, 0})}),
                       v = shard_of(values, mesh, {cut_values ? shard(0) : replicate()});
      EXPECT_EQ(difference(full_tensor(at::searchsorted(e, v, false, false, "left", o)), expected, 0), "");
    });
  }
}

TEST(Bincount, HasThePlainResultsDtype) {
  const at::Tensor n = at::tensor({0, 1, 2, 1, 3, 0}, at::kLong);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong}) {
      const at::Tensor weights = make_tensor({6}, 2, dtype), expected = at::bincount(n, weights);
      const at::Tensor counts = at::bincount(shard_of(n, mesh, {shard(0)}), shard_of(weights, mesh, {shard(0)}));
      EXPECT_EQ(counts.scalar_type(), expected.scalar_type());
      EXPECT_EQ(difference(full_tensor(counts), expected, 1e-6), "");
    }
  });
}

TEST(RandomSamplers, OfTinyShapesArePositive) {
  const at::Tensor full = at::full({64, 3}, 1e-6, at::kDouble);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(full, mesh, {shard(0)});
    EXPECT_TRUE(full_tensor(at::_standard_gamma(x)).gt(0).all().item<bool>());
    const at::Tensor parts = full_tensor(at::_sample_dirichlet(x));
    EXPECT_TRUE(parts.isfinite().all().item<bool>());
    EXPECT_EQ(difference(parts.sum(1), at::ones({64}, at::kDouble), 1e-12), "");
  });
}

// Group norm where some ranks hold no sample, and every rank holds whole channels.
TEST(GroupNormOfEmptyBatches, ValuesAndCut) {
  const at::Tensor full = make_tensor({5, 4, 3}, 1), weight = make_tensor({4}, 2), bias = make_tensor({4}, 3);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0, 2, 3}, {5, 0, 0}, {2, 0, 3}}) {
    expect_same_as_plain({3}, {{full, {shard(0, sizes)}}, {weight}, {bias}},
                         [](const List& t) { return List{at::group_norm(t[0], 2, t[1], t[2])}; });
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const at::Tensor y = at::group_norm(shard_of(full, mesh, {shard(0, sizes)}), 2, weight, bias);
      EXPECT_EQ(spec(y)->cut(0).sizes, sizes) << spec(y)->to_string();
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_range_and_cubes
