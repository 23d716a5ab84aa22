// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "moonhalo/engine/base/text.h"

namespace moonhalo::test_text {
namespace {

using ::testing::ElementsAre;

TEST(Text, ListsHaveTheirBrackets) {
  EXPECT_EQ(shape_string({}), "[]");
  EXPECT_EQ(shape_string({2, 0, 17}), "[2, 0, 17]");
  EXPECT_EQ(list_string({11, 6}, '{', '}'), "{11, 6}");
}

TEST(Text, OneIsNotSeveral) {
  EXPECT_EQ(plural(1, "rank"), "1 rank");
  EXPECT_EQ(plural(0, "rank"), "0 ranks");
  EXPECT_EQ(plural(2, "process", "es"), "2 processes");
}

TEST(Text, SecondsTextHasThreeDigitsAndAUnit) {
  const std::pair<double, const char*> texts[] = {
      {0, "0 ms"},           {3.7e-5, "0.037 ms"}, {0.00194, "1.94 ms"}, {0.0999, "99.9 ms"}, {0.4661, "466 ms"},
      {0.99949, "999 ms"},   {0.9996, "1.00 s"},   {12.345, "12.3 s"},   {59.94, "59.9 s"},   {60, "1.00 min"},
      {623.324, "10.4 min"}, {3590, "59.8 min"},   {9000, "2.50 h"},     {4e6, "1111 h"}};
  for (const auto& [seconds, text] : texts) EXPECT_EQ(seconds_text(seconds), text) << seconds;
}

TEST(Text, NearestNames) {
  const std::vector<std::string> known = {"conv1d", "conv2d", "relu", "matmul"};
  EXPECT_THAT(nearest_names("conv2", known), ElementsAre("conv2d"));
  EXPECT_THAT(nearest_names("conv3d", known), ElementsAre("conv1d", "conv2d"));
  EXPECT_THAT(nearest_names("conv3d", known, 1), ElementsAre("conv1d"));
  EXPECT_THAT(nearest_names("rleu", known), ElementsAre("relu"));
  EXPECT_THAT(nearest_names("softmax", known), ElementsAre());
}

TEST(Text, DidYouMeanListsTheNearestNames) {
  EXPECT_EQ(did_you_mean("matmull", {"relu", "matmul", "matmul"}), "; did you mean 'matmul'?");
  EXPECT_EQ(did_you_mean("conv4d", {"conv1d", "conv2d"}), "; did you mean 'conv1d' or 'conv2d'?");
  EXPECT_EQ(did_you_mean("conv4d", {"conv3d", "conv1d", "conv2d"}), "; did you mean 'conv1d', 'conv2d' or 'conv3d'?");
  EXPECT_EQ(did_you_mean("softmax", {"relu"}), "");
}

TEST(Text, DidYouMeanKnowsTheNamesOfOtherPrograms) {
  const std::map<std::string, std::string, std::less<>> elsewhere = {{"mean", "avg"}, {"amax", "max"}};
  EXPECT_EQ(did_you_mean("mean", {"min", "max", "avg"}, elsewhere), "; did you mean 'avg'?");
  EXPECT_EQ(did_you_mean("mxa", {"min", "max", "avg"}, elsewhere), "; did you mean 'max'?");
}

}  // namespace
}  // namespace moonhalo::test_text
