// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "moonhalo/engine/base/slice_text.h"
#include "tests/support/oracle.h"

namespace moonhalo::test_slice_text {
namespace {

using Part = SlicePart;
using ::testing::ElementsAreArray;

std::vector<Part> parse(const std::string& text) {
  return parse_slice_text(text, [](const std::string& problem) { return "here: " + problem; });
}

Part integer(int64_t value) { return {.integer = value}; }
Part slice(std::optional<int64_t> start, std::optional<int64_t> stop, std::optional<int64_t> step = {}) {
  return {.kind = Part::kSlice, .start = start, .stop = stop, .step = step};
}
const Part kAll = slice({}, {}), kEllipsis{.kind = Part::kEllipsis}, kNewAxis{.kind = Part::kNewAxis};

TEST(SliceText, ReadsEachForm) {
  const std::vector<std::pair<const char*, std::vector<Part>>> cases = {
      {"3", {integer(3)}},
      {"-1", {integer(-1)}},
      {"007", {integer(7)}},
      {"9223372036854775807", {integer(9223372036854775807)}},
      {":", {kAll}},
      {"::", {kAll}},
      {"2:5", {slice(2, 5)}},
      {"2:", {slice(2, {})}},
      {":-2", {slice({}, -2)}},
      {"::2", {slice({}, {}, 2)}},
      {"1:9:3", {slice(1, 9, 3)}},
      {"-9::4", {slice(-9, {}, 4)}},
      {"...", {kEllipsis}},
      {"None", {kNewAxis}},
      {"newaxis", {kNewAxis}},
      {"0:100, :, ::2, -1", {slice(0, 100), kAll, slice({}, {}, 2), integer(-1)}},
      {" 1 :\t3 ,..., None ", {slice(1, 3), kEllipsis, kNewAxis}},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(parse(text), ElementsAreArray(expected)) << text;
    EXPECT_TRUE(looks_like_slices(text)) << text;
  }
}

TEST(SliceText, RefusesEachOther) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "nothing is selected"},
      {" \t", "nothing is selected"},
      {",", "part 1 is empty"},
      {":,", "part 2 is empty"},
      {"1,,2", "part 2 is empty"},
      {"+3", "\"+3\" is not an index or a slice"},
      {"1:+3", "\"1:+3\" is not an index or a slice"},
      {"--1", "\"--1\" is not an index or a slice"},
      {"1.5", "\"1.5\" is not an index or a slice"},
      {"1 2", "\"1 2\" is not an index or a slice"},
      {"0x1", "\"0x1\" is not an index or a slice"},
      {"1:b", "\"1:b\" is not an index or a slice"},
      {"0\n", "\"0\n\" is not an index or a slice"},
      {"9223372036854775808", "\"9223372036854775808\" is not an index or a slice"},
      {"none", "\"none\" is not an index or a slice"},
      {"....", "\"....\" is not an index or a slice"},
      {"1:2:3:4", "\"1:2:3:4\" has more than two colons"},
      {"::0", "step 0 is not positive"},
      {"0, ::-1", "step -1 is not positive"},
      {"..., 1, ...", "more than one \"...\""},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(testing::message_of([&] { parse(text); }), "here: " + expected) << text;
  }
}

TEST(SliceText, IsToldFromNames) {
  for (const char* text : {"shape", "numel", "Nonesuch", "a:b", "_"}) EXPECT_FALSE(looks_like_slices(text)) << text;
  for (const char* text : {"", "0, a", "+1", ".5", ",", "None, a"}) EXPECT_TRUE(looks_like_slices(text)) << text;
}

}  // namespace
}  // namespace moonhalo::test_slice_text
