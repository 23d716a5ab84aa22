// SPDX-License-Identifier: Apache-2.0
// Elementwise operators that carry no tag: activations, their derivatives, and in-place forms.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_elementwise {
namespace {

using at::Tensor;

const std::vector<PlacementCase> kWays = {kPlacements972[0], kPlacements972[3], kPlacements972[5], kPlacements972[9]};

TEST(Elementwise, ActivationsAndTheirDerivatives) {
  const auto twice = Oracle{.double_backward = true};
  check({{"hardswish", [](const Tensor& x) { return List{at::hardswish(x * 4)}; }},
         {"hardsigmoid", [](const Tensor& x) { return List{at::hardsigmoid(x * 4)}; }},
         {"hardtanh",
          [](const Tensor& x) {
            return List{at::hardtanh(x * 2), at::relu6(x * 8)};
          }},
         {"leaky_relu", [](const Tensor& x) { return List{at::leaky_relu(x, 0.2)}; }, twice},
         {"elu",
          [](const Tensor& x) {
            return List{at::elu(x), at::celu(x, 0.7), at::selu(x)};
          },
          twice},
         {"softplus", [](const Tensor& x) { return List{at::softplus(x, 2, 1)}; }, twice},
         {"shrink",
          [](const Tensor& x) {
            return List{at::softshrink(x, 0.3), at::hardshrink(x, 0.3)};
          }},
         {"mish",
          [](const Tensor& x) {
            return List{at::mish(x), at::silu(x), at::gelu(x)};
          }},
         {"log_sigmoid", [](const Tensor& x) { return List{at::log_sigmoid(x)}; }},
         {"threshold", [](const Tensor& x) { return List{at::threshold(x, 0.1, 20)}; }},
         {"complex",
          [](const Tensor& x) {
            return List{at::complex(x, x * 2), at::polar(x.abs(), x)};
          }}},
        make_tensor({9, 7, 2}, 1), kWays);
  for (const PlacementCase& held : kWays) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(held.mesh,
                         {{make_tensor({9, 7, 2}, 1), held.placements}, {make_tensor({7}, 2), {}, true, true}},
                         [](const List& t) { return List{at::prelu(t[0], t[1])}; });
  }
}

TEST(Elementwise, InPlaceForms) {
  check({{"masked_fill",
          [](const Tensor& x) {
            const Tensor value = at::scalar_tensor(2.0, at::kDouble);
            return List{(x * 1).masked_fill_(x.gt(0), 3), x.masked_fill(x.gt(0.5), value),
                        (x * 1).masked_fill_(x.lt(0), value)};
          }},
         {"activations",
          [](const Tensor& x) {
            Tensor a = x * 4, b = x * 4, c = x * 4, d = x * 4, e = x * 4, f = x * 4;
            return List{at::hardtanh_(a), at::leaky_relu_(b, 0.1), at::elu_(c), at::hardswish_(d),
                        at::gelu_(e),     at::threshold_(f, 0, 1)};
          }},
         {"comparisons",
          [](const Tensor& x) {
            return List{(x * 1).ge_(0.2), (x * 1).lt_(x * x), (x * 1).abs_(), (x * 1).copysign_(-x * x),
                        (x * 9).floor_divide_(2)};
          },
          {.backward = false}},
         {"rsub", [](const Tensor& x) { return List{at::rsub(x, x * x)}; }}},
        make_tensor({9, 7, 2}, 3), kWays);
}

TEST(SweepElementwise, S20_Glu) {
  sweep({
      row("glu", {make_tensor({5, 8}, 1)}, [](X x) { return at::glu(x, 1); }),
      row("glu_dims", {make_tensor({6, 8}, 28)},
          [](X x) {
            return List{at::glu(x, 1), at::glu(x, 0), at::glu(x)};
          },
          {.other_cut = true}),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_elementwise
