// SPDX-License-Identifier: Apache-2.0
// The heaps of a fresh process that runs four ranks as threads, by what malloc tells of itself.
#include "engine/one_heap.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/communicator.h"

namespace moonhalo::testing {
namespace {

int heaps_of_four_ranks() {
  run_ranks(4, [](Communicator& world) {
    std::vector<char> block(100000, 1);
    world.barrier();
  }, 1);
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  malloc_info(0, file);
  std::fclose(file);
  const std::string told(text, size);
  std::free(text);
  int heaps = 0;
  for (size_t at = told.find("<heap nr="); at != std::string::npos; at = told.find("<heap nr=", at + 1)) ++heaps;
  return heaps;
}

TEST(OneHeap, IsSharedByTheThreadsOfAProgramThatAsksForIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // starts the program anew
  const auto shared = [] {
    unsetenv("MALLOC_ARENA_MAX");
    share_one_heap();
    std::exit(heaps_of_four_ranks());
  };
  const auto several = [] { std::exit(heaps_of_four_ranks()); };

  EXPECT_EXIT(shared(), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(several(), [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) > 1; }, "");
}

}  // namespace
}  // namespace moonhalo::testing
