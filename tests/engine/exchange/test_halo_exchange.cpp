// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/halo_options.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "tests/support/oracle.h"
#include "tests/support/test_device.h"

namespace moonhalo::testing::test_halo_exchange {
namespace {

constexpr HaloOptions kSettings[] = {{true, HaloBackend::kP2p},
                                     {false, HaloBackend::kP2p},
                                     {true, HaloBackend::kAllToAll},
                                     {false, HaloBackend::kAllToAll}};

struct WithHalo {
  explicit WithHalo(const HaloOptions& options) : before(set_halo(options)) {}
  ~WithHalo() { set_halo(before); }
  HaloOptions before;
};

std::function<std::vector<HaloRequest>(int64_t)> around(const SpecPtr& spec, int64_t low, int64_t high,
                                                        Boundary boundary) {
  return [=](int64_t rank) {
    std::vector<HaloRequest> requests;
    for (int64_t d = 0; d < spec->ndim(); ++d) {
      const auto [begin, end] = spec->block_range(d, rank);
      requests.push_back({{begin - low, end + high}, boundary});
    }
    return requests;
  };
}

struct HaloCase {
  const char* name;
  std::vector<int64_t> mesh, shape;
  std::vector<Placement> placements;
};

const HaloCase kCases[] = {
    {"uneven", {2}, {9, 3}, {shard(0, {3, 6})}},
    {"empty_block", {3}, {9, 4}, {shard(0, {4, 0, 5})}},
    {"thinner_than_the_halo", {4}, {5, 2}, {shard(0, {1, 1, 1, 2})}},
    {"grid", {2, 2}, {7, 8}, {shard(0, {3, 4}), shard(1, {6, 2})}},
    {"replicated_beside_cut", {2, 2}, {6, 3}, {replicate(), shard(0, {2, 4})}},
};

// Two tensors forward over two maps, and a gradient home, in one exchange: the same bits by every back end, and as one
// by one.
TEST(HaloExchange, S16_SameBitsByEveryBackEnd) {
  for (const HaloCase& row : kCases) {
    for (const Boundary boundary : {Boundary::kZero, Boundary::kCircular, Boundary::kReflect}) {
      on_mesh(row.mesh, [&](const MeshPtr& mesh) {
        SCOPED_TRACE(row.name);
        const SpecPtr spec = make_spec(mesh, row.shape, row.placements);
        const auto local = [&](int64_t seed) {
          return to_local(shard_of(make_tensor(row.shape, seed), mesh, row.placements));
        };
        const at::Tensor x = local(1), y = local(2);
        const IntervalMap narrow(spec, around(spec, 1, 1, boundary)), wide(spec, around(spec, 0, 3, boundary));
        const at::Tensor grad = on_device(make_tensor(wide.needed_shape(), 3 + mesh->rank()), *mesh);
        const at::Tensor expected[] = {gather(narrow, x, 7), gather(wide, y), scatter_add(wide, grad)};

        for (const HaloOptions& options : kSettings) {
          const WithHalo setting(options);
          const auto before = mesh->group().stats().total();
          HaloExchange exchange;
          const size_t legs[] = {exchange.add_gather(narrow, x, 7), exchange.add_gather(wide, y),
                                 exchange.add_scatter_add(wide, grad)};
          exchange.start();
          exchange.wait();
          const at::Tensor got[] = {exchange.gathered(legs[0]), exchange.gathered(legs[1]),
                                    exchange.scattered(legs[2])};
          for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << row.name << " leg " << i;
          const auto after = mesh->group().stats().total();
          EXPECT_EQ(after.calls - before.calls, narrow.exchanges() || wide.exchanges() ? 1 : 0);
          EXPECT_LT(after.messages - before.messages,
                    mesh->size());  // at most one to each other rank
          EXPECT_EQ(after.bytes - before.bytes,
                    8 * (narrow.elements_sent() + wide.elements_sent() + wide.elements_received()));
          EXPECT_TRUE(at::equal(scatter_add(wide, grad), expected[2]));
        }
      });
    }
  }
}

TEST(HaloExchange, S16_TheBackEndIsTheOneAskedFor) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {4}, {shard(0)});
    const IntervalMap map(spec, around(spec, 1, 1, Boundary::kZero));
    const auto calls = [&](CommStats::Kind kind) { return mesh->group().stats().by_kind[kind].calls; };
    const int64_t exchanges = calls(CommStats::kExchange), collectives = calls(CommStats::kAllToAll);

    gather(map, at::ones({2}));
    {
      const WithHalo setting({true, HaloBackend::kAllToAll});
      gather(map, at::ones({2}));
      EXPECT_EQ(halo_options().backend, HaloBackend::kAllToAll);
    }
    gather(map, at::ones({2}));

    EXPECT_EQ(calls(CommStats::kExchange) - exchanges, 2);
    EXPECT_EQ(calls(CommStats::kAllToAll) - collectives, 1);
  });
}

TEST(HaloExchange, S16_RanksThatDifferAreToldAlike) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const HaloOptions before = halo_options();
    const HaloOptions wanted{.overlap = mesh->rank() != 2};
    EXPECT_THAT(
        message_of([&] { set_halo(wanted, &mesh->group()); }),
        ::testing::StartsWith("set_halo: ranks 0 and 2 want different settings\n  have  rank 0: overlap = true, "
                              "exchange = p2p, keep = false; rank 2: overlap = false, exchange = p2p, keep = false"));
    EXPECT_EQ(halo_options(), before);
    EXPECT_EQ(set_halo({.overlap = false}, &mesh->group()), before);
    EXPECT_FALSE(set_halo(before, &mesh->group()).overlap);
  });
}

// Between start and wait the caller goes on, unless that is switched off.
TEST(HaloExchange, X06_OrderOfEvents) {
  for (const HaloOptions& options : kSettings) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const WithHalo setting(options);
      const SpecPtr spec = make_spec(mesh, {4}, {shard(0)});
      const IntervalMap map(spec, around(spec, 1, 1, Boundary::kZero));
      HaloEvents events;
      const HaloTimes before = halo_times();
      {
        const RecordHalo record(&events);
        HaloExchange exchange;
        exchange.add_gather(map, at::ones({2}));
        exchange.start();
        note_halo("interior");
        exchange.wait();
      }
      const bool hides = options.overlap && options.backend == HaloBackend::kP2p;
      EXPECT_THAT(events, hides ? ::testing::ElementsAre("start", "interior", "finish")
                                : ::testing::ElementsAre("start", "finish", "interior"));
      const HaloTimes times = halo_times() - before;
      EXPECT_EQ(times.exchanges, 1);
      EXPECT_GT(times.under_way, 0);
      EXPECT_LE(times.waited, times.under_way);
      note_halo("no process listens");
      EXPECT_EQ(events.size(), 3U);
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_halo_exchange
