// SPDX-License-Identifier: Apache-2.0
// Fused and foreach operators of optimizers on mixed cuts, complex numbers: S20, X09.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_fused_optimizer {
namespace {

using at::Tensor;

const Tensor a = make_tensor({5, 7}, 1), b = make_tensor({5, 7}, 2), last = make_tensor({7}, 3),
             grad = make_tensor({7}, 4), wave = make_tensor({5, 7}, 5, at::kComplexDouble),
             pairs = make_tensor({5, 7, 2}, 6);
const Allowed kForward{.backward = false};

// A parameter, its gradient, its two states; the states begin in other cuts than the parameter.
List copies(const List& t) {
  List copied;
  for (X x : t) copied.push_back(x.detach() * 1);
  return copied;
}

TEST(SweepPointwiseOptimizers, S20_Fused) {
  const List kTensors{a, b, b * 0.1, b.square()};
  sweep({
      row(
          "fused_adam", kTensors,
          [](const List& t) {
            List s = copies(t);
            const Tensor step = at::ones({}, at::kFloat);
            for (const bool amsgrad : {false, true}) {
              List most;
              if (amsgrad) most.push_back(s[3] * 1);
              at::_fused_adam_({s[0]}, {s[1]}, {s[2]}, {s[3]}, most, {step}, 0.1, 0.9, 0.99, 0.01, 1e-8, amsgrad,
                               false);
            }
            return List{s[0], s[2], s[3]};
          },
          kForward),
      row(
          "fused_adamw", kTensors,
          [](const List& t) {
            List s = copies(t);
            at::_fused_adamw_({s[0]}, {s[1]}, {s[2]}, {s[3]}, {}, {at::ones({}, at::kFloat)}, 0.1, 0.9, 0.99, 0.01,
                              1e-8, false, true);
            return List{s[0], s[2], s[3]};
          },
          kForward),
      row(
          "fused_sgd", {a, b, b * 0.1, last},
          [](const List& t) {
            List s = copies(t);
            Tensor velocity = s[3] * 0.5, slope = s[3] + 1;
            at::_fused_sgd_({s[0], s[3]}, {s[1], slope}, {s[2], velocity}, 0.01, 0.9, 0.1, 0, true, false, false);
            return List{s[0], s[2], s[3], velocity};
          },
          kForward),
      row(
          "fused_adagrad", {a, b, b.square()},
          [](const List& t) {
            List s = copies(t);
            at::_fused_adagrad_({s[0]}, {s[1]}, {s[2]}, {at::ones({}, at::kFloat)}, 0.1, 0.01, 0.02, 1e-10, false);
            return List{s[0], s[2]};
          },
          kForward),
      row("unscale", {a.to(at::kFloat), last.to(at::kFloat)},
          [](const List& t) {
            List s = copies(t);
            Tensor found = at::zeros({1}, at::kFloat), none = at::zeros({1}, at::kFloat);
            at::_amp_foreach_non_finite_check_and_unscale_({s[1]}, none, at::full({1}, 0.5, at::kFloat));
            s[0] = at::where(s[0].eq(s[0].max()), at::full({}, INFINITY, at::kFloat), s[0]);
            at::_amp_foreach_non_finite_check_and_unscale_({s[0]}, found, at::full({1}, 0.5, at::kFloat));
            return List{s[0], s[1], found, none};
          },
          {.tolerance = 1e-6, .backward = false}),
  });
}

TEST(SweepPointwiseOptimizers, S20_Foreach) {
  sweep({
      row(
          "foreach_adam", {a, last, b, grad},
          [](const List& t) {
            List s = copies(t), p{s[0], s[1]}, g{s[2], s[3]}, m{s[2] * 0.5, s[3] * 0.5},
                 v{s[2].square(), s[3].square()};
            at::_foreach_lerp_(m, g, 0.1);
            at::_foreach_mul_(v, 0.9);
            at::_foreach_addcmul_(v, g, g, 0.1);
            List root = at::_foreach_sqrt(v);
            at::_foreach_div_(root, std::vector<at::Scalar>{0.5, 0.7});
            at::_foreach_add_(root, 1e-8);
            at::_foreach_addcdiv_(p, m, root, -0.1);
            return List{p[0], p[1], m[0], v[1]};
          },
          kForward),
      row("foreach_unary", {a, last},
          [](X x, X y) {
            List all = at::_foreach_exp({x, y});
            for (const auto& more :
                 {at::_foreach_neg({x, y}), at::_foreach_clamp_min({x, y}, 0.1), at::_foreach_abs({x, y}),
                  at::_foreach_sub({x, y}, {y, y}), at::_foreach_pow({x, y}, 2.0), at::_foreach_max({x, y})})
              all.insert(all.end(), more.begin(), more.end());
            return all;
          }),
      row("foreach_norms", {a, last},
          [](X x, X y) {
            List all = at::_foreach_norm({x, y}, 1);
            for (const auto& more : {at::_foreach_norm({x, y}, INFINITY), at::_foreach_norm({x, y})})
              all.insert(all.end(), more.begin(), more.end());
            return all;
          }),
      row(
          "foreach_copy_", {a, b, last},
          [](const List& t) {
            List s = copies(t), to{s[0] * 2, s[2] * 2};
            at::_foreach_copy_(to, {s[1], s[2]});
            at::_foreach_zero_(s);
            return List{to[0], to[1], s[0]};
          },
          kForward),
  });
}

TEST(SweepPointwiseOptimizers, S20_ComplexNumbers) {
  sweep({
      row("view_as_real", {wave}, [](X x) { return at::view_as_real(x); }),
      row("view_as_complex", {pairs}, [](X x) { return at::view_as_complex(x) * 2; }),
      row("polar", {a.abs() + 0.1, b}, [](X x, X y) { return at::polar(x, y); }),
      row("conj", {wave},
          [](X x) {
            return List{x.conj().resolve_conj(), at::conj_physical(x), x.conj() * x, x.mH(),
                        at::_neg_view(x).resolve_neg()};
          }),
      row("parts", {wave},
          [](X x) {
            return List{at::real(x) * 2, at::imag(x.conj()), x.angle(), x.abs(), x.sgn()};
          }),
      row("complex_products", {wave, make_tensor({7, 3}, 7, at::kComplexDouble)},
          [](X x, X y) {
            return List{x.mm(y), x.conj().mm(y), at::vdot(x.flatten(), x.flatten() + 1), x.mm(x.mH())};
          }),
      row("complex_reductions", {wave},
          [](X x) {
            return List{x.sum(0), x.mean(1), x.prod(0), x.var(0), at::linalg_vector_norm(x, 2, 1), x.cumsum(0)};
          }),
      row("complex_functions", {wave},
          [](X x) {
            return List{
                x.exp(), (x + 3).log(), x.tanh(), (x + 3).sqrt(), x.reciprocal(), x.pow(2), x.isreal().to(at::kDouble)};
          }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_fused_optimizer
