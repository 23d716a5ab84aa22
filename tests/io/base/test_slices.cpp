// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/io/base/slices.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_slices {
namespace {

struct SliceCase {
  const char* text;
  at::Tensor (*expected)(const at::Tensor&);
};

at::Tensor taken(const at::Tensor& whole_tensor, const std::vector<Slice>& slices) {
  at::Tensor result = whole_tensor;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto& slice = slices[i];
    const at::Tensor rows = at::arange(slice.count, at::kLong) * slice.step + slice.begin;
    result = result.index_select(static_cast<int64_t>(i), rows);
  }
  return result.reshape(sliced_shape(slices));
}

const SliceCase kCases[] = {
    {"0:100, :, 2:9:3, -1", [](const at::Tensor& x) { return x.slice(2, 2, 9, 3).select(3, -1); }},
    {"...", [](const at::Tensor& x) { return x; }},
    {"-1, ...", [](const at::Tensor& x) { return x.select(0, -1); }},
    {"..., 1", [](const at::Tensor& x) { return x.select(3, 1); }},
    {"1, ..., 1:", [](const at::Tensor& x) { return x.select(0, 1).slice(2, 1); }},
    {" 1 : 3 ,2", [](const at::Tensor& x) { return x.slice(0, 1, 3).select(1, 2); }},
    {"-3:-1", [](const at::Tensor& x) { return x.slice(0, -3, -1); }},
    {"::2, :, 1::4", [](const at::Tensor& x) { return x.slice(0, 0, 4, 2).slice(2, 1, 10, 4); }},
    {"3:1", [](const at::Tensor& x) { return x.slice(0, 3, 1); }},
    {"0, 0, 0, 0", [](const at::Tensor& x) { return x.select(0, 0).select(0, 0).select(0, 0).select(0, 0); }},
    {"-99:99", [](const at::Tensor& x) { return x; }},
};

TEST(Slices, AreThoseOfPyTorch) {
  const at::Tensor x = at::arange(4 * 3 * 10 * 2).view({4, 3, 10, 2});
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.text);

    const auto slices = parse_slices(test.text, x.sizes(), "x");

    const at::Tensor expected = test.expected(x);
    EXPECT_EQ(sliced_shape(slices), expected.sizes().vec());
    EXPECT_TRUE(at::equal(taken(x, slices), expected));
  }
}

TEST(Slices, OfSlicesAreTheSlicesOfTheResult) {
  const at::Tensor x = at::arange(20 * 9 * 5).view({20, 9, 5});

  const auto outer = parse_slices("3:19:2, 4, 1:", x.sizes(), "x");
  const auto inner = parse_slices("-5::2, 1:3", sliced_shape(outer), "x");

  const at::Tensor expected = x.slice(0, 3, 19, 2).select(1, 4).slice(1, 1).slice(0, -5, 8, 2).slice(1, 1, 3);
  EXPECT_TRUE(at::equal(taken(x, compose(outer, inner)), expected));
}

TEST(Slices, RefuseWhatIsNotASlice) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "nothing is selected"},
      {"a", "\"a\" is not an index or a slice"},
      {"1:b", "\"1:b\" is not an index or a slice"},
      {"1.5", "\"1.5\" is not an index or a slice"},
      {"1:2:3:4", "\"1:2:3:4\" has more than two colons"},
      {"::0", "step 0 is not positive"},
      {"::-1", "step -1 is not positive"},
      {"4", "index 4 is out of range for dim 0 of size 4"},
      {":, -4", "index -4 is out of range for dim 1 of size 3"},
      {":,", "part 2 is empty"},
      {":,:,:", "3 parts for 2 dimensions"},
      {"+3", "\"+3\" is not an index or a slice"},
      {":, None", "None adds a dimension, which a selection cannot"},
      {"..., ...", "more than one \"...\""},
  };
  for (const auto& [text, expected] : cases) {
    const auto message = testing::message_of([&] { parse_slices(text, {4, 3}, "dataset \"x\""); });
    EXPECT_EQ(message.substr(0, message.find('\n')),
              std::string("select: \"") + text + "\" on dataset \"x\": " + expected);
  }
}

}  // namespace
}  // namespace moonhalo::io::test_slices
