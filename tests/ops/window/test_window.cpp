// SPDX-License-Identifier: Apache-2.0
// The geometry of windows: who owns an output row and what it reads; and that every map used is
// adjoint to its backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/window/window.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_window {
namespace {

using Sizes = std::vector<int64_t>;

TEST(Window, OutputsBelongToTheBlockOfTheirCentre) {
  struct Case {
    const char* name;
    Window window;
    Sizes blocks;
    int64_t outputs;
    Sizes expected;
  };
  const Case cases[] = {
      {"same", {3, 1, 1, 1}, {5, 4}, 9, {5, 4}},
      {"even kernel", {2, 1, 1, 0}, {5, 4}, 8, {5, 3}},
      {"valid", {5, 1, 1, 0}, {5, 4}, 5, {3, 2}},
      {"stride 2", {3, 2, 1, 1}, {5, 4}, 5, {3, 2}},
      {"dilated same", {3, 1, 3, 3}, {2, 7}, 9, {2, 7}},
      {"empty blocks", {3, 2, 1, 1}, {0, 4, 0, 5, 0}, 5, {0, 2, 0, 3, 0}},
      {"a window over all blocks", {9, 1, 1, 0}, {3, 3, 3}, 1, {0, 1, 0}},
      {"much padding", {1, 1, 1, 3}, {1, 1}, 8, {4, 4}},
      {"transposed by two", {2, 2, 1, 0, true}, {3, 2}, 10, {6, 4}},
      {"transposed 3 by two", {3, 2, 1, 1, true}, {3, 2}, 9, {6, 3}},
      {"transposed, stride wider", {2, 3, 1, 0, true}, {1, 2}, 9, {3, 6}},
  };
  for (const Case& c : cases) EXPECT_EQ(c.window.output_sizes(c.blocks, c.outputs), c.expected) << c.name;
}

// Brute force: every input row that feeds an output of the range is in the range needed, and the
// local result covers it.
TEST(Window, NeedsEveryRowThatItsOutputsRead) {
  for (const bool transposed : {false, true}) {
    for (int64_t kernel = 1; kernel <= 4; ++kernel) {
      for (int64_t stride = 1; stride <= 4; ++stride) {
        for (int64_t dilation = 1; dilation <= 3; ++dilation) {
          for (int64_t padding = 0; padding <= 3; ++padding) {
            const Window window{kernel, stride, dilation, padding, transposed};
            for (const auto& [begin, end] : std::vector<Interval>{{0, 1}, {3, 8}, {5, 6}, {7, 13}}) {
              const auto [first, last] = window.input_needed({begin, end});
              for (int64_t o = begin; o < end; ++o) {
                for (int64_t k = 0; k < kernel; ++k) {
                  const int64_t row = transposed ? o + padding - k * dilation : o * stride - padding + k * dilation;
                  if (transposed && row % stride != 0) continue;
                  const int64_t input = transposed ? row / stride : row;
                  ASSERT_TRUE(first <= input && input < last) << kernel << stride << dilation << padding << transposed;
                }
              }
              if (!transposed) continue;
              ASSERT_TRUE(window.outputs_fed({first, last}).contains(Interval{begin, end}));
              const Interval read = window.input_read({begin, end});
              for (int64_t row = first; row < last; ++row) {
                const bool feeds = !window.outputs_fed({row, row + 1}).intersect({begin, end}).empty();
                ASSERT_EQ(read.contains(row), feeds) << kernel << stride << dilation << padding;
              }
            }
          }
        }
      }
    }
  }
}

double dot(const MeshPtr& mesh, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor sum = (a * b).sum().view(1);
  mesh->group().all_reduce(sum);
  return sum.item<double>();
}

// S04: <F x, y> = <x, F* y> over all ranks.
TEST(Window, EveryMapHasItsAdjoint) {
  struct Case {
    const char* name;
    std::vector<int64_t> mesh;
    std::vector<Placement> placements;
    std::vector<Window> windows;
  };
  const Case cases[] = {
      {"same", {2}, {shard(1, {5, 4})}, {{3, 1, 1, 1}, {3, 1, 1, 1}}},
      {"thin blocks", {4}, {shard(1, {1, 1, 6, 1})}, {{7, 1, 1, 3}, {}}},
      {"empty block", {3}, {shard(1, {4, 0, 5})}, {{4, 2, 1, 1}, {}}},
      {"both dims", {2, 2}, {shard(1, {1, 8}), shard(2, {3, 4})}, {{5, 1, 1, 2}, {4, 1, 2, 3}}},
      {"transposed", {2, 2}, {shard(1), shard(2)}, {{3, 2, 1, 1, true}, {2, 3, 1, 0, true}}},
      {"gaps", {3}, {shard(1)}, {{1, 3, 1, 0}, {}}},
  };
  for (const Case& c : cases) {
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      const SpecPtr from = make_spec(mesh, {2, 9, 7}, c.placements);
      Layout out = from->layout();
      for (int64_t d = 1; d < 3; ++d) {
        const Window& w = c.windows[d - 1];
        if (!out.cuts[d]) continue;
        const int64_t extent = out.global_shape[d];
        out.global_shape[d] =
            w.transposed ? (extent - 1) * w.stride - 2 * w.padding + w.reach() : window_outputs(w, extent);
        out.cuts[d].sizes = w.output_sizes(out.cuts[d].sizes, out.global_shape[d]);
      }
      const SpecPtr to = intern(out);
      const auto map = window_map(from, to, c.windows);
      const at::Tensor x = make_tensor(from->local_shape(), 10 + mesh->rank());
      const at::Tensor y = make_tensor(map->needed_shape(), 20 + mesh->rank());
      EXPECT_NEAR(dot(mesh, gather(*map, x), y), dot(mesh, x, scatter_add(*map, y)), 1e-12) << c.name;
      const at::Tensor start = make_tensor(from->local_shape(), 30 + mesh->rank());
      EXPECT_EQ(difference(scatter_add(*map, y, start.clone()), start + scatter_add(*map, y), 1e-12), "") << c.name;
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_window
