// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution_plan.h"

#include <gmock/gmock.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_redistribution_plan {
namespace {

struct PlanCase {
  const char* name;
  std::vector<int64_t> mesh, shape;
  std::vector<Placement> from, to;
  const char* lines;  // after the two specs
};

const PlanCase kCases[] = {
    {"uneven_blocks_move",
     {3},
     {7, 2},
     {shard(0, {5, 0, 2})},
     {shard(0, {3, 2, 2})},
     "\nrank 0 [0:5, 0:2] -> [0:3, 0:2] from 0"
     "\nrank 1 [5:5, 0:2] -> [3:5, 0:2] from 0"
     "\nrank 2 [5:7, 0:2] -> [5:7, 0:2] from 2"},
    {"sums_are_made_where_they_are_wanted",
     {2, 2},
     {5, 3},
     {partial(), shard(0, {1, 4})},
     {shard(1), replicate()},
     "\nreduce_scatter over dim_0 (sum)"
     "\nrank 0 [0:1, 0:2] -> [0:5, 0:2] from 0, 1"
     "\nrank 1 [1:5, 0:2] -> [0:5, 0:2] from 0, 1"
     "\nrank 2 [0:1, 2:3] -> [0:5, 2:3] from 2, 3"
     "\nrank 3 [1:5, 2:3] -> [0:5, 2:3] from 2, 3"},
    {"one_all_reduce_over_the_mesh",
     {2, 2},
     {5, 3},
     {partial(), partial()},
     {replicate(), replicate()},
     "\nall_reduce over the mesh (sum)"
     "\nrank 0 [0:5, 0:3]\nrank 1 [0:5, 0:3]\nrank 2 [0:5, 0:3]\nrank 3 [0:5, 0:3]"},
    {"maxima_of_sums_are_reduced_last",
     {2, 2},
     {5, 1},
     {partial(ReduceOp::kMax), partial()},
     {replicate(), shard(0, {4, 1})},
     "\nreduce_scatter over dim_1 (sum) dim_0 (max)"
     "\nrank 0 [0:2, 0:1] -> [0:4, 0:1] from 0, 2"
     "\nrank 1 [4:5, 0:1] -> [4:5, 0:1] from 1"
     "\nrank 2 [2:4, 0:1] -> [0:4, 0:1] from 0, 2"
     "\nrank 3 [5:5, 0:1] -> [4:5, 0:1] from 1"},
    {"a_partial_begins",
     {2},
     {3, 2},
     {replicate()},
     {partial()},
     "\nrank 0 [0:3, 0:2] -> [0:3, 0:2] from 0"
     "\nrank 1 [0:3, 0:2] -> [0:3, 0:2] from none"},
};

TEST(RedistributionPlan, PrintsReductionsAndMovesAlikeOnEveryRank) {
  for (const PlanCase& row : kCases) {
    on_mesh(row.mesh, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(row.name);
      const SpecPtr from = make_spec(mesh, row.shape, row.from), to = make_spec(mesh, row.shape, row.to);

      const std::string text = plan_redistribution(from, to).to_string();

      EXPECT_EQ(text, "from " + from->to_string() + "\nto   " + to->to_string() + row.lines);
    });
  }
}

TEST(RedistributionPlan, ClassifiesMeshDims) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const auto plan = [&](const std::vector<Placement>& from, const std::vector<Placement>& to) {
      return plan_redistribution(make_spec(mesh, {6, 4}, from), make_spec(mesh, {6, 4}, to));
    };

    const RedistributionPlan kept = plan({partial(), shard(0)}, {partial(), replicate()});
    const RedistributionPlan started = plan({shard(0), replicate()}, {shard(0), partial()});
    const RedistributionPlan seeded =
        plan({replicate(), replicate()}, {partial(ReduceOp::kMax), partial(ReduceOp::kSum)});

    EXPECT_EQ(kept.partial_kept, std::vector<int64_t>{0});
    EXPECT_TRUE(kept.partial_reduced.empty());
    EXPECT_EQ(started.partial_started, std::vector<int64_t>{1});
    EXPECT_EQ(started.replicated_dims, std::vector<int64_t>{1});
    EXPECT_TRUE(started.moves);
    EXPECT_EQ(seeded.partial_seeded, (std::vector<int64_t>{0, 1}));
    EXPECT_FALSE(seeded.moves);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_redistribution_plan
