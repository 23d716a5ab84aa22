// SPDX-License-Identifier: Apache-2.0
// The backend of searches that name none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/search/division_search.h"
#include "tests/support/divided_nets.h"
#include "tests/support/planted_search.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_search_backend {
namespace {

const DividedNet kNet{.batch = 12, .channels = 2, .hidden = 4, .kernel = 1, .height = 4, .width = 4};

// Hosts like this one, in a network.
SearchOptions options_for(int64_t ranks) {
  SearchOptions options;
  options.space = {.ranks = ranks};
  options.measure = 0;
  options.machine = machine_of(1e12, 1e11, 1e9, 1e-6);
  options.machine.device.kind = "cpu";
  options.machine.host.cores = usable_core_count();
  options.machine.host.processor = processor_model();
  options.machine.levels = {{.name = "host", .ranks = usable_core_count(), .bandwidth = 1e10},
                            {.name = "network", .bandwidth = 1e9}};
  return options;
}

// More ranks than cores: those of MPI may be on other hosts.
TEST(SearchBackend, X14_RanksThatRunHereAreForecastAsTheyRun) {
  const int ranks = static_cast<int>(usable_core_count()) + 1;
  on_ranks(ranks, [&](Communicator& world) {
    SearchOptions options = options_for(ranks);
    EXPECT_EQ(search_divisions(world, options, build_divided(kNet)).backend, "threads");
    options.backend = "tcp";
    EXPECT_EQ(search_divisions(world, options, build_divided(kNet)).backend, "tcp");
    options = options_for(ranks + 1);  // they are not there
    EXPECT_EQ(search_divisions(world, options, build_divided(kNet)).backend, "mpi");
    options = options_for(ranks);
    options.machine.name = "elsewhere";
    options.machine.measured = false;
    EXPECT_EQ(search_divisions(world, options, build_divided(kNet)).backend, "mpi");
  });
}

TEST(SearchBackend, X14_SimulatedRanksAreForecastAsTheyWouldRun) {
  for (const std::string backend : {"mpi", "tcp", "threads"}) {
    const CommunicatorPtr world = make_fake_communicator(0, 1, nullptr, backend);
    EXPECT_EQ(search_divisions(*world, options_for(1), build_divided(kNet)).backend, backend);
  }
  const CommunicatorPtr unknown = make_fake_communicator(0, 1, nullptr);
  EXPECT_EQ(search_divisions(*unknown, options_for(1), build_divided(kNet)).backend, "threads");
}

// The file of one host has no network.
TEST(SearchBackend, X14_AllRanksOfOneHostAreThreadsUnlessSaidOtherwise) {
  Machine machine = options_for(2).machine;
  const int64_t cores = machine.host.cores;
  EXPECT_EQ(usual_backend(machine, cores), "threads");
  EXPECT_EQ(usual_backend(machine, cores + 1), "mpi");
  machine.levels.pop_back();
  EXPECT_EQ(usual_backend(machine, cores + 1), "threads");
  machine.device.kind = "cuda";
  EXPECT_EQ(usual_backend(machine, cores), "nccl");
}

}  // namespace
}  // namespace moonhalo::testing::test_search_backend
