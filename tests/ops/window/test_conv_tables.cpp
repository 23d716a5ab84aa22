// SPDX-License-Identifier: Apache-2.0
// Every kernel, stride, dilation, padding, padding mode and grouping of convolutions of 1 to 3 dims on uneven, empty
// and thin blocks, against the whole tensor: values and the gradients of input, weight and bias.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "tests/support/named_cases.h"

namespace moonhalo::testing::test_conv_tables {
namespace {

using Sizes = std::vector<int64_t>;

// Says how an input [batch, channels, rows, columns, layers] (or fewer dims) is held.
struct Cut {
  const char* name;
  Sizes mesh;
  Sizes rows;                          ///< blocks of dim 2
  std::vector<Placement> others = {};  ///< of the other mesh dims
  int64_t least_dims = 1;
  bool rows_last = false;  ///< the rows' mesh dim is the last

  /// With every block of rows a number of times as large.
  std::vector<Placement> placements(int64_t factor) const {
    Sizes sizes = rows;
    for (int64_t& size : sizes) size *= factor;
    std::vector<Placement> all = others;
    all.insert(rows_last ? all.end() : all.begin(), shard(2, sizes));
    return all;
  }
  int64_t extent(int64_t factor) const {
    int64_t sum = 0;
    for (const int64_t size : rows) sum += size * factor;
    return sum;
  }
};

// Columns are 4, layers 3.
const Cut kCuts[] = {
    {"5+4", {2}, {5, 4}},
    {"3+6", {2}, {3, 6}},
    {"2+2+2+2", {4}, {2, 2, 2, 2}},
    {"1+8", {2}, {1, 8}},
    {"4+0+5", {3}, {4, 0, 5}},
    {"replicated, 5+4", {2, 2}, {5, 4}, {replicate()}, 1, true},
    {"batch and 1+7", {2, 2}, {1, 7}, {shard(0)}, 1, true},
    {"rows and columns", {2, 2}, {5, 4}, {shard(3, {1, 3})}, 2},
    {"columns and thin rows", {3, 2}, {1, 6, 1}, {shard(3, {2, 2})}, 2},
    {"three dims", {2, 2, 2}, {5, 3}, {shard(3, {3, 1}), shard(4, {1, 2})}, 3},
};

struct Geometry {
  int64_t dims, kernel, stride, dilation, padding;
  std::string mode = "constant";
  int64_t groups = 1, in = 2, out = 3;
  bool transposed = false;
  int64_t output_padding = 0;
};

std::string text(const Geometry& g, const Cut& cut) {
  return std::to_string(g.dims) + "-D kernel " + std::to_string(g.kernel) + " stride " + std::to_string(g.stride) +
         " dilation " + std::to_string(g.dilation) + " padding " + std::to_string(g.padding) + " " + g.mode +
         " groups " + std::to_string(g.groups) + (g.transposed ? " transposed" : "") + ", blocks " + cut.name;
}

// The geometry is that of the rows; columns and layers have windows of their own.
Sizes with_others(int64_t rows, int64_t dims, const Sizes& others) {
  Sizes all = {rows};
  all.insert(all.end(), others.begin(), others.begin() + dims - 1);
  return all;
}

at::Tensor convolve(const Geometry& g, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  const Sizes stride = with_others(g.stride, g.dims, {1, 2}), dilation = with_others(g.dilation, g.dims, {2, 1});
  Sizes padding = with_others(g.padding, g.dims, {1, 1});
  const Sizes output_padding = with_others(g.output_padding, g.dims, {0, 1});
  if (g.mode == "constant") {
    return at::convolution(x, w, b, stride, padding, dilation, g.transposed,
                           g.transposed ? output_padding : Sizes(g.dims), g.groups);
  }
  Sizes both;  // from the last dim to the first
  for (int64_t d = g.dims - 1; d >= 0; --d) both.insert(both.end(), {padding[d], padding[d]});
  return at::convolution(at::pad(x, both, g.mode), w, b, stride, Sizes(g.dims), dilation, false, Sizes(g.dims),
                         g.groups);
}

// Cases in turn on every cut, collected by mesh.
class Table {
 public:
  void add(const Geometry& g) {
    const Cut* cut = nullptr;
    do cut = &kCuts[turn_++ % std::size(kCuts)];
    while (cut->least_dims > g.dims);
    const int64_t reach = g.dilation * (g.kernel - 1) + 1;
    const int64_t factor = g.transposed || reach <= cut->extent(1) + 2 * g.padding ? 1 : 3;
    const int64_t batch = cut->name == std::string("batch and 1+7") ? 3 : 1 + count_ % 2;
    Sizes x = {batch, g.in}, w = {g.transposed ? g.in : g.out, g.transposed ? g.out / g.groups : g.in / g.groups};
    for (const int64_t size : with_others(cut->extent(factor), g.dims, {4, 3})) x.push_back(size);
    for (const int64_t size : with_others(g.kernel, g.dims, {2, 2})) w.push_back(size);
    const bool plain = count_++ % 3 == 0;
    cases_[cut->mesh].push_back({text(g, *cut),
                                 {{.full = make_tensor(x, count_), .placements = cut->placements(factor)},
                                  {.full = make_tensor(w, count_ + 1), .plain = plain},
                                  {.full = make_tensor({g.out}, count_ + 2), .plain = plain}},
                                 [g](const Tensors& t) { return Tensors{convolve(g, t[0], t[1], t[2])}; }});
  }

  void check(const Oracle& options = {}) {
    for (const auto& [mesh, cases] : cases_) expect_each_same_as_plain(mesh, cases, options);
  }

  int64_t count() const { return count_; }

 private:
  std::map<Sizes, std::vector<NamedCase>> cases_;
  size_t turn_ = 0;
  int64_t count_ = 0;
};

// Calls give(kernel, stride, dilation, padding).
template <typename Give>
void for_each_window(const Give& give) {
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t stride = 1; stride <= 3; ++stride) {
      for (int64_t dilation = 1; dilation <= 3; ++dilation) {
        for (int64_t padding = 0; padding <= 3; ++padding) give(kernel, stride, dilation, padding);
      }
    }
  }
}

struct Grouping {
  int64_t groups, in, out;
};
const Grouping kGroupings[] = {{1, 2, 3}, {2, 4, 2}, {3, 3, 6}};  // the last is depthwise

// A window and mode are tried with every grouping, each in one number of dims; all in all with MOONHALO_SWEEP.
std::vector<Grouping> groupings(int64_t turn) {
  if (std::getenv("MOONHALO_SWEEP") != nullptr) return {std::begin(kGroupings), std::end(kGroupings)};
  return {kGroupings[turn % std::size(kGroupings)]};
}

Table plain_convolutions(int64_t dims) {
  Table table;
  int64_t turn = dims;
  for_each_window([&](int64_t kernel, int64_t stride, int64_t dilation, int64_t padding) {
    for (const char* mode : {"constant", "circular", "reflect", "replicate"}) {
      if (padding == 0 && mode != std::string("constant")) continue;
      for (const Grouping& g : groupings(turn++))
        table.add({dims, kernel, stride, dilation, padding, mode, g.groups, g.in, g.out});
    }
  });
  return table;
}

Table transposed_convolutions(int64_t dims) {
  Table table;
  int64_t turn = dims;
  for_each_window([&](int64_t kernel, int64_t stride, int64_t dilation, int64_t padding) {
    for (const Grouping& g : groupings(turn++)) {
      const int64_t most = std::max(stride, dilation) - 1;
      table.add({dims, kernel, stride, dilation, padding, "constant", g.groups, g.in, g.out, true,
                 (kernel + padding) % 2 == 0 ? most : most / 2});
    }
  });
  return table;
}

class ConvTables : public ::testing::TestWithParam<int64_t> {};

TEST_P(ConvTables, S03_S04_S05_X03_X05_EveryWindowModeAndGrouping) {
  Table table = plain_convolutions(GetParam());
  EXPECT_GE(table.count(), 7 * 3 * 3 * (1 + 3 * 4));

  table.check();
}

TEST_P(ConvTables, S03_S04_X03_EveryTransposedWindow) {
  Table table = transposed_convolutions(GetParam());
  EXPECT_GE(table.count(), 7 * 3 * 3 * 4);

  table.check();
}

INSTANTIATE_TEST_SUITE_P(Dims, ConvTables, ::testing::Values(1, 2, 3));

// Even kernels are padded by one row more behind than before.
TEST(ConvTables, X03_PaddingSameOfEveryKernelAndDilation) {
  std::map<Sizes, std::vector<NamedCase>> cases;
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t dilation = 1; dilation <= 3; ++dilation) {
      for (int64_t dims = 1; dims <= 3; ++dims) {
        for (const Cut& cut : kCuts) {
          if (cut.least_dims > dims) continue;
          Sizes x = {2, 2}, w = {3, 2};
          for (const int64_t size : with_others(cut.extent(1), dims, {4, 3})) x.push_back(size);
          for (const int64_t size : with_others(kernel, dims, {2, 3})) w.push_back(size);
          const auto program = [dims, dilation](const Tensors& t) {
            const Sizes along = with_others(dilation, dims, {1, 1});
            return Tensors{dims == 1   ? at::conv1d(t[0], t[1], t[2], 1, "same", along)
                           : dims == 2 ? at::conv2d(t[0], t[1], t[2], 1, "same", along)
                                       : at::conv3d(t[0], t[1], t[2], 1, "same", along)};
          };
          cases[cut.mesh].push_back({"same, kernel " + std::to_string(kernel) + " dilation " +
                                         std::to_string(dilation) + " of " + std::to_string(dims) + " dims, blocks " +
                                         cut.name,
                                     {{.full = make_tensor(x, kernel), .placements = cut.placements(1)},
                                      {.full = make_tensor(w, dilation)},
                                      {.full = make_tensor({3}, 3), .plain = true}},
                                     program});
        }
      }
    }
  }
  for (const auto& [mesh, of_mesh] : cases) expect_each_same_as_plain(mesh, of_mesh);
}

// Tiny domains cut at every place, under windows up to twice the domain.
TEST(ConvTables, S15_X05_GradientsAtEveryEdge) {
  std::vector<NamedCase> cases;
  for (int64_t extent = 2; extent <= 6; ++extent) {
    for (int64_t first = 0; first <= extent; ++first) {
      for (int64_t kernel = 1; kernel <= 2 * extent; ++kernel) {
        for (const int64_t stride : {1, 2}) {
          const int64_t padding = kernel / 2;
          cases.push_back({"blocks " + std::to_string(first) + "+" + std::to_string(extent - first) + " kernel " +
                               std::to_string(kernel) + " stride " + std::to_string(stride),
                           {{.full = make_tensor({1, 1, extent}, 1), .placements = {shard(2, {first, extent - first})}},
                            {.full = make_tensor({1, 1, kernel}, 2)}},
                           [=](const Tensors& t) { return Tensors{at::conv1d(t[0], t[1], {}, stride, padding)}; }});
        }
      }
    }
  }
  expect_each_same_as_plain({2}, cases, {.double_backward = true});
}

}  // namespace
}  // namespace moonhalo::testing::test_conv_tables
