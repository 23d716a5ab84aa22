// SPDX-License-Identifier: Apache-2.0
// Elementwise operators with broadcasting, dtypes, in-place, out= and foreach variants, however their tensors are held:
// S20, S25, D08, S01, X09.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_sweep_pointwise {
namespace {

using at::Tensor;

const Tensor a = make_tensor({5, 7}, 1), b = make_tensor({5, 7}, 2), last = make_tensor({7}, 3);
const Tensor column = make_tensor({5, 1}, 4), one = make_tensor({}, 5), deep = make_tensor({3, 5, 7}, 6);
const Tensor positive = a.abs() + 0.3, large = b.abs() + 1.2, share = a.abs() * 0.9 + 0.05;
const Tensor whole = make_tensor({5, 7}, 7, at::kLong), count = whole.abs() + 1;
const Tensor coin = make_tensor({5, 7}, 8, at::kBool), coins = make_tensor({7}, 9, at::kBool);
const Tensor wave = make_tensor({5, 7}, 10, at::kComplexDouble);
const Tensor narrow = a.to(at::kFloat), brain = b.to(at::kBFloat16), byte = make_tensor({5, 7}, 11, at::kByte);
const Allowed kForward{.backward = false}, kFloat{.tolerance = 1e-5}, kBrain{.tolerance = 2e-2};  // bfloat16: 8 bits

TEST(SweepPointwise, S20_Activations) {
  sweep({
      row("relu", {a}, [](X x) { return x.relu(); }),
      row("gelu", {a}, [](X x) { return at::gelu(x); }),
      row("gelu_tanh", {a}, [](X x) { return at::gelu(x, "tanh"); }),
      row("silu", {a}, [](X x) { return at::silu(x); }),
      row("elu", {a}, [](X x) { return at::elu(x, 0.7); }),
      row("leaky_relu", {a}, [](X x) { return at::leaky_relu(x, 0.1); }),
      row("softplus", {a}, [](X x) { return at::softplus(x, 2, 1); }),
      row("hardswish", {a}, [](X x) { return at::hardswish(x * 4); }),
      row("hardtanh", {a}, [](X x) { return at::hardtanh(x, -0.3, 0.4); }),
      row("mish", {a}, [](X x) { return at::mish(x); }),
      row("log_sigmoid", {a}, [](X x) { return at::log_sigmoid(x); }),
      row("sigmoid", {a}, [](X x) { return x.sigmoid(); }),
      row("tanh", {a}, [](X x) { return x.tanh(); }),
      row("threshold", {a}, [](X x) { return at::threshold(x, 0.1, 20); }),
      row("hardshrink", {a},
          [](X x) {
            return List{at::hardshrink(x, 0.2), at::softshrink(x, 0.2)};
          }),
      row("prelu", {make_tensor({2, 3, 5}, 1), make_tensor({3}, 2)}, [](X x, X w) { return at::prelu(x, w); },
          {.other_cut = true}),
  });
}

TEST(SweepPointwise, S20_ElementaryAndSpecialFunctions) {
  sweep({
      row("exp", {a}, [](X x) { return x.exp(); }),
      row("expm1", {a}, [](X x) { return x.expm1(); }),
      row("log", {positive}, [](X x) { return x.log(); }),
      row("log1p", {positive}, [](X x) { return x.log1p(); }),
      row("sqrt", {positive}, [](X x) { return x.sqrt(); }),
      row("rsqrt", {positive}, [](X x) { return x.rsqrt(); }),
      row("reciprocal", {positive}, [](X x) { return x.reciprocal(); }),
      row("pow_scalar", {positive}, [](X x) { return x.pow(2.5); }),
      row("scalar_pow", {a}, [](X x) { return at::pow(2.5, x); }),
      row("sin_cos", {a},
          [](X x) {
            return List{x.sin(), x.cos(), x.tan()};
          }),
      row("inverse_trig", {share},
          [](X x) {
            return List{x.asin(), x.acos(), x.atan(), x.atanh()};
          }),
      row("hyperbolic", {large},
          [](X x) {
            return List{x.sinh(), x.cosh(), x.asinh(), x.acosh()};
          }),
      row("erf", {a},
          [](X x) {
            return List{x.erf(), x.erfc(), (x * 0.9).erfinv()};
          }),
      row("gamma", {positive},
          [](X x) {
            return List{x.lgamma(), x.digamma()};
          }),
      row("special", {positive},
          [](X x) {
            return List{at::special_i0(x), at::special_ndtr(x), at::sinc(x), x.logit(0.1)};
          }),
  });
}

TEST(SweepPointwise, S20_RoundingSignsAndBounds) {
  sweep({
      row("rounding", {a},
          [](X x) {
            return List{(x * 3).floor(), (x * 3).ceil(), (x * 3).round(), (x * 3).trunc()};
          }),
      row("frac_sign", {a},
          [](X x) {
            return List{(x * 3).frac(), x.sign(), x.abs(), x.neg(), x.square()};
          }),
      row("clamp", {a},
          [](X x) {
            return List{x.clamp(-0.2, 0.5), x.clamp_min(0.1), x.clamp_max(0.1)};
          }),
      row("nan_to_num", {a}, [](X x) { return (x.clamp_min(0).log()).nan_to_num(0.5, 1, -1); }),
      row(
          "isnan", {a},
          [](X x) {
            return List{x.sqrt().isnan(), (x / 0).isinf(), x.isfinite(), x.signbit()};
          },
          kForward),
  });
}

TEST(SweepPointwise, S20_UnaryOfEveryKindOfNumber) {
  sweep({
      row("cast", {a},
          [](X x) {
            return List{x.to(at::kFloat).to(at::kDouble) * 0 + x, x.to(at::kLong), x.to(at::kBool)};
          }),
      row("ints", {whole},
          [](X x) { return List{x + 1, x * 3, x.abs(), x.neg(), x / 2, x.floor_divide(2), x.remainder(3)}; }),
      row("int_bits", {whole},
          [](X x) {
            return List{x.bitwise_and(3), x.bitwise_or(1), x.bitwise_not(), x.bitwise_left_shift(2)};
          }),
      row("bytes", {byte},
          [](X x) {
            return List{x + 3, x.to(at::kInt), x.eq(3), x * 2};
          }),
      row("bools", {coin},
          [](X x) {
            return List{x.logical_not(), x.to(at::kDouble), x & x, x.logical_xor(x)};
          }),
      row("complex", {wave},
          [](X x) { return List{x * x, x.exp(), x.conj() + 1, x.abs(), x.angle(), at::real(x), at::imag(x)}; }),
      row("complex_parts", {a, b},
          [](X x, X y) {
            return List{at::complex(x, y), at::polar(x.abs(), y)};
          }),
      row(
          "float32", {narrow},
          [](X x) {
            return List{x.tanh(), x * 2 + 1, x.exp()};
          },
          kFloat),
      row(
          "bfloat16", {brain},
          [](X x) {
            return List{x.tanh(), x * 2 + 1, x.to(at::kFloat)};
          },
          kBrain),
  });
}

TEST(SweepPointwise, S20_BinaryWithBroadcasting) {
  sweep({
      row("add", {a, b}, [](X x, X y) { return at::add(x, y, 0.3); }),
      row("sub", {a, b}, [](X x, X y) { return x - y; }),
      row("mul", {a, b}, [](X x, X y) { return x * y; }),
      row("div", {a, large}, [](X x, X y) { return x / y; }),
      row("rsub", {a, b}, [](X x, X y) { return at::rsub(x, y, 2); }),
      row("add_row", {a, last}, [](X x, X y) { return x + y; }),
      row("row_sub", {last, a}, [](X x, X y) { return x - y; }),
      row("mul_column", {a, column}, [](X x, X y) { return x * y; }),
      row("outer_product", {column, last}, [](X x, X y) { return x * y; }),
      row("div_scalar_tensor", {a, one}, [](X x, X y) { return x / (y + 2); }),
      row("add_scalar_tensor", {a, one}, [](X x, X y) { return x + y; }),
      row("mul_deep", {deep, column}, [](X x, X y) { return x * y; }),
      row("sub_deep", {a, deep}, [](X x, X y) { return x - y; }),
      row("zero_dim_both", {one, make_tensor({}, 12)}, [](X x, X y) { return x * y + x; }),
      row("pow", {positive, b}, [](X x, X y) { return x.pow(y); }),
      row("atan2", {a, b}, [](X x, X y) { return x.atan2(y); }),
      row("maximum", {a, b},
          [](X x, X y) {
            return List{at::maximum(x, y), at::minimum(x, y), at::fmax(x, y), at::max(x, y)};
          }),
      row("hypot", {a, b}, [](X x, X y) { return at::hypot(x, y); }),
      row("logaddexp", {a, b},
          [](X x, X y) {
            return List{at::logaddexp(x, y), at::logaddexp2(x, y)};
          }),
      row("fmod", {a, large},
          [](X x, X y) {
            return List{x.fmod(y), x.remainder(y)};
          }),
      row(
          "floor_divide", {a, large},
          [](X x, X y) {
            return List{(x * 9).floor_divide(y), at::div(x * 9, y, "trunc")};
          },
          kForward),
      row("copysign", {a, b}, [](X x, X y) { return x.copysign(y); }),
      row("xlogy", {a, positive}, [](X x, X y) { return x.xlogy(y); }),
      row("lerp_scalar", {a, b}, [](X x, X y) { return x.lerp(y, 0.3); }),
      row("clamp_tensor", {a, b},
          [](X x, X y) {
            return List{x.clamp_min(y), at::clamp(x, std::nullopt, y)};
          }),
      row("bce_like", {share, share}, [](X x, X y) { return -(y * x.log() + (1 - y) * (1 - x).log()); }),
  });
}

TEST(SweepPointwise, S20_ComparisonsWithBroadcasting) {
  sweep({
      row("comparisons", {a, b}, [](X x, X y) { return List{x.lt(y), x.ge(y), x.eq(y), x.ne(y), x.gt(y), x.le(y)}; }),
      row("compare_row", {a, last},
          [](X x, X y) {
            return List{x.lt(y), y.lt(x), at::isclose(x, y, 0.3)};
          }),
      row("logical", {coin, coins},
          [](X x, X y) {
            return List{x.logical_and(y), x.logical_or(y), x.logical_xor(y), x | y};
          }),
      row(
          "heaviside", {a, b}, [](X x, X y) { return at::heaviside(x, y); }, kForward),
  });
}

TEST(SweepPointwise, S20_BinaryOfEveryKindOfNumber) {
  sweep({
      row("int_pair", {whole, count},
          [](X x, X y) { return List{x + y, x * y, x.floor_divide(y), x.remainder(y), x / y, at::gcd(x, y)}; }),
      row(
          "promotion", {a, whole},
          [](X x, X y) {
            return List{x + y, y * x, x.to(at::kFloat) * y};
          },
          kFloat),
      row("complex_pair", {wave, a},
          [](X x, X y) {
            return List{x * y, x + y, y / (x + 3)};
          }),
  });
}

TEST(SweepPointwise, S20_ThreeTensors) {
  sweep({
      row("where", {coin, a, b}, [](X m, X x, X y) { return at::where(m, x, y); }),
      row("where_broadcast", {coins, a, column}, [](X m, X x, X y) { return at::where(m, x, y); }),
      row("where_scalar", {coin, a},
          [](X m, X x) {
            return List{at::where(m, x, 0.5), at::where(m, 0.5, x)};
          }),
      row("lerp", {a, b, share}, [](X x, X y, X w) { return x.lerp(y, w); }),
      row("addcmul", {a, b, last}, [](X x, X y, X z) { return at::addcmul(x, y, z, 0.3); }),
      row("addcdiv", {a, b, large}, [](X x, X y, X z) { return at::addcdiv(x, y, z, 0.3); }),
      row("clamp_between", {a, b, last}, [](X x, X y, X z) { return x.clamp(y, z); }),
      row("masked_fill", {a, coin}, [](X x, X m) { return x.masked_fill(m, 0.25); }),
      row("masked_fill_row", {a, coins}, [](X x, X m) { return x.masked_fill(m, 0.25); }),
      row("masked_fill_tensor", {a, coin, one}, [](X x, X m, X v) { return x.masked_fill(m, v); }),
      row("polynomial", {a, b, column}, [](X x, X y, X z) { return x * x * y + z * x - y / (z * z + 1); }),
  });
}

TEST(SweepPointwise, S20_InPlace) {
  sweep({
      row("relu_", {a}, [](X x) { return Tensor(x * 2).relu_(); }),
      row("add_", {a, b}, [](X x, X y) { return Tensor(x * 2).add_(y, 0.5); }),
      row("mul_", {a, last}, [](X x, X y) { return Tensor(x * 2).mul_(y); }),
      row("div_", {a, large}, [](X x, X y) { return Tensor(x * 2).div_(y).sub_(1).neg_(); }),
      row("sigmoid_", {a},
          [](X x) {
            return List{Tensor(x * 2).sigmoid_(), Tensor(x * 2).clamp_(0.3, 0.6), Tensor(x * 2).pow_(2),
                        Tensor(x * 2).exp_() * 2};
          }),
      row("addcmul_", {a, b, last}, [](X x, X y, X z) { return Tensor(x * 2).addcmul_(y, z, 0.3); }),
      row("lerp_", {a, b}, [](X x, X y) { return Tensor(x * 2).lerp_(y, 0.3); }),
      row("masked_fill_", {a, coin}, [](X x, X m) { return Tensor(x * 2).masked_fill_(m, 0.25); }),
      row("copy_", {a, b}, [](X x, X y) { return Tensor(x * 2).copy_(y) * x; }),
      row("copy_row", {a, last}, [](X x, X y) { return Tensor(x * 2).copy_(y) * x; }),
      row("fill_", {a, one},
          [](X x, X y) {
            return List{Tensor(x * 2).fill_(0.5) * x, Tensor(x * 2).fill_(y) * x, Tensor(x * 2).zero_()};
          }),
      row("int_add_", {whole, count}, [](X x, X y) { return x.clone().add_(y).mul_(2).bitwise_and_(7); }),
      row("compare_", {a, b}, [](X x, X y) { return x.detach().clone().lt_(y.detach()); }),
      row("logical_not_", {coin}, [](X x) { return x.clone().logical_not_(); }),
  });
}

TEST(SweepPointwise, S20_OutForeachAndItem) {
  sweep({
      row("add_out", {a, b},
          [](X x, X y) {
            Tensor out = at::empty_like(x.detach());
            at::add_out(out, x.detach(), y.detach());
            return out;
          }),
      row("exp_out", {a},
          [](X x) {
            Tensor out = at::zeros_like(x.detach());
            at::exp_out(out, x.detach());
            return out;
          }),
      row("where_out", {coin, a, b},
          [](X m, X x, X y) {
            Tensor out = at::zeros_like(x.detach());
            at::where_out(out, m, x.detach(), y.detach());
            return out;
          }),
      row("foreach_add", {a, last, b, last},
          [](const List& t) {
            return at::_foreach_add({t[0], t[1]}, {t[2], t[3]}, 0.5);
          }),
      row("foreach_mul_sqrt", {positive, last},
          [](X x, X y) {
            return at::_foreach_sqrt(at::_foreach_mul(at::TensorList{x, y * y + 1}, 2.0));
          }),
      row("foreach_addcdiv_", {a, b, large, last},
          [](X x, X y, X z, X w) {
            List self{x.detach() * 2, w.detach() * 2};
            at::_foreach_addcdiv_(self, {y.detach(), w.detach()}, {z.detach(), w.detach() + 2}, 0.1);
            at::_foreach_lerp_(self, {y.detach(), w.detach()}, 0.3);
            return self;
          }),
      row("foreach_norm", {a, last},
          [](X x, X y) {
            return at::_foreach_norm({x, y}, 2);
          }),
      row("item", {a}, [](X x) { return x * x.detach().sum().item<double>(); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_sweep_pointwise
