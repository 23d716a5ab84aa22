// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/random/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_permutation {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> drawn(int64_t size, uint64_t key, uint64_t stream = 0) {
  const Permutation permutation(size, key, stream);
  std::vector<int64_t> values(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) values[static_cast<size_t>(i)] = permutation(i);
  return values;
}

/// Pearson's statistic of counts that should be equal.
double chi_square(const std::vector<int64_t>& counts) {
  const double expected = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0})) /
                          static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

TEST(Permutation, EveryPlaceOnce) {
  for (int64_t size = 1; size <= 300; ++size) {
    for (const uint64_t key : {0, 1, 7}) {
      std::vector<int64_t> values = drawn(size, key, key * 3);
      std::sort(values.begin(), values.end());
      for (int64_t i = 0; i < size; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i) << size << " " << key;
    }
  }
}

TEST(Permutation, LargeSizes) {
  for (const int64_t size : {int64_t{1} << 20, int64_t{1'000'000'000}, (int64_t{1} << 40) + 1, int64_t{1} << 62}) {
    const Permutation permutation(size, 5, 2);
    std::set<int64_t> seen;
    int64_t low = 0;
    for (int64_t i = 0; i < 20'000; ++i) {
      const int64_t value = permutation(i % 2 == 0 ? i : size - i);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, size);
      ASSERT_TRUE(seen.insert(value).second) << size << " " << i;
      low += value < size / 2 ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(low), 10'000, 400) << size;  // 5.6 standard deviations
  }
}

TEST(Permutation, KeysAndStreamsDiffer) {
  EXPECT_EQ(drawn(100, 1, 0), drawn(100, 1, 0));
  EXPECT_NE(drawn(100, 1, 0), drawn(100, 2, 0));
  EXPECT_NE(drawn(100, 1, 0), drawn(100, 1, 1));
  EXPECT_NE(drawn(100, 1, 0), drawn(100, uint64_t{1} << 32 | 1, 0));
}

/// The limits are far in the tail (p below 1e-6); the draws are fixed.
TEST(Permutation, EveryOrderOfFewIsAsLikely) {
  std::map<std::vector<int64_t>, int64_t> orders;
  for (uint64_t key = 0; key < 24'000; ++key) ++orders[drawn(5, key)];
  std::vector<int64_t> counts(120, 0);
  std::transform(orders.begin(), orders.end(), counts.begin(), [](const auto& entry) { return entry.second; });

  EXPECT_LT(chi_square(counts), 205);  // 119 degrees of freedom
}

TEST(Permutation, EveryValueIsAsLikelyAtEveryPlace) {
  for (const int64_t size : {2, 3, 4, 7, 16, 17}) {
    std::vector<int64_t> counts(static_cast<size_t>(size * size), 0);
    for (uint64_t epoch = 0; epoch < 4'000; ++epoch) {
      const std::vector<int64_t> values = drawn(size, 3, epoch);
      for (int64_t i = 0; i < size; ++i) ++counts[static_cast<size_t>(i * size + values[static_cast<size_t>(i)])];
    }
    const auto degrees = static_cast<double>((size - 1) * (size - 1));
    EXPECT_LT(chi_square(counts), degrees + 6 * std::sqrt(2 * degrees) + 15) << size;
  }
}

TEST(Permutation, RefusesSizesAndPlaces) {
  EXPECT_THAT(message_of([] { Permutation(0, 1); }), HasSubstr("permutation: size 0 is not within 1 and 2^62"));
  EXPECT_THAT(message_of([] { Permutation(5, 1)(5); }), HasSubstr("permutation: place 5 is outside of [0, 5)"));
  EXPECT_THAT(message_of([] { Permutation(5, 1)(-1); }), HasSubstr("permutation: place -1 is outside of [0, 5)"));
}

}  // namespace
}  // namespace moonhalo::testing::test_permutation
