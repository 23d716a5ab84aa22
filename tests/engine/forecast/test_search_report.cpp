// SPDX-License-Identifier: Apache-2.0
// The table of a search, of results that are made here.
#include "moonhalo/engine/forecast/search/search_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace moonhalo::test_search_report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

SearchResult search_of(int64_t count, double step) {
  SearchResult result;
  result.machine = "a machine";
  result.backend = "mpi";
  for (int64_t i = 1; i <= count; ++i) {
    DivisionResult one;
    one.division.data = i;
    one.step = one.computing = static_cast<double>(i) * step;
    result.ranked.push_back(one);
  }
  rank_results(result);
  explain(result);
  return result;
}

TEST(SearchReport, X14_LongTimesAreInMinutesAndHours) {
  EXPECT_THAT(
      to_text(search_of(2, 1860)),
      AllOf(HasSubstr("the fastest forecast: computing 31.0 min, messages 0 ms, waiting 0 ms\n"), HasSubstr(" 1.03 h "),
            HasSubstr("31.0 min slower: 31.0 min more computing"), Not(HasSubstr("e+"))));
}

TEST(SearchReport, X14_DivisionsThatTheTableLeavesOutAreInItsJson) {
  EXPECT_THAT(to_text(search_of(15, 1)), HasSubstr("  3 more divisions: report.json, or to_json of C++, has all of "
                                                   "them\n"));
  EXPECT_THAT(to_text(search_of(12, 1)), Not(HasSubstr("json")));
}

}  // namespace
}  // namespace moonhalo::test_search_report
