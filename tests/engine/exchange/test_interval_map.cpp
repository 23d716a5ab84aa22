// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sstream>

#include "moonhalo/engine/exchange/boundary_index.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_interval_map {
namespace {

struct Halo {
  int64_t lo, hi;
  Boundary boundary;
};

struct MapCase {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<int64_t> shape;
  std::vector<Placement> placements;
  std::vector<Halo> halos;  // per dim
};

const std::vector<MapCase>& cases() {
  static const std::vector<MapCase> table = {
      {"one_row_each_side", {2}, {9, 3}, {shard(0, {5, 4})}, {{1, 1, Boundary::kZero}, {0, 0, Boundary::kZero}}},
      {"anisotropic", {3}, {11, 2}, {shard(0, {3, 6, 2})}, {{2, 0, Boundary::kZero}, {0, 0, Boundary::kZero}}},
      {"wider_than_neighbours", {4}, {8}, {shard(0)}, {{5, 4, Boundary::kZero}}},
      {"empty_block", {3}, {9, 2}, {shard(0, {4, 0, 5})}, {{2, 3, Boundary::kZero}, {0, 0, Boundary::kZero}}},
      {"one_row_blocks", {3}, {7, 2}, {shard(0, {1, 5, 1})}, {{3, 3, Boundary::kReflect}, {0, 0, Boundary::kZero}}},
      {"periodic", {2}, {7}, {shard(0, {3, 4})}, {{4, 4, Boundary::kCircular}}},
      {"periodic_over_the_whole_domain", {3}, {5}, {shard(0)}, {{7, 6, Boundary::kCircular}}},
      {"replicate_edge", {2}, {6, 2}, {shard(0, {1, 5})}, {{3, 2, Boundary::kReplicate}, {0, 0, Boundary::kZero}}},
      {"reflect_far", {2}, {4}, {shard(0, {2, 2})}, {{3, 3, Boundary::kReflect}}},
      {"two_dims_with_corners",
       {2, 2},
       {5, 7},
       {shard(0, {1, 4}), shard(1, {4, 3})},
       {{2, 1, Boundary::kZero}, {1, 3, Boundary::kCircular}}},
      {"replicated_beside_cut",
       {2, 2},
       {5, 3},
       {replicate(), shard(0, {2, 3})},
       {{1, 1, Boundary::kZero}, {0, 0, Boundary::kZero}}},
      {"nested_cut", {2, 2}, {9}, {shard(0), shard(0)}, {{2, 2, Boundary::kReflect}}},
      {"more_ranks_than_rows", {4}, {2, 2}, {shard(0)}, {{1, 1, Boundary::kZero}, {0, 0, Boundary::kZero}}},
      {"padded_uncut_dim", {2}, {4, 3}, {shard(0)}, {{0, 0, Boundary::kZero}, {2, 1, Boundary::kCircular}}},
  };
  return table;
}

int64_t row_by_hand(int64_t i, int64_t extent, Boundary boundary) {
  switch (boundary) {
    case Boundary::kZero:
      return i >= 0 && i < extent ? i : -1;
    case Boundary::kCircular:
      return ((i % extent) + extent) % extent;
    case Boundary::kReplicate:
      return std::clamp<int64_t>(i, 0, extent - 1);
    case Boundary::kReflect:
      break;
  }
  while (i < 0 || i >= extent) i = i < 0 ? -i : 2 * (extent - 1) - i;
  return i;
}

// Makes what the map must give, row by row from the whole tensor.
at::Tensor needed_of(const at::Tensor& full, const std::vector<HaloRequest>& requests) {
  at::Tensor result = full;
  for (size_t d = 0; d < requests.size(); ++d) {
    std::vector<at::Tensor> rows;
    for (int64_t i = requests[d].rows.begin; i < requests[d].rows.end; ++i) {
      const int64_t row = row_by_hand(i, full.size(d), requests[d].boundary);
      rows.push_back(row < 0 ? at::zeros_like(result.narrow(d, 0, 1)) : result.narrow(d, row, 1));
    }
    if (requests[d].reversed) std::reverse(rows.begin(), rows.end());
    result = rows.empty() ? result.narrow(d, 0, 0) : at::cat(rows, d);
  }
  return result;
}

void check(const MapCase& row, bool reversed) {
  SCOPED_TRACE(row.name + (reversed ? " reversed" : ""));
  on_mesh(row.mesh, [&](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor(row.shape, 3);
    const SpecPtr spec = make_spec(mesh, row.shape, row.placements);
    const auto requests = [&](int64_t rank) {
      std::vector<HaloRequest> result;
      for (size_t d = 0; d < row.halos.size(); ++d) {
        const auto [begin, end] = spec->block_range(d, rank);
        result.push_back({{begin - row.halos[d].lo, end + row.halos[d].hi}, row.halos[d].boundary, reversed});
      }
      return result;
    };
    const IntervalMap map(spec, requests);
    const IntervalMap grid(spec, GridRequests{spec, [&](int64_t d, const Interval& owned, const Interval&) {
                                                return HaloRequest{
                                                    {owned.begin - row.halos[d].lo, owned.end + row.halos[d].hi},
                                                    row.halos[d].boundary,
                                                    reversed};
                                              }});
    const at::Tensor local = redistribute_local(full, replicated(mesh, row.shape), spec).clone();

    const at::Tensor needed = gather(map, local);

    EXPECT_TRUE(at::equal(gather(grid, local), needed));
    EXPECT_EQ(difference(needed, needed_of(full, requests(mesh->rank())), 0), "");
    // Adjoint: <F x, y> = <x, F* y>, summed over ranks (each block once).
    const at::Tensor y = make_tensor(map.needed_shape(), 10 + mesh->rank());
    const at::Tensor back = scatter_add(map, y);
    at::Tensor sums = at::stack({(needed * y).sum(), (local * back).sum()});
    mesh->group().all_reduce(sums);
    EXPECT_NEAR(sums[0].item<double>(), sums[1].item<double>(), 1e-10);
    EXPECT_EQ(back.sizes(), local.sizes());
  });
}

TEST(IntervalMap, BringsTheNeededRowsAndItsAdjointAddsThemBack) {  // S04, S05, S15
  for (const auto& row : cases()) check(row, false);
}

TEST(IntervalMap, SourceRowsBeyondTheEnds) {
  const std::pair<Boundary, std::vector<int64_t>> cases[] = {
      // rows -4 to 6 of 3
      {Boundary::kZero, {-1, -1, -1, -1, 0, 1, 2, -1, -1, -1, -1}},
      {Boundary::kCircular, {2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0}},
      {Boundary::kReflect, {0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2}},
      {Boundary::kReplicate, {0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2}},
  };
  for (const auto& [boundary, expected] : cases) {
    std::vector<int64_t> rows;
    for (int64_t i = -4; i <= 6; ++i) {
      rows.push_back(boundary_index(i, 3, boundary));
      EXPECT_EQ(boundary_index(i, 1, boundary), boundary == Boundary::kZero && i != 0 ? -1 : 0);
      EXPECT_EQ(boundary_index(i, 0, boundary), -1);
    }
    EXPECT_EQ(rows, expected) << static_cast<int>(boundary);
  }
}

TEST(IntervalMap, ReadsBackwards) {
  for (const auto& row : cases()) check(row, true);
}

void check_all_pairs(std::vector<int64_t> mesh_shape, const std::vector<std::vector<Placement>>& all) {
  for (const auto& from : all) {
    for (const auto& to : all) {
      expect_same_as_plain(mesh_shape, {{make_tensor({7, 5}, 5), from}}, [&](const std::vector<at::Tensor>& t) {
        if (!is_shard_tensor(t[0])) return std::vector<at::Tensor>{t[0] * t[0]};
        const at::Tensor moved = redistribute(t[0], to);
        EXPECT_EQ(spec(moved), make_spec(spec(t[0])->mesh(), t[0].sizes(), to));
        return std::vector<at::Tensor>{moved * moved};
      });
    }
  }
}

TEST(Redistribute, EveryPairOfPlacementsOnALine) {  // D04
  check_all_pairs({3}, {{replicate()},
                        {partial()},
                        {shard(0)},
                        {shard(0, {1, 5, 1})},
                        {shard(0, {4, 0, 3})},
                        {shard(1)},
                        {shard(1, {0, 0, 5})}});
}

TEST(Redistribute, EveryPairOfPlacementsOnASquare) {  // D04
  check_all_pairs({2, 2}, {{replicate(), replicate()},
                           {replicate(), partial()},
                           {partial(), partial()},
                           {partial(), shard(0, {6, 1})},
                           {shard(0, {2, 5}), replicate()},
                           {shard(1), shard(0, {3, 4})},
                           {shard(0), shard(0)},
                           {shard(0, {3, 4}), shard(0, {1, 2, 4, 0})},
                           {shard(1), partial()}});
}

TEST(Redistribute, MovesOnlyWhatMustMove) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({12, 4}, 1), mesh, {shard(0, {4, 4, 4})});
    mesh->group().reset_stats();

    redistribute(x, {shard(0, {5, 3, 4})});

    // One row moves from rank 1 to rank 0: no other rank sends.
    const auto bytes = mesh->group().stats().total().bytes;
    EXPECT_EQ(bytes, mesh->rank() == 1 ? 4 * 8 : 0);
  });
}

// Describes the map as this rank has it.
std::string text_of(const IntervalMap& map) {
  std::ostringstream text;
  text << at::IntArrayRef(map.needed_shape()) << map.exchanges() << " sends " << map.elements_sent();
  for (const auto& [peer, source, length] : map.received())
    text << " from " << peer << at::IntArrayRef(source) << at::IntArrayRef(length);
  if (map.key()) text << " key " << at::IntArrayRef(map.key()->requests);
  return text.str();
}

// Blocks of every kind, also where one mesh dim cuts different dims of what is read and of what reads it.
TEST(IntervalMap, GridsGiveThePlanOfAllRanks) {
  const std::vector<std::vector<Placement>> all = {{shard(0), shard(1)},
                                                   {shard(1), shard(0, {2, 4, 1})},
                                                   {replicate(), shard(0, {0, 3, 4})},
                                                   {shard(0), replicate()},
                                                   {replicate(), replicate()},
                                                   {shard(0), shard(0, {1, 0, 2, 0, 3, 1})},
                                                   {shard(1, {6, 0}), shard(0)},
                                                   {partial(), shard(1)}};
  int64_t exchanging = 0;
  for (const Boundary boundary : {Boundary::kZero, Boundary::kCircular, Boundary::kReflect}) {
    for (size_t i = 0; i < 6 * all.size() * all.size(); ++i) {
      const auto& from = all[i / 6 / all.size()];
      const auto& to = all[i / 6 % all.size()];
      const auto rank = static_cast<int>(i % 6);
      const auto world = make_fake_communicator(rank, 6);
      const MeshPtr mesh = init_device_mesh(*world, "cpu", {2, 3}, {"rows", "columns"});
      const SpecPtr spec = make_spec(mesh, {7, 6}, from), readers = make_spec(mesh, {7, 6}, to);
      const auto along = [&](int64_t dim, const Interval& owned, const Interval& reading) {
        const int64_t low = (owned.begin + dim) % 3, high = owned.size() % 4;
        if (reading.empty() && dim == 0) return HaloRequest{{0, 0}, boundary};
        return HaloRequest{{reading.begin - low, reading.end + high}, boundary, dim == 1};
      };
      const IntervalMap grid(spec, GridRequests{readers, along});
      const IntervalMap ranks(spec, [&](int64_t r) {
        return std::vector<HaloRequest>{along(0, spec->block_range(0, r), readers->block_range(0, r)),
                                        along(1, spec->block_range(1, r), readers->block_range(1, r))};
      });
      EXPECT_EQ(text_of(grid), text_of(ranks)) << spec->to_string() << " read as " << readers->to_string();
      exchanging += grid.exchanges();
    }
  }
  EXPECT_GT(exchanging, 500);
}

// A plan asks once for each block of each dim, not for each rank.
TEST(IntervalMap, GridsOfManyRanksArePlannedByDim) {
  const auto world = make_fake_communicator(65, 64 * 64);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {64, 64}, {"rows", "columns"});
  const SpecPtr spec = make_spec(mesh, {2, 3, 256, 192}, {shard(2), shard(3)});
  int64_t asked = 0;
  const auto along = [&](int64_t dim, const Interval& owned, const Interval&) {
    ++asked;
    return HaloRequest{dim < 2 ? owned : Interval{owned.begin - 1, owned.end + 1}};
  };

  const IntervalMap map(spec, GridRequests{spec, along});

  EXPECT_EQ(asked, 1 + 1 + 64 + 64);
  EXPECT_EQ(map.received().size(), 8);
  EXPECT_EQ(map.elements_received(), 2 * 3 * (6 * 5 - 4 * 3));
  EXPECT_EQ(map.elements_sent(), map.elements_received());
}

// No rank serves what these ranks read. Along mesh dims where ranks serve only those of their own coordinate, no others
// are asked.
TEST(IntervalMap, AsksOnlyRanksThatMayServe) {
  const auto world = make_fake_communicator(5, 16 * 16);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {16, 16}, {"copies", "rows"});
  int64_t asked = 0;
  const auto count_of_plan = [&](const std::vector<int64_t>& same) {
    const auto owned = [](int64_t) { return Box{{0, 4}}; };
    const auto serves = [&asked](int64_t, int64_t) {
      ++asked;
      return false;
    };
    asked = 0;
    const IntervalMap map(Ownership{mesh, {4}, owned, serves, same}, [](int64_t) { return requests_for(Box{{0, 4}}); });
    EXPECT_FALSE(map.exchanges());
    return asked;
  };

  EXPECT_LE(count_of_plan({0, 1}), 2 * 256);
  EXPECT_LE(count_of_plan({0}), 256 * 17);
  EXPECT_LE(count_of_plan({1}), 256 * 17);
  EXPECT_GE(count_of_plan({}), 256 * 255);
}

// Rows that were kept for a map serve others of the same key: one that turns them round has another.
TEST(IntervalMap, KeysTellTheDirection) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {6}, {shard(0)});
    const auto map = [&](bool reversed) {
      return IntervalMap(spec, [&](int64_t rank) {
        const Interval other = spec->block_range(0, 1 - rank);
        return std::vector<HaloRequest>{{other, Boundary::kZero, reversed}};
      });
    };
    EXPECT_EQ(map(true).key()->requests, map(true).key()->requests);
    EXPECT_NE(map(true).key()->requests, map(false).key()->requests);
  });
}

TEST(Redistribute, KeepsMaxMinAndAverageSums) {
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg, ReduceOp::kProduct}) {
    on_mesh({2}, [op](const MeshPtr& mesh) {
      const at::Tensor mine = make_tensor({4}, 20 + mesh->rank());
      const at::Tensor a = make_tensor({4}, 20), b = make_tensor({4}, 21);
      const at::Tensor x = from_local(mine, mesh, {partial(op)});

      const at::Tensor full = full_tensor(redistribute(x, {shard(0, {1, 3})}));

      const at::Tensor expected = op == ReduceOp::kMax   ? at::maximum(a, b)
                                  : op == ReduceOp::kMin ? at::minimum(a, b)
                                  : op == ReduceOp::kAvg ? (a + b) / 2
                                                         : a * b;
      EXPECT_EQ(difference(full, expected, 1e-15), "");
    });
  }
}

// Rank 0 cannot tell these maps apart: it owns, sends and receives the same by both.
TEST(IntervalMapKey, ComparesMapsForAllRanks) {
  on_mesh({4}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {16}, {shard(0)});
    const auto around = [&](int64_t of_last) {
      return IntervalMap(spec, [=](int64_t rank) {
        const auto [begin, end] = spec->block_range(0, rank);
        return std::vector<HaloRequest>{{.rows = {begin - (rank == 3 ? of_last : 1), end + 1}}};
      });
    };
    const IntervalMap one = around(1), same = around(1), two = around(2);
    EXPECT_EQ(one.key()->requests, same.key()->requests);
    EXPECT_NE(one.key()->requests, two.key()->requests);
    EXPECT_EQ(one.elements_received() == two.elements_received(), mesh->rank() != 3);
    const IntervalMap nothing(spec, [=](int64_t rank) {
      const auto [begin, end] = spec->block_range(0, rank);
      return std::vector<HaloRequest>{{.rows = {begin, end}}};
    });
    EXPECT_EQ(nothing.key(), nullptr);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_interval_map
