// SPDX-License-Identifier: Apache-2.0
// Second derivatives of the operators whose own files of cases ask for first ones alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_second_derivatives {
namespace {

using at::Tensor;

const Oracle kMoved{.double_backward = true, .same_cut_gradients = false};

TEST(SecondDerivatives, Places) {
  check(
      {
          {"masked_select", [](const Tensor& x) { return List{cubed(x).masked_select(x.detach() > 0).square()}; },
           kMoved},
          {"mask_index", [](const Tensor& x) { return List{cubed(x).index({x.detach() > 0.1}).square()}; }, kMoved},
          {"masked_scatter",
           [](const Tensor& x) { return List{cubed(x).masked_scatter(x.detach() > 0, x.sin()).square()}; }, kMoved},
          {"take",
           [](const Tensor& x) {
             return List{cubed(x).take(at::tensor({5, 0, 125, 5}, at::kLong)).square()};
           },
           kTwice},
          {"put",
           [](const Tensor& x) {
             return List{cubed(x).put(at::tensor({3, 70}, at::kLong), x.sum(0).sum(0), true).square()};
           },
           kTwice},
          {"diagonal", [](const Tensor& x) { return List{cubed(x).diagonal(1, 0, 1).square()}; }, kMoved},
          {"diag_embed", [](const Tensor& x) { return List{at::diag_embed(cubed(x)).square()}; }, kMoved},
          {"unfold",
           [](const Tensor& x) {
             return List{cubed(x).unfold(0, 3, 2).square(), cubed(x).unfold(1, 2, 1)};
           },
           kMoved},
          {"glu",
           [](const Tensor& x) {
             return List{at::glu(cubed(x), 2), at::glu(cubed(x).slice(0, 1), 0)};
           },
           kMoved},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(SecondDerivatives, Values) {
  check(
      {
          {"median",
           [](const Tensor& x) {
             return List{cubed(x).median().square(), std::get<0>(cubed(x).median(0)).square()};
           },
           kTwice},
          {"cdist", [](const Tensor& x) { return List{at::cdist(cubed(x), x.slice(1, 0, 3) + 2, 2.0, 1)}; }, kTwice},
          {"trilinear",
           [](const Tensor& x) {
             return List{at::bilinear(x, cubed(x), make_tensor({3, 2, 2}, 4), make_tensor({3}, 5)).square()};
           },
           kTwice},
          {"weight_norm",
           [](const Tensor& x) {
             return List{at::_weight_norm(x, x.square().sum(at::IntArrayRef{1, 2}, true), 0).square()};
           },
           kMoved},
          {"renorm", [](const Tensor& x) { return List{cubed(x).renorm(2, 0, 0.5).square()}; }, kTwice},
      },
      make_tensor({9, 7, 2}, 2));
}

TEST(SecondDerivatives, Matrices) {
  const std::vector<PlacementCase> ways = {{"batch", {3}, {shard(0, {2, 0, 3})}},
                                           {"rows", {2}, {shard(1, {1, 2})}},
                                           {"columns", {2}, {shard(2)}},
                                           {"grid", {2, 2}, {shard(0), shard(1)}},
                                           {"partial", {2}, {partial()}}};
  const auto square = [](const Tensor& x) { return x.matmul(x.transpose(1, 2)) + 2 * at::eye(3, at::kDouble); };
  check(
      {
          {"inverse", [&](const Tensor& x) { return List{at::linalg_inv(square(x))}; }, kMoved},
          {"solve", [&](const Tensor& x) { return List{at::linalg_solve(square(x), cubed(x))}; }, kMoved},
          {"determinant",
           [&](const Tensor& x) {
             return List{at::linalg_det(square(x)), at::logdet(square(x))};
           },
           kMoved},
          {"cholesky", [&](const Tensor& x) { return List{at::linalg_cholesky(square(x))}; }, kMoved},
          {"cross", [](const Tensor& x) { return List{at::linalg_cross(cubed(x), x.sin(), 1)}; }, kMoved},
      },
      make_tensor({5, 3, 3}, 3), ways);
}

}  // namespace
}  // namespace moonhalo::testing::test_second_derivatives
