// SPDX-License-Identifier: Apache-2.0
// The division that a search with a memory limit chooses, in a process that gets no more memory than that.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>

#include "moonhalo/engine/forecast/search/division_search.h"
#include "tests/support/divided_nets.h"
#include "tests/support/oracle.h"
#include "tests/support/planted_search.h"
#include "tests/support/process_memory.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_search_memory_limit {
namespace {

/// While it exists, this process may map at most `bytes` more than at its start.
class DataLimit {
 public:
  explicit DataLimit(int64_t bytes) {
    TORCH_CHECK(getrlimit(RLIMIT_DATA, &before_) == 0);
    rlimit lower = before_;
    lower.rlim_cur = static_cast<rlim_t>(process_memory("VmData") + bytes);
    TORCH_CHECK(setrlimit(RLIMIT_DATA, &lower) == 0);
  }
  ~DataLimit() { setrlimit(RLIMIT_DATA, &before_); }
  DataLimit(const DataLimit&) = delete;

 private:
  rlimit before_{};
};

void train_within_the_limit() {
  constexpr int kRanks = 2;
  constexpr int64_t kOfThreads = 48 << 20;  // stacks, arenas of malloc, and work space of kernels
  mallopt(M_MMAP_THRESHOLD, 1 << 16);       // memory that is freed is unmapped
  const DividedChain chain{.batch = 32768, .blocks = 6};
  SearchOptions options;
  options.space = {.ranks = kRanks, .may_store = false, .may_recompute = true};
  options.space.most_data = chain.batch;
  options.machine = machine_of(1e9, 1e11, 1e8, 1e-4);
  options.backend = "nccl";
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_chain(chain));
  const int64_t fastest = all.ranked.front().memory, smallest = all.ranked.back().memory;
  ASSERT_FALSE(all.best().recomputes);
  ASSERT_GT(fastest - smallest, kOfThreads) << "the limit below is between the two";
  options.memory_limit = (fastest + smallest) / 2;
  const SearchResult found = search_divisions(options, build_chain(chain));
  ASSERT_NE(found.best(), all.best());

  const auto train = [&](const Division& division) {
    const auto steps = [&](const Division& one, int count) {
      on_ranks(kRanks, [&](Communicator& world) {
        at::set_num_threads(1);  // their stacks count
        const BuiltStep built = build_chain(chain)(one, world);
        for (int step = 0; step < count; ++step) built.step();
      });
    };
    steps(found.best(), 1);  // what libraries keep
    const DataLimit limit(kRanks * options.memory_limit + kOfThreads);
    steps(division, 2);
  };

  EXPECT_EQ(message_of([&] { train(found.best()); }), "");
  EXPECT_NE(message_of([&] { train(all.best()); }), "");
}

// In a process of its own, which has no memory of other tests to use again.
TEST(SearchMemoryLimit, X14_TheChosenDivisionRunsWhereTheSystemGivesNoMore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto train = [] {
    train_within_the_limit();
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(train(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace moonhalo::testing::test_search_memory_limit
