// SPDX-License-Identifier: Apache-2.0
// Convolution on cuts against the whole tensor: S02 S03 S04 S05 S07 S15 X03.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/text.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_conv {
namespace {

struct Conv {
  std::vector<int64_t> stride = {1}, padding = {0}, dilation = {1};
  bool transposed = false;
  std::vector<int64_t> output_padding = {0};
  int64_t groups = 1;

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) const {
    const auto bias = b.defined() ? std::optional(b) : std::nullopt;
    const auto spread = [&](const std::vector<int64_t>& v) {
      return v.size() == 1 ? std::vector<int64_t>(x.dim() - 2, v[0]) : v;
    };
    return at::convolution(x, w, bias, spread(stride), spread(padding), spread(dilation), transposed,
                           spread(output_padding), groups);
  }
};

struct Case {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<int64_t> x, w;
  std::vector<Placement> x_placements;
  Conv conv = {};
  std::vector<Placement> w_placements = {};
  bool plain_weight = false;
  bool double_backward = false;
};

void expect_equal(const Case& c) {
  SCOPED_TRACE(c.name + " x " + shape_string(c.x) + " w " + shape_string(c.w) + " stride " +
               shape_string(c.conv.stride) + " padding " + shape_string(c.conv.padding) + " dilation " +
               shape_string(c.conv.dilation) + " groups " + std::to_string(c.conv.groups));
  const int64_t channels = c.conv.transposed ? c.w[1] * c.conv.groups : c.w[0];
  std::vector<Input> inputs = {
      {.full = make_tensor(c.x, 1), .placements = c.x_placements},
      {.full = make_tensor(c.w, 2), .placements = c.w_placements, .plain = c.plain_weight},
      {.full = make_tensor({channels}, 3), .plain = c.plain_weight},
  };
  expect_same_as_plain(c.mesh, inputs, [&](const auto& t) { return std::vector<at::Tensor>{c.conv(t[0], t[1], t[2])}; },
                       {.double_backward = c.double_backward});
}

const Placement kUncut = replicate();

const Case kCases[] = {
    {"S02 stride 2 on 17 rows",
     {3},
     {1, 2, 17, 4},
     {3, 2, 3, 3},
     {shard(2, {6, 6, 5})},
     {.stride = {2}, .padding = {1}}},
    {"stride 2 kernel 3 on 5+4 rows",
     {2},
     {2, 3, 9, 7},
     {4, 3, 3, 3},
     {shard(2, {5, 4})},
     {.stride = {2}, .padding = {1}}},
    {"S05 kernel 7 on blocks of two", {4}, {1, 2, 8, 5}, {2, 2, 7, 7}, {shard(2, {2, 2, 2, 2})}, {.padding = {3}}},
    {"S05 kernel 7 on a block of one", {3}, {1, 2, 7, 5}, {2, 2, 7, 3}, {shard(2, {1, 5, 1})}, {.padding = {3, 1}}},
    {"S15 tiny", {2}, {1, 1, 4, 4}, {1, 1, 3, 3}, {shard(2)}, {.padding = {1}}},
    {"even kernel 2", {3}, {2, 2, 9, 4}, {2, 2, 2, 2}, {shard(2, {3, 6, 0})}, {}},
    {"even kernel 4 padded", {2}, {1, 2, 9, 6}, {3, 2, 4, 4}, {shard(3, {1, 5})}, {.padding = {2}}},
    {"empty block in the middle", {3}, {2, 2, 9, 4}, {2, 2, 3, 3}, {shard(2, {4, 0, 5})}, {.padding = {1}}},
    {"empty block first", {3}, {2, 2, 9, 4}, {2, 2, 5, 3}, {shard(2, {0, 4, 5})}, {.stride = {2}, .padding = {2, 1}}},
    {"more ranks than outputs", {4}, {1, 1, 5}, {1, 1, 5}, {shard(2)}, {}},
    {"patches, no halo", {2}, {1, 3, 8, 8}, {4, 3, 2, 2}, {shard(2)}, {.stride = {2}}},
    {"patches across blocks", {2}, {1, 3, 8, 8}, {4, 3, 4, 4}, {shard(2, {3, 5})}, {.stride = {4}}},
    {"both spatial dims", {2, 2}, {2, 2, 9, 7}, {3, 2, 3, 3}, {shard(2, {5, 4}), shard(3, {3, 4})}, {.padding = {1}}},
    {"corners over several blocks",
     {2, 2},
     {1, 2, 7, 6},
     {2, 2, 5, 5},
     {shard(2, {1, 6}), shard(3, {5, 1})},
     {.padding = {2}}},
    {"both mesh dims on one dim", {2, 2}, {1, 2, 11, 4}, {2, 2, 3, 3}, {shard(2), shard(2)}, {.padding = {1}}},
    {"replicated over one mesh dim", {2, 2}, {2, 2, 9, 4}, {2, 2, 3, 3}, {kUncut, shard(2, {5, 4})}, {.padding = {1}}},
    {"batch and rows", {2, 2}, {3, 2, 9, 4}, {2, 2, 3, 3}, {shard(0), shard(2)}, {.padding = {1}}},
    {"batch alone, uneven", {3}, {4, 2, 5, 4}, {2, 2, 3, 3}, {shard(0, {1, 0, 3})}, {.padding = {1}}},
    {"batch Partial", {2}, {3, 2, 5, 4}, {2, 2, 3, 3}, {partial()}, {.padding = {1}}},
    {"three cut dims",
     {2, 2, 2},
     {1, 2, 5, 6, 4},
     {2, 2, 3, 3, 2},
     {shard(2), shard(3, {1, 5}), shard(4)},
     {.padding = {1}}},
    {"3d rows", {3}, {2, 2, 7, 3, 4}, {3, 2, 3, 2, 3}, {shard(2, {1, 5, 1})}, {.stride = {2, 1, 1}, .padding = {1}}},
    {"depthwise", {2}, {1, 4, 9, 4}, {4, 1, 3, 3}, {shard(2, {3, 6})}, {.padding = {1}, .groups = 4}},
    {"plain weight", {2}, {2, 3, 9, 5}, {4, 3, 3, 3}, {shard(2, {5, 4})}, {.padding = {1}}, {}, true},
    {"plain weight 2x2", {2, 2}, {2, 3, 9, 5}, {4, 3, 3, 3}, {shard(0), shard(3)}, {.padding = {1}}, {}, true},
    // channels
    {"input channels cut", {2}, {2, 5, 6, 4}, {3, 5, 3, 3}, {shard(1, {3, 2})}, {.padding = {1}}},
    {"input channels cut, one empty", {3}, {2, 4, 6, 4}, {3, 4, 3, 3}, {shard(1, {3, 0, 1})}, {.padding = {1}}},
    {"input channels cut on both",
     {2},
     {2, 5, 6, 4},
     {3, 5, 3, 3},
     {shard(1, {3, 2})},
     {.padding = {1}},
     {shard(1, {1, 4})}},
    {"weight's input channels cut", {2}, {2, 5, 6, 4}, {3, 5, 3, 3}, {kUncut}, {.padding = {1}}, {shard(1, {1, 4})}},
    {"output channels cut", {2}, {2, 3, 6, 4}, {5, 3, 3, 3}, {kUncut}, {.padding = {1}}, {shard(0, {1, 4})}},
    {"output channels cut, rows cut",
     {2, 2},
     {2, 3, 9, 4},
     {5, 3, 3, 3},
     {shard(2, {5, 4}), kUncut},
     {.padding = {1}},
     {kUncut, shard(0, {1, 4})}},
    {"both channels cut in the same way", {2}, {2, 4, 6, 4}, {5, 4, 3, 3}, {shard(1)}, {.padding = {1}}, {shard(0)}},
    {"both channels cut on two dims",
     {2, 2},
     {2, 4, 6, 4},
     {5, 4, 3, 3},
     {shard(1), kUncut},
     {.padding = {1}},
     {shard(1), shard(0)}},
    {"groups cut", {2}, {2, 6, 6, 4}, {3, 2, 3, 3}, {shard(1, {4, 2})}, {.padding = {1}, .groups = 3}},
    {"groups cut askew", {2}, {2, 6, 6, 4}, {6, 2, 3, 3}, {shard(1, {3, 3})}, {.padding = {1}, .groups = 3}},
    {"groups cut by the weight",
     {2},
     {2, 6, 6, 4},
     {6, 2, 3, 3},
     {kUncut},
     {.padding = {1}, .groups = 3},
     {shard(0, {4, 2})}},
    {"weight cut in space", {2}, {2, 2, 9, 4}, {3, 2, 3, 3}, {shard(2)}, {.padding = {1}}, {shard(2)}},
    {"weight cut in space alone", {2}, {2, 2, 9, 4}, {3, 2, 3, 3}, {kUncut}, {.padding = {1}}, {shard(2, {1, 2})}},
    {"weight is a field", {2}, {2, 3, 9, 4}, {4, 3, 8, 3}, {shard(2, {4, 5})}, {.padding = {1, 1}}, {shard(2, {5, 3})}},
    {"weight is a field, strided",
     {3},
     {2, 3, 11, 4},
     {4, 3, 4, 3},
     {shard(2, {4, 2, 5})},
     {.padding = {1}, .dilation = {3, 1}},
     {shard(2, {3, 0, 1})}},
    {"weight Partial", {2}, {2, 2, 9, 4}, {3, 2, 3, 3}, {shard(2)}, {.padding = {1}}, {partial()}},
};

TEST(Convolution, EqualsTheWholeTensorForwardAndBackward) {
  for (const Case& c : kCases) expect_equal(c);
}

const Case kTransposed[] = {
    {"upsample by two", {2}, {2, 3, 5, 4}, {3, 2, 2, 2}, {shard(2, {3, 2})}, {.stride = {2}, .transposed = true}},
    {"kernel 3 stride 2 output padding",
     {3},
     {1, 2, 7, 4},
     {2, 3, 3, 3},
     {shard(2, {1, 5, 1})},
     {.stride = {2}, .padding = {1}, .transposed = true, .output_padding = {1}}},
    {"kernel 4 stride 2",
     {2},
     {1, 2, 7, 4},
     {2, 3, 4, 4},
     {shard(2, {4, 3})},
     {.stride = {2}, .padding = {1}, .transposed = true}},
    {"stride wider than the kernel",
     {3},
     {1, 2, 7, 4},
     {2, 3, 2, 2},
     {shard(2, {3, 0, 4})},
     {.stride = {3}, .transposed = true, .output_padding = {2}}},
    {"stride 1 dilated",
     {2},
     {1, 2, 7, 4},
     {2, 3, 3, 3},
     {shard(2, {4, 3})},
     {.padding = {2}, .dilation = {2}, .transposed = true}},
    {"output padding by dilation",
     {2},
     {1, 2, 7, 4},
     {2, 3, 2, 2},
     {shard(2, {4, 3})},
     {.padding = {1}, .dilation = {3}, .transposed = true, .output_padding = {2}}},
    {"2x2",
     {2, 2},
     {1, 2, 7, 5},
     {2, 3, 3, 3},
     {shard(2, {4, 3}), shard(3, {1, 4})},
     {.stride = {2}, .padding = {1}, .transposed = true, .output_padding = {1}}},
    {"1d", {4}, {2, 2, 9}, {2, 2, 5}, {shard(2)}, {.stride = {3}, .padding = {2}, .transposed = true}},
    {"3d", {2}, {1, 2, 5, 3, 3}, {2, 2, 3, 2, 2}, {shard(2)}, {.stride = {2, 1, 1}, .transposed = true}},
    {"groups", {2}, {1, 4, 7, 4}, {4, 2, 3, 3}, {shard(2)}, {.stride = {2}, .transposed = true, .groups = 2}},
    {"groups cut", {2}, {1, 4, 7, 4}, {4, 3, 3, 3}, {shard(1)}, {.stride = {2}, .transposed = true, .groups = 2}},
    {"input channels cut", {2}, {1, 5, 7, 4}, {5, 2, 3, 3}, {shard(1, {2, 3})}, {.stride = {2}, .transposed = true}},
    {"output channels cut", {2}, {1, 5, 7, 4}, {5, 3, 3, 3}, {kUncut}, {.stride = {2}, .transposed = true}, {shard(1)}},
    {"weight cut in space",
     {2},
     {1, 5, 7, 4},
     {5, 3, 3, 3},
     {shard(2)},
     {.stride = {2}, .transposed = true},
     {shard(2)}},
};

TEST(Convolution, TransposedEqualsTheWholeTensorForwardAndBackward) {
  for (const Case& c : kTransposed) expect_equal(c);
}

// S03 S04: kernel 1-7, stride 1-3, dilation 1-3, padding 0-3, in turn 1-3 dims, groups, cuts and
// transposed.
TEST(Convolution, GridOfKernelsStridesDilationsAndPaddings) {
  const std::vector<std::pair<std::vector<int64_t>, std::vector<Placement>>> cuts = {
      {{2}, {shard(2, {9, 14})}},       {{3}, {shard(2, {1, 19, 3})}},
      {{4}, {shard(2, {7, 0, 14, 2})}}, {{2, 2}, {shard(2, {13, 10}), shard(0)}},
      {{3}, {shard(2, {8, 8, 7})}},
  };
  int64_t index = 0;
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t stride = 1; stride <= 3; ++stride) {
      for (int64_t dilation = 1; dilation <= 3; ++dilation) {
        for (int64_t padding = 0; padding <= 3; ++padding, ++index) {
          const int64_t dims = 1 + index % 3, groups = 1 + index / 3 % 2;
          const auto& [mesh, placements] = cuts[index % cuts.size()];
          std::vector<int64_t> x{2, 2 * groups, 23}, w{2 * groups, 2, kernel}, s{stride}, p{padding}, d{dilation};
          for (int64_t i = 1; i < dims; ++i) {
            x.push_back(3);
            w.push_back(2);
            s.push_back(1);
            p.push_back(1);
            d.push_back(1);
          }
          Conv conv{s, p, d, index % 4 == 3, std::vector<int64_t>(dims, 0), groups};
          if (conv.transposed && stride > 1) conv.output_padding[0] = stride - 1;
          if (conv.transposed) x[2] = 23;
          expect_equal({"grid " + std::to_string(index), mesh, x, w, placements, conv});
          if (HasFailure()) return;
        }
      }
    }
  }
}

const Case kSecond[] = {
    {"rows", {2}, {2, 2, 9, 4}, {3, 2, 3, 3}, {shard(2, {5, 4})}, {.padding = {1}}, {}, false, true},
    {"rows, stride 2, dilation 2",
     {2},
     {2, 2, 9, 5},
     {3, 2, 3, 2},
     {shard(2, {3, 6})},
     {.stride = {2}, .padding = {2}, .dilation = {2}},
     {},
     false,
     true},
    {"batch and rows", {2, 2}, {3, 2, 7, 4}, {3, 2, 3, 3}, {shard(0), shard(2)}, {.padding = {1}}, {}, false, true},
    {"both spatial dims", {2, 2}, {2, 2, 7, 6}, {3, 2, 3, 3}, {shard(2), shard(3)}, {.padding = {1}}, {}, false, true},
    {"groups", {2}, {2, 4, 9, 4}, {4, 2, 3, 3}, {shard(2, {5, 4})}, {.padding = {1}, .groups = 2}, {}, false, true},
    {"transposed",
     {2},
     {2, 2, 5, 4},
     {2, 3, 3, 3},
     {shard(2)},
     {.stride = {2}, .padding = {1}, .transposed = true, .output_padding = {1}},
     {},
     false,
     true},
    {"channels", {2}, {2, 4, 5, 4}, {3, 4, 3, 3}, {shard(1)}, {.padding = {1}}, {}, false, true},
    {"1d, an empty block", {3}, {2, 2, 9}, {2, 2, 3}, {shard(2, {4, 0, 5})}, {.padding = {1}}, {}, false, true},
    {"plain weight", {2}, {2, 2, 9}, {2, 2, 3}, {shard(2)}, {.padding = {1}}, {}, true, true},
};

TEST(Convolution, SecondDerivativesEqualTheWholeTensors) {
  for (const Case& c : kSecond) expect_equal(c);
}

}  // namespace
}  // namespace moonhalo::testing::test_conv
