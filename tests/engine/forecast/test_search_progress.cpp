// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/search_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moonhalo::testing::test_search_progress {
namespace {

using ::testing::ElementsAre;

TEST(SearchProgress, X14_OnlyLongSearchesShowIt) {
  std::vector<std::string> shown;
  SearchProgress progress([&](const std::string& text) { shown.push_back(text); });
  int asked = 0;
  const auto text = [&] { return "text " + std::to_string(++asked); };
  const double start = seconds_of(ClockOf::kWall);

  progress.at(text);
  progress.at(start + 1, text);
  EXPECT_THAT(shown, ElementsAre());
  for (const double after : {5.0, 6.0, 8.0, 9.5}) progress.at(start + after, text);

  EXPECT_THAT(shown, ElementsAre("text 1", "text 2"));
  SearchProgress(nullptr).at(start + 100, text);
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace moonhalo::testing::test_search_progress
