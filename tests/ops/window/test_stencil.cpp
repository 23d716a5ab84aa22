// SPDX-License-Identifier: Apache-2.0
// Finite differences: exact on polynomials, of the stated order on others, the same on cut fields, and no byte more
// than halos.
#include "moonhalo/ops/window/stencil.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/dual_level.h"
#include "tests/support/oracle.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_stencil {
namespace {

TEST(Stencil, WeightsAreThoseOfTheTables) {
  const struct {
    int64_t derivative;
    std::vector<double> places;
    double at;
    std::vector<double> weights;
  } cases[] = {
      {1, {-1, 0, 1}, 0, {-0.5, 0, 0.5}},
      {2, {-1, 0, 1}, 0, {1, -2, 1}},
      {1, {-2, -1, 0, 1, 2}, 0, {1 / 12.0, -2 / 3.0, 0, 2 / 3.0, -1 / 12.0}},
      {1, {0, 1, 2}, 0, {-1.5, 2, -0.5}},
      {2, {0, 1, 2, 3}, 0, {2, -5, 4, -1}},
      {0, {0, 1}, 0.25, {0.75, 0.25}},
      {4, {-2, -1, 0, 1, 2}, 0, {1, -4, 6, -4, 1}},
      {1, {-0.5, 1.5}, 0, {-0.5, 0.5}},
  };
  for (const auto& c : cases) {
    const auto weights = finite_difference_weights(c.derivative, c.places, c.at);
    for (size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(weights[i], c.weights[i], 1e-13) << c.derivative << " " << i;
  }
}

// x^p, and its derivatives, on rows `spacing` apart.
at::Tensor power(const at::Tensor& x, int64_t p, int64_t derivative) {
  double factor = 1;
  for (int64_t i = 0; i < derivative; ++i) factor *= static_cast<double>(p - i);
  return factor == 0 ? at::zeros_like(x) : x.pow(p - derivative) * factor;
}

TEST(Stencil, OneSidedFormulasAreExactOnPolynomialsUpToTheEnds) {
  const double spacing = 0.25;
  const at::Tensor x = at::arange(12, at::kDouble) * spacing;
  for (const int64_t derivative : {0, 1, 2, 3, 4}) {
    for (const int64_t order : {2, 4, 6}) {
      for (int64_t p = 0; p < derivative + order; ++p) {
        const at::Tensor y =
            stencil(power(x, p, 0), {.dim = 0, .derivative = derivative, .order = order, .spacing = spacing});
        const at::Tensor expected = power(x, p, derivative);
        EXPECT_LT((y - expected).abs().max().item<double>(), 1e-7 * (1 + expected.abs().max().item<double>()))
            << "derivative " << derivative << " of order " << order << " of x^" << p;
      }
    }
  }
}

TEST(Stencil, ErrorsShrinkAsTheOrderSays) {
  const auto error = [](int64_t rows, int64_t derivative, int64_t order, const char* boundary) {
    const double spacing = 2 * M_PI / static_cast<double>(rows);
    // Shifted, so that no term of the error vanishes at an end.
    const at::Tensor x = at::arange(rows, at::kDouble) * spacing + 1;
    const at::Tensor y = stencil(
        x.sin(), {.dim = 0, .derivative = derivative, .order = order, .spacing = spacing, .boundary = boundary});
    return (y - (derivative == 1 ? x.cos() : -x.sin())).abs().max().item<double>();
  };
  for (const int64_t derivative : {1, 2}) {
    for (const int64_t order : {2, 4, 6}) {
      for (const char* boundary : {"circular", "one_sided"}) {
        const double ratio = error(32, derivative, order, boundary) / error(64, derivative, order, boundary);
        EXPECT_NEAR(std::log2(ratio), static_cast<double>(order), 0.5) << derivative << " " << order << " " << boundary;
      }
    }
  }
}

const char* const kBoundaries[] = {"zeros", "circular", "reflect", "replicate", "one_sided"};

// Padding by LibTorch, then shifted slices.
TEST(Stencil, BoundariesAreThoseOfPad) {
  const at::Tensor x = make_tensor({2, 3, 7}, 1);
  for (const char* boundary : {"zeros", "circular", "reflect", "replicate"}) {
    const std::string mode = boundary == std::string("zeros") ? "constant" : boundary;
    const at::Tensor padded = at::pad(x, {2, 3}, mode);
    const at::Tensor expected = padded.slice(-1, 0, 7) * 0.5 + padded.slice(-1, 5, 12) * -2 + x;
    const at::Tensor y =
        stencil(x, {.dim = -1, .boundary = boundary, .offsets = {{-2, 3, 0}}, .weights = {{0.5, -2, 1}}});
    EXPECT_EQ(difference(y, expected, 1e-14), "") << boundary;
  }
}

TEST(Stencil, AnyCutEqualsTheWholeTensorAndIsKept) {
  std::vector<Case> cases;
  for (const char* boundary : kBoundaries) {
    for (const int64_t dim : {0, 1}) {
      cases.push_back(
          {boundary,
           [=](const at::Tensor& x) {
             return List{stencil(x, {.dim = dim, .derivative = 2, .order = 4, .spacing = 0.3, .boundary = boundary}),
                         stencil(x, {.dim = dim, .derivative = 1, .boundary = boundary}).square()};
           },
           {.double_backward = true}});
    }
    if (boundary == std::string("one_sided")) continue;
    // Farther than the next block, more to one side, and farther than the domain.
    cases.push_back(
        {boundary, [=](const at::Tensor& x) {
           return List{stencil(x, {.dim = 0, .boundary = boundary, .offsets = {{-5, 1, 2}}, .weights = {{1, -3, 0.5}}}),
                       stencil(x, {.dim = 1, .boundary = boundary, .offsets = {{8}}, .weights = {{2}}})};
         }});
  }
  cases.push_back({"fields", [](const at::Tensor& x) {
                     const List g = stencil_gradient(x, {0, 1}, 2, {0.5, 2.0}, "circular");
                     return List{g[0], g[1], divergence({x, x.sin()}, {1, 0}), laplacian(x, {0, 1}, 4, 0.1)};
                   }});
  check(cases, make_tensor({9, 7, 2}, 1));
}

TEST(Stencil, OnlyHalosTravelAndTheCutStays) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({10, 4}, 1), mesh, {shard(0, {5, 2, 3})});
    const auto bytes_of = [&](const Stencil& options) {
      mesh->group().reset_stats();
      EXPECT_EQ(spec(stencil(x, options)), spec(x));
      return mesh->group().stats().total().bytes / 32;
    };
    const int64_t rank = mesh->rank();
    EXPECT_EQ(bytes_of({.dim = 0, .boundary = "replicate"}), (std::array<int64_t, 3>{1, 2, 1})[rank]);
    EXPECT_EQ(bytes_of({.dim = 0}), (std::array<int64_t, 3>{1, 2, 1})[rank]);
    EXPECT_EQ(bytes_of({.dim = 0, .boundary = "circular"}), 2);
    EXPECT_EQ(bytes_of({.dim = 0, .order = 6, .boundary = "zeros"}), (std::array<int64_t, 3>{4, 4, 4})[rank]);
    EXPECT_EQ(bytes_of({.dim = 0, .offsets = {{-1, 0}}, .weights = {{-1, 1}}}), rank < 2 ? 1 : 0);
    EXPECT_EQ(bytes_of({.dim = 1}), 0);
  });
}

TEST(Stencil, ForwardModeIsTheStencilOfTheTangent) {
  const DualLevel dual_level;
  const int64_t level = dual_level.index();
  on_mesh({2}, [level](const MeshPtr& mesh) {
    const std::vector<Placement> rows = {shard(0, {3, 6})};
    const at::Tensor x = shard_of(make_tensor({9}, 1), mesh, rows), t = shard_of(make_tensor({9}, 2), mesh, rows);
    const at::Tensor plain = stencil(make_tensor({9}, 2), {.dim = 0});

    const at::Tensor y = stencil(at::_make_dual(x, t, level), {.dim = 0});

    EXPECT_EQ(difference(full_tensor(std::get<1>(at::_unpack_dual(y, level))), plain, 1e-12), "");
  });
}

TEST(Stencil, RefusesWhatHasNoMeaning) {
  const at::Tensor x = make_tensor({2, 3}, 1);
  const std::pair<Stencil, const char*> wrong[] = {
      {{.dim = 1, .boundary = "cirular"}, "stencil: unknown boundary 'cirular'; did you mean 'circular'?"},
      {{.dim = 1, .order = 3}, "stencil: derivative 1 of order 3"},
      {{.dim = 1, .order = 4}, "stencil: 3 rows along dim 1 are too few"},
      {{.dim = 1, .spacing = 0}, "stencil: the spacing is 0"},
      {{.dim = 1, .weights = {{1.0}}}, "stencil: offsets and weights belong together"},
      {{.dim = 1, .offsets = {{1, 2}}, .weights = {{1.0}}}, "stencil: 2 offsets and 1 weights"},
      {{.dim = 1, .spacing = 0.5, .offsets = {{1}}, .weights = {{1.0}}},
       "stencil: derivative 1, order 2 and spacing 0.5 with weights of one's own"},
      {{.dim = 1, .derivative = 2, .offsets = {{1}}, .weights = {{1.0}}},
       "stencil: derivative 2, order 2 and spacing 1 with weights of one's own"},
      {{.dim = 1, .boundary = "one_sided", .offsets = {{1}}, .weights = {{1.0}}}, "stencil: weights of one's own"},
  };
  for (const auto& [options, text] : wrong)
    EXPECT_THAT(message_of([&, &o = options] { stencil(x, o); }), ::testing::StartsWith(text));
  EXPECT_THAT(message_of([&] { stencil(x.to(at::kInt), {.dim = 1}); }),
              ::testing::StartsWith("stencil: a tensor of Int"));
  EXPECT_THAT(message_of([] {
                finite_difference_weights(2, {0, 1});
              }),
              ::testing::StartsWith("finite_difference_weights: derivative 2 from 2"));
  EXPECT_THAT(message_of([&] {
                laplacian(x, {0, 1}, 2, {1.0, 1.0, 1.0});
              }),
              ::testing::StartsWith("laplacian: 3 spacings for 2 dims"));
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor cut = shard_of(make_tensor({3, 2}, 1), mesh, {shard(0)});
    EXPECT_THAT(message_of([&] { stencil(cut, {.dim = 0, .order = 4}); }),
                ::testing::StartsWith("stencil: 3 rows along dim 0 are too few"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_stencil
