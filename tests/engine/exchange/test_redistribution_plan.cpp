// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>
#include <tuple>

#include "moonhalo/engine/exchange/interval_map.h"
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

// Draws layouts of up to three mesh dims, with uneven and empty blocks.
class DrawnLayouts {
 public:
  std::vector<Placement> draw(const DeviceMesh& mesh, at::IntArrayRef shape) {
    std::vector<Placement> placements;
    std::vector<int64_t> blocks(shape.size(), 1);
    const int64_t one_op = std::max<int64_t>(0, below(6) - 3);
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const int64_t kind = below(6), dim = below(static_cast<int64_t>(shape.size()));
      if (kind < 2) {
        placements.push_back(replicate());
      } else if (kind < 4) {
        placements.push_back(partial(std::array{ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}[one_op]));
      } else {
        blocks[dim] *= mesh.size(m);
        placements.push_back(below(2) == 0 ? shard(dim) : shard(dim, sizes(shape[dim], blocks[dim])));
      }
    }
    return placements;
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(end)); }

 private:
  std::vector<int64_t> sizes(int64_t extent, int64_t blocks) {
    std::vector<int64_t> drawn(blocks, 0);
    for (int64_t row = 0; row < extent; ++row) ++drawn[below(blocks)];
    return drawn;
  }
  std::mt19937 random_{3};
};

IntervalMap map_among(const RedistributionPlan& plan, const std::vector<int64_t>& same_coordinates) {
  return {Ownership{plan.from->mesh(), plan.from->global_shape(), [&](int64_t r) { return plan.box_after_reduce[r]; },
                    [&](int64_t owner, int64_t user) { return plan.serves(owner, user); }, same_coordinates},
          [&](int64_t r) { return requests_for(plan.required_box[r]); }};
}

// Describes the map as this rank has it.
std::string text_of(const IntervalMap& map) {
  std::ostringstream text;
  text << at::IntArrayRef(map.needed_shape()) << map.exchanges() << " sends " << map.elements_sent();
  for (const auto& [peer, source, length] : map.received())
    text << " from " << peer << at::IntArrayRef(source) << at::IntArrayRef(length);
  return text.str();
}

// Ranks of which the plan says that none serves another do not: also between two meshes.
TEST(RedistributionPlan, LooksOnlyAtRanksThatServeEachOther) {
  const std::vector<std::vector<int64_t>> meshes = {{12}, {4, 3}, {2, 6}, {3, 2, 2}, {2, 1, 6}};
  DrawnLayouts drawn;
  int64_t staying = 0, moving = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    const auto world = make_fake_communicator(static_cast<int>(drawn.below(12)), 12);
    const auto& shape_of_from = meshes[drawn.below(5)];
    const MeshPtr mesh = init_device_mesh(*world, "cpu", shape_of_from);
    const MeshPtr target = drawn.below(2) == 0 ? mesh : init_device_mesh(*world, "cpu", meshes[drawn.below(5)]);
    const std::vector<int64_t> shape = {drawn.below(14), 1 + drawn.below(13)};
    const SpecPtr from = make_spec(mesh, shape, drawn.draw(*mesh, shape));
    const RedistributionPlan plan = plan_redistribution(from, make_spec(target, shape, drawn.draw(*target, shape)));
    if (plan.keeps_blocks) continue;

    const IntervalMap chosen = map_among(plan, plan.same_coordinates()), all = map_among(plan, {});

    EXPECT_EQ(text_of(chosen), text_of(all)) << plan.to_string();
    if (!plan.partial_started.empty()) EXPECT_EQ(plan.stays, !all.exchanges()) << plan.to_string();
    (plan.stays ? staying : moving) += !plan.partial_started.empty();
  }
  EXPECT_GT(staying, 100);
  EXPECT_GT(moving, 100);
}

// A plan asks each of 4,096 ranks a few times, not each pair of them.
TEST(RedistributionPlan, LooksAtFewPairsOfManyRanks) {
  const auto world = make_fake_communicator(65, 4096);
  const MeshPtr line = init_device_mesh(*world, "cpu", {4096}), square = init_device_mesh(*world, "cpu", {64, 64});
  const MeshPtr pairs = init_device_mesh(*world, "cpu", {2, 2048});
  const std::vector<int64_t> shape = {8192};
  std::vector<int64_t> uneven(4096, 2);
  for (int64_t i = 0; i < 4096; i += 2) uneven[i] = 0, uneven[i + 1] = 4;
  const std::tuple<const char*, SpecPtr, SpecPtr> cases[] = {
      {"blocks", make_spec(line, shape, {shard(0)}), make_spec(line, shape, {partial()})},
      {"uneven blocks", make_spec(line, shape, {shard(0, uneven)}), make_spec(line, shape, {partial()})},
      {"copies", make_spec(square, shape, {replicate(), replicate()}),
       make_spec(square, shape, {partial(), partial()})},
      {"blocks of a square", make_spec(square, shape, {shard(0), shard(0)}),
       make_spec(square, shape, {partial(), partial()})},
      {"one dim of a square", make_spec(square, shape, {shard(0), shard(0)}),
       make_spec(square, shape, {shard(0), partial()})},
      {"the last rank receives", make_spec(pairs, shape, {shard(0), shard(0)}),
       make_spec(pairs, shape, {shard(0, {4095, 4097}), partial()})},
      {"two meshes", make_spec(square, shape, {shard(0), shard(0)}), make_spec(line, shape, {partial()})},
      {"sums on two meshes", make_spec(square, shape, {partial(), shard(0)}), make_spec(line, shape, {partial()})}};
  for (const auto& [name, from, to] : cases) {
    const RedistributionPlan plan = plan_redistribution(from, to);
    int64_t asked = 0;
    const auto serves = [&](int64_t owner, int64_t user) {
      ++asked;
      return plan.serves(owner, user);
    };

    const IntervalMap map(Ownership{from->mesh(), shape, [&](int64_t r) { return plan.box_after_reduce[r]; }, serves,
                                    plan.same_coordinates()},
                          [&](int64_t r) { return requests_for(plan.required_box[r]); });

    EXPECT_LE(asked, 5 * 4096) << name;
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_redistribution_plan
