// SPDX-License-Identifier: Apache-2.0
// Ranks of tests as processes (see run_test_ranks).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/random/random.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing {
namespace {

// This process's rank among those of its launcher, for the whole program.
struct Processes {
  CommunicatorPtr world;
  int ran = 0, left_out = 0;
};

Processes* processes = nullptr;

// Rank 0 prints all results, the others their failures.
class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", processes->world->rank(), result.file_name(), result.line_number(),
                 result.message());
  }
};

// "mpi" or "tcp"; else the ranks are threads.
std::string asked() {
  const char* value = std::getenv("MOONHALO_TEST_RANKS");
  return value != nullptr ? value : "";
}

class AsProcesses : public ::testing::Environment {
  void SetUp() override {
    processes = new Processes{.world = make_world(asked(), detect_launch())};
    processes->world->set_timeout(kHang);
    if (processes->world->rank() == 0) return;
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }

  void TearDown() override {
    EXPECT_GT(processes->ran, 0) << "nothing ran on " << processes->world->size() << " processes";
    processes->world->barrier();
    if (processes->world->rank() == 0)
      std::printf("%d runs on %d processes; %d want another number of ranks\n", processes->ran,
                  processes->world->size(), processes->left_out);
    delete processes;
    processes = nullptr;
  }
};

[[maybe_unused]] const auto* const environment =
    !asked().empty() ? ::testing::AddGlobalTestEnvironment(new AsProcesses) : nullptr;

}  // namespace

void run_test_ranks(int ranks, const std::function<void(Communicator&)>& fn) {
  if (processes == nullptr) return run_ranks(ranks, fn);
  if (ranks != processes->world->size()) {
    ++processes->left_out;
    return;
  }
  ++processes->ran;
  const ElementwiseRandom random;
  fn(*processes->world);
}

}  // namespace moonhalo::testing
