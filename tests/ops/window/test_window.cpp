// SPDX-License-Identifier: Apache-2.0
// The geometry of windows: who owns an output row and what it reads; and that every map used is
// adjoint to its backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/window/conv_strips.h"
#include "moonhalo/ops/window/window.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing {
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
              ASSERT_GE(window.crop_before({begin, end}), 0);
              ASSERT_GE(window.uncropped({begin, end}), window.crop_before({begin, end}) + end - begin);
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

// What the strips of a convolution borrow, and that they are used where the geometry allows it.
TEST(Window, StripsBorrowOnlyTheHalo) {
  const auto strips_of = [](const MeshPtr& mesh, const Placement& placement, const Window& window) {
    const SpecPtr from = make_spec(mesh, {2, 3, 12, 4}, {placement});
    Layout out = from->layout();
    out.global_shape[2] = window_outputs(window, 12);
    out.cuts[2].sizes = window.output_sizes(out.cuts[2].sizes, out.global_shape[2]);
    return conv_strips(from, intern(out), {window, Window{}});
  };
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const auto same = strips_of(mesh, shard(2, {6, 2, 4}), {5, 1, 1, 2});
    ASSERT_TRUE(same.has_value());
    EXPECT_EQ(same->padding, (Sizes{2, -1}));
    EXPECT_EQ(same->strips[0].borrowed, mesh->rank() == 0 ? 0 : 2);
    EXPECT_EQ(same->strips[1].outputs, mesh->rank() == 2 ? 0 : 2);
    EXPECT_EQ(same->strips[0].halo->needed_shape(), (Sizes{2, 3, mesh->rank() == 0 ? 0 : 2, 4}));
    EXPECT_TRUE(strips_of(mesh, shard(2, {6, 2, 4}), {2, 2, 1, 0}).has_value());
    EXPECT_TRUE(strips_of(mesh, shard(2, {6, 0, 6}), {3, 2, 1, 1}).has_value());
    EXPECT_FALSE(strips_of(mesh, shard(2, {6, 2, 4}), {3, 1, 1, 0}).has_value());
  });
  // Of two cut dims the first dim's strips hold the corners.
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {1, 1, 10, 12}, {shard(2), shard(3)});
    const auto strips = conv_strips(spec, spec, {{5, 1, 1, 2}, {3, 1, 1, 1}});
    ASSERT_TRUE(strips.has_value());
    ASSERT_EQ(strips->strips.size(), 4U);
    const bool top = mesh->coordinate(0) == 0, left = mesh->coordinate(1) == 0;
    EXPECT_EQ(strips->strips[0].halo->needed_shape(), (Sizes{1, 1, top ? 0 : 2, 6 + 2}));
    EXPECT_EQ(strips->strips[3].halo->needed_shape(), (Sizes{1, 1, 5, left ? 1 : 0}));
    EXPECT_EQ(strips->strips[0].padding, (Sizes{0, 0}));
    EXPECT_EQ(strips->strips[3].padding, (Sizes{2, 0}));
  });
}

}  // namespace
}  // namespace moonhalo::testing
