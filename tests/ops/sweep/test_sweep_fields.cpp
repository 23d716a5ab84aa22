// SPDX-License-Identifier: Apache-2.0
// Moonhalo's own operators on fields and point clouds, on drawn placements.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/ops/points/knn.h"
#include "moonhalo/ops/window/grid_sample.h"
#include "moonhalo/ops/window/stencil.h"
#include "tests/support/sweep.h"

namespace moonhalo::testing::test_sweep_fields {
namespace {

TEST(SweepFields, EqualOneDevice) {
  const at::Tensor query = make_tensor({2, 5, 3}, 1), points = make_tensor({2, 8, 3}, 2),
                   field = make_tensor({2, 3, 7, 6}, 3);
  const at::Tensor grid = at::affine_grid_generator(at::eye(2, 3, at::kDouble).expand({2, 2, 3}), {2, 1, 5, 6}, false) +
                          make_tensor({2, 5, 6, 2}, 4) * 0.25;
  sweep({
      row("knn", {query, points},
          [](X q, X p) {
            return List{std::get<0>(knn(q, p, 4)), std::get<1>(knn(q, p, 4))};
          },
          {.other_cut = true}),
      row("radius_search", {query, points}, [](X q, X p) { return radius_search(q, p, 0.9, 3); }, {.other_cut = true}),
      row("neighbor_offsets", {query, points, make_tensor({2, 5, 4}, 5, at::kLong).clamp_min(-1)},
          [](X q, X p, X i) { return neighbor_offsets(q, p, i); }, {.other_cut = true}),
      row("stencil", {field}, [](X x) { return stencil(x, {.dim = 2, .derivative = 2, .order = 4, .spacing = 0.5}); }),
      row("stencil_of_own_weights", {field},
          [](X x) {
            return stencil(x, {.dim = -1, .boundary = "reflect", .offsets = {{-3, 1}}, .weights = {{1, 2}}});
          }),
      row("laplacian", {field},
          [](X x) {
            return laplacian(x, {2, 3}, 2, 0.5, "circular");
          }),
      row("grid_sample_bounded", {field, grid},
          [](X x, X g) { return grid_sample(x, g, {.padding_mode = "border", .max_displacement = {{2.0}}}); },
          {.other_cut = true}),
      row("grid_sample_bounded_bicubic", {field, grid},
          [](X x, X g) {
            return grid_sample(x, g, {.mode = "bicubic", .max_displacement = {{2.0, 1.5}}});
          },
          {.other_cut = true}),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_sweep_fields
