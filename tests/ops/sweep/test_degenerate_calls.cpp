// SPDX-License-Identifier: Apache-2.0
// Calls with nothing to compute, factors of another type, lazy zeros: what one rank alone could get wrong.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/text.h"
#include "tests/support/held.h"
#include "tests/support/placements.h"

namespace moonhalo::testing {
namespace {

void expect_right_on_all_ways(const std::string& name, const List& tensors, const Program& program, int derivatives) {
  Draw draw(name);
  for (const Way& way : draw_ways(draw, tensors)) {
    // Second derivatives divide by the square of what the first divide by: a digit less than the usual 1e-10.
    const Verdict verdict =
        judge(way, program, {.tolerance = 1e-9, .backward = derivatives > 0, .double_backward = derivatives > 1});
    EXPECT_EQ(verdict.wrong + verdict.refusal, "") << name << " on " << way.to_string();
  }
}

TEST(DegenerateCalls, DistancesOfNoRows) {
  for (const std::vector<int64_t>& first : {std::vector<int64_t>{0, 4, 5}, {2, 0, 5}, {2, 4, 5}, {0, 5}}) {
    for (const std::vector<int64_t>& second : {std::vector<int64_t>{3, 5}, {0, 5}}) {
      const List tensors = {make_tensor(first, 1), make_tensor(second, 2)};
      expect_right_on_all_ways(
          "cdist" + shape_string(first) + shape_string(second), tensors,
          [](const List& t) { return List{at::cdist(t[0], t[1])}; }, 1);
    }
  }
}

// A rank without matrices would refuse the factor that the others cut the fraction off.
TEST(DegenerateCalls, FractionsBesideIntegers) {
  const auto number = [](at::IntArrayRef shape, int64_t seed) { return make_tensor(shape, seed, at::kLong); };
  for (const double factor : {0.5, 2.0, -1.7}) {
    const std::string name = std::to_string(factor);
    expect_right_on_all_ways(
        "addbmm" + name, {number({3, 4}, 1), number({3, 3, 2}, 2), number({3, 2, 4}, 3)},
        [=](const List& t) { return List{at::addbmm(t[0], t[1], t[2], factor)}; }, 0);
    expect_right_on_all_ways(
        "addmm" + name, {number({3, 4}, 1), number({3, 2}, 2), number({2, 4}, 3)},
        [=](const List& t) { return List{at::addmm(t[0], t[1], t[2], factor, factor)}; }, 0);
    expect_right_on_all_ways(
        "baddbmm" + name, {number({2, 3, 4}, 1), number({2, 3, 2}, 2), number({2, 2, 4}, 3)},
        [=](const List& t) { return List{at::baddbmm(t[0], t[1], t[2], factor)}; }, 0);
    expect_right_on_all_ways(
        "addmv" + name, {number({3}, 1), number({3, 2}, 2), number({2}, 3)},
        [=](const List& t) { return List{at::addmv(t[0], t[1], t[2], 1, factor)}; }, 0);
  }
}

TEST(DegenerateCalls, LogarithmsOfComplexSums) {
  expect_right_on_all_ways(
      "logsumexp", {make_tensor({5, 4}, 1, at::kComplexDouble)},
      [](const List& t) {
        return List{at::logsumexp(t[0], {0}), at::logsumexp(t[0], at::IntArrayRef({0, 1}), true),
                    at::logsumexp(t[0] * 300, {1})};
      },
      2);
}

// Their derivatives are zeros that LibTorch does not write into memory.
TEST(DegenerateCalls, DerivativesThatAreZero) {
  const auto each = [](const std::string& name, const Program& program) {
    expect_right_on_all_ways(name, {make_tensor({6, 4}, 1)}, program, 2);
  };
  each("sgn", [](const List& t) { return List{t[0] * t[0].sgn(), (t[0] * t[0].sgn()).sum()}; });
  each("abs", [](const List& t) { return List{t[0].abs().pow(3), t[0].abs().pow(3).sum()}; });
  each("softsign", [](const List& t) { return List{t[0] / (1 + t[0].abs())}; });
  for (const double p : {0., 0.5, 1., 1.5, 2., 3., double{INFINITY}}) {
    each("norm" + std::to_string(p), [=](const List& t) {
      return List{at::norm(t[0], p), at::norm(t[0], p, 0), at::norm(t[0], p, 1, true), at::linalg_vector_norm(t[0], p)};
    });
    if (p >= 1 && !std::isinf(p))
      each("renorm" + std::to_string(p), [=](const List& t) {
        return List{at::renorm(t[0], p, 0, 0.5), at::renorm(t[0], p, 1, 0.5)};
      });
  }
  each("steps", [](const List& t) {
    return List{
        t[0] * t[0].sign(), t[0] * t[0].floor(),       t[0] * t[0].frac(),         t[0] * t[0].clamp(-0.5, 0.5).pow(2),
        t[0].relu().pow(2), at::hardtanh(t[0]).pow(2), at::hardshrink(t[0]).pow(2)};
  });
  expect_right_on_all_ways(
      "complex", {make_tensor({6, 4}, 1, at::kComplexDouble)},
      [](const List& t) {
        return List{t[0] * t[0].sgn(), t[0].abs().pow(3), at::norm(t[0], 1.5), at::real(t[0].conj() * t[0])};
      },
      2);
  expect_right_on_all_ways(
      "svd", {make_tensor({4, 3, 2}, 1)},
      [](const List& t) {
        const auto [u, s, v] = at::linalg_svd(t[0], false);
        return List{u.abs(), s, v.abs()};
      },
      2);
}

}  // namespace
}  // namespace moonhalo::testing
