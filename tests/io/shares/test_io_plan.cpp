// SPDX-License-Identifier: Apache-2.0
// Plans in one process: every chunk has one reader, and nothing is forgotten.
#include <gtest/gtest.h>

#include <map>

#include "moonhalo/io/shares/io_plan.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_io_plan {
namespace {

struct PlanCase {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Slice> slices;
  std::vector<int64_t> chunk;
  std::vector<Placement> placements;
  bool shared;
  BlockHalo halo = {};
};

const std::vector<PlanCase>& cases() {
  static const std::vector<PlanCase> all = {
      {"whole steps cut in height", {4}, {{0, 64}, {0, 16}, {0, 8}}, {1, 16, 8}, {shard(1)}, true},
      {"whole steps cut in width, unevenly", {3}, {{0, 7}, {0, 4}, {0, 9}}, {1, 4, 9}, {shard(2, {5, 1, 3})}, true},
      {"whole steps cut in time", {4}, {{0, 64}, {0, 16}, {0, 8}}, {1, 16, 8}, {shard(0)}, false},
      {"one step for four ranks", {4}, {{0, 1}, {0, 16}, {0, 8}}, {1, 16, 8}, {shard(1)}, true},
      {"tiles wider than a block", {2, 2}, {{0, 5}, {0, 12}, {0, 12}}, {1, 12, 5}, {shard(1), shard(2)}, true},
      {"tiles at the border of blocks", {4}, {{0, 3}, {0, 40}, {0, 6}}, {1, 9, 6}, {shard(1)}, true},
      {"tiles inside blocks", {2}, {{0, 3}, {0, 40}, {0, 6}}, {1, 4, 6}, {shard(1)}, false},
      {"an empty block", {3}, {{0, 9}, {0, 2}}, {2, 2}, {shard(1)}, true},
      {"blocks of no rows before others", {4}, {{0, 9}, {0, 6}}, {2, 3}, {shard(1, {0, 4, 0, 2})}, true},
      {"replicas", {2, 2}, {{0, 9}, {0, 8}}, {2, 4}, {replicate(), shard(0)}, true},
      {"replicated", {3}, {{0, 4}, {0, 3}}, {3, 2}, {replicate()}, true},
      {"more ranks than chunks", {5}, {{0, 7}}, {4}, {shard(0)}, true},
      {"a wide halo", {4}, {{0, 6}, {0, 16}}, {2, 4}, {shard(1)}, true, {{0, 5}, {0, 9}}},
      {"strides", {3}, {{1, 5, 3}, {2, 9, 2}}, {2, 20}, {shard(1)}, true},
      {"strides longer than chunks", {2}, {{1, 5, 7}, {0, 10}}, {2, 10}, {shard(1)}, true},
      {"an index", {2}, {{3, 1, 1, true}, {0, 9}, {4, 5}}, {2, 9, 3}, {shard(0)}, true},
      {"one dim cut twice", {2, 2}, {{0, 3}, {0, 11}}, {1, 11}, {shard(1), shard(1)}, true},
      {"nothing", {2}, {{0, 0}, {0, 4}}, {1, 4}, {shard(1)}, false},
  };
  return all;
}

ChunkGrid grid_of(const PlanCase& c) {
  ChunkGrid grid;
  for (size_t dim = 0; dim < c.slices.size(); ++dim) grid.emplace_back(c.slices[dim], c.chunk[dim]);
  return grid;
}

/// Plans as every rank does, with large elements so that there are several rounds, or small ones.
void with_plans(const PlanCase& c, size_t element_size, const std::function<void(const IoPlan&, int64_t ranks)>& body) {
  int64_t ranks = 1;
  for (const int64_t size : c.mesh) ranks *= size;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const CommunicatorPtr world = make_fake_communicator(static_cast<int>(rank), static_cast<int>(ranks));
    const SpecPtr spec = make_spec(init_device_mesh(*world, "cpu", c.mesh), sliced_shape(c.slices), c.placements);
    body(IoPlan(grid_of(c), element_size, spec, c.halo), ranks);
  }
}

void each_cell(const Box& cells, const std::function<void(std::vector<int64_t>)>& body) {
  for (int64_t i = 0; i < cells.numel(); ++i) {
    std::vector<int64_t> cell;
    int64_t rest = i;
    for (int64_t dim = cells.ndim(); dim-- > 0; rest /= cells[dim].size())
      cell.insert(cell.begin(), cells[dim].begin + rest % cells[dim].size());
    body(cell);
  }
}

TEST(ChunkCells, DivideASelectionAsItsElementsLie) {
  for (const int64_t chunk : {1, 3, 4, 50}) {
    for (const Slice slice : {Slice{0, 20}, {3, 9}, {2, 6, 3}, {5, 4, 4}, {1, 3, 9}, {7, 1}, {0, 0}}) {
      const ChunkCells cells(slice, chunk);
      int64_t cell = -1, before = -1;
      for (int64_t row = 0; row < slice.count; ++row) {
        const int64_t here = (slice.begin + row * slice.step) / chunk;
        if (here != before) ++cell;
        before = here;
        EXPECT_EQ(cells.chunk(cell), here);
        EXPECT_TRUE(cells.rows(cell).contains(row));
        EXPECT_EQ(cells.cells({row, row + 1}), (Interval{cell, cell + 1}));
      }
      EXPECT_EQ(cells.count(), cell + 1);
      EXPECT_EQ(cells.rows({0, cells.count()}), (Interval{0, slice.count}));
    }
  }
}

TEST(IoPlan, S18EveryChunkHasOneReader) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    for (const size_t element_size : {size_t{4}, size_t{1} << 19}) {
      std::map<std::vector<int64_t>, int64_t> first;  // as rank 0 plans it
      with_plans(c, element_size, [&](const IoPlan& plan, int64_t ranks) {
        EXPECT_EQ(plan.shared(), c.shared);
        if (!plan.shared()) return;
        std::map<std::vector<int64_t>, int64_t> readers;
        for (int64_t round = 0; round < plan.rounds(); ++round) {
          for (int64_t rank = 0; rank < ranks; ++rank) {
            each_cell(plan.cells_read(round, rank), [&](const std::vector<int64_t>& cell) {
              EXPECT_TRUE(readers.emplace(cell, rank).second) << "twice";
              const Box all = plan.cells_of_round(round);
              for (size_t dim = 0; dim < cell.size(); ++dim)
                EXPECT_TRUE(all[static_cast<int64_t>(dim)].contains(cell[dim]));
            });
          }
        }
        EXPECT_EQ(static_cast<int64_t>(readers.size()), all_cells(plan.grid()).numel());
        if (first.empty()) first = readers;
        EXPECT_EQ(first, readers) << "ranks plan differently";
      });
    }
  }
}

TEST(IoPlan, NeedsAreTheBlocksWithTheirHalo) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    with_plans(c, size_t{1} << 19, [&](const IoPlan& plan, int64_t ranks) {
      int64_t elements = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t in_rounds = 0;
        for (int64_t round = 0; round < plan.rounds(); ++round) in_rounds += plan.needs(round, rank).numel();
        EXPECT_EQ(in_rounds, plan.needs(rank).numel());
        elements += in_rounds;
      }
      int64_t copies = 1;
      for (size_t dim = 0; dim < c.mesh.size(); ++dim) copies *= c.placements[dim].is_replicate() ? c.mesh[dim] : 1;
      if (c.halo.lo.empty()) EXPECT_EQ(elements, copies * c10::multiply_integers(sliced_shape(c.slices)));
    });
  }
  const PlanCase& wide = cases()[12];
  with_plans(wide, 4, [&](const IoPlan& plan, int64_t) {
    EXPECT_EQ(plan.needs(0), (Box{{0, 6}, {0, 13}}));
    EXPECT_EQ(plan.needs(2), (Box{{0, 6}, {3, 16}}));
  });
}

TEST(IoPlan, RoundsKeepMemorySmallAndEveryRankBusy) {
  // 1,000 steps of 4 MiB on 4 ranks.
  const PlanCase c = {"", {4}, {{0, 1000}, {0, 1024}, {0, 1024}}, {1, 1024, 1024}, {shard(1)}, true};
  with_plans(c, 4, [&](const IoPlan& plan, int64_t ranks) {
    EXPECT_GE(plan.rounds(), 100);
    for (const int64_t round : {int64_t{0}, plan.rounds() / 2}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t read = rows_of(plan.grid(), plan.cells_read(round, rank)).numel();
        const int64_t needed = plan.needs(round, rank).numel();
        EXPECT_GT(read, 0);
        EXPECT_LE(2 * 4 * (read + needed), IoPlan::kRoundBytes);
      }
    }
  });
}

// A rank whose part of the dim is in another round reads no less: the cells of a round are shared out among all.
TEST(IoPlan, EveryRankReadsInEveryRoundOfACutDim) {
  const PlanCase c = {"", {4}, {{0, 1024}, {0, 1024}}, {1, 1024}, {shard(0)}, true, {{100, 0}, {100, 0}}};
  with_plans(c, size_t{1} << 10, [&](const IoPlan& plan, int64_t ranks) {
    ASSERT_TRUE(plan.shared());
    ASSERT_GT(plan.rounds(), 4);
    for (int64_t round = 0; round < plan.rounds(); ++round) {
      for (int64_t rank = 0; rank < ranks; ++rank)
        EXPECT_GT(rows_of(plan.grid(), plan.cells_read(round, rank)).numel(), 0) << round << ", rank " << rank;
    }
  });
}

TEST(IoPlan, AChunkOfWhichTwoNeedAsMuchIsReadByTheFirst) {
  const PlanCase c = {"", {2}, {{0, 1}, {0, 20}}, {1, 4}, {shard(1)}, true, {{0, 4}, {0, 4}}};
  with_plans(c, 4, [&](const IoPlan& plan, int64_t) {  // chunk 8..11 of blocks 0..9, 10..19
    ASSERT_TRUE(plan.shared());
    EXPECT_EQ(plan.cells_read(0, 0), (Box{{0, 1}, {0, 3}}));
    EXPECT_EQ(plan.cells_read(0, 1), (Box{{0, 1}, {3, 5}}));
  });
}

TEST(IoPlan, ThoseWhoNeedMostOfAChunkReadIt) {
  const PlanCase c = {"", {2}, {{0, 1}, {0, 20}}, {1, 6}, {shard(1)}, true, {{0, 6}, {0, 6}}};
  with_plans(c, 4, [&](const IoPlan& plan, int64_t) {  // chunks 0..5, 6..11, 12..17, 18..19 of blocks 0..9, 10..19
    ASSERT_TRUE(plan.shared());
    EXPECT_EQ(plan.cells_read(0, 0), (Box{{0, 1}, {0, 2}}));
    EXPECT_EQ(plan.cells_read(0, 1), (Box{{0, 1}, {2, 4}}));
  });
}

}  // namespace
}  // namespace moonhalo::io::test_io_plan
