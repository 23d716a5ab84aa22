// SPDX-License-Identifier: Apache-2.0
// Elementwise operators with conditions on their arguments, lists of tensors, optimizers.
#include "tests/aten/samples.h"

namespace moonhalo::testing {

namespace {

constexpr SampleLine kElementwiseSamples[] = {
    {"acosh arccosh special_log_ndtr", "w[5,4]"},
    {"log log2 log10 log1p sqrt rsqrt reciprocal digamma special_digamma special_psi lgamma special_gammaln logit "
     "special_logit "
     "special_entr special_ndtri",
     "p[5,4,3]"},
    {"add.Tensor sub.Tensor subtract.Tensor rsub.Tensor", "d[5,4,3], d[4,1], alpha=2"},
    {"pow.Tensor_Tensor float_power.Tensor_Tensor", "p[5,4], d[5,4]"},
    {"pow.Tensor_Scalar float_power.Tensor_Scalar", "p[5,4], 1.5"},
    {"pow.Tensor_Scalar", "d[5,4], 3"},
    {"div.Tensor_mode divide.Tensor_mode", "d[5,4], p[5,4], rounding_mode=\"floor\""},
    {"div.Scalar_mode divide.Scalar_mode", "d[5,4], 0.3, rounding_mode=\"trunc\""},
    {"clamp.Tensor clip.Tensor", "d[5,4,3], d[4,1], p[3]"},
    {"clamp clip", "d[5,4,3], -0.5, 0.4"},
    {"clamp clip", "d[5,4,3], max=0.1"},
    {"igamma igammac special_gammainc special_gammaincc", "p[5,4], p[5,4]"},
    {"special_zeta", "w[5,4], w[5,4]"},
    {"special_zeta.other_scalar", "w[5,4], 1.5"},
    {"special_zeta.self_scalar", "1.5, w[5,4]"},
    {"polygamma special_polygamma", "1, p[5,4]"},
    {"mvlgamma special_multigammaln", "w[5,4], 2"},
    {"gcd lcm bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __ilshift__ __irshift__",
     "l[5,4]<6, l[5,4]<4"},
    {"gcd lcm bitwise_and bitwise_or bitwise_xor", "l[5,4], l[4]"},
    {"__lshift__.Scalar __rshift__.Scalar __ilshift__.Scalar __irshift__.Scalar __lshift__.Scalar_out "
     "__rshift__.Scalar_out bitwise_left_shift.Tensor_Scalar bitwise_left_shift_.Tensor_Scalar "
     "bitwise_left_shift.Tensor_Scalar_out bitwise_right_shift.Tensor_Scalar bitwise_right_shift_.Tensor_Scalar "
     "bitwise_right_shift.Tensor_Scalar_out bitwise_and.Scalar bitwise_and_.Scalar bitwise_and.Scalar_out "
     "bitwise_or.Scalar "
     "bitwise_or_.Scalar bitwise_or.Scalar_out bitwise_xor.Scalar bitwise_xor_.Scalar bitwise_xor.Scalar_out",
     "l[5,4]<6, 2"},
    {"bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor bitwise_left_shift.Scalar_Tensor "
     "bitwise_right_shift.Scalar_Tensor bitwise_and.Scalar_Tensor_out bitwise_or.Scalar_Tensor_out "
     "bitwise_xor.Scalar_Tensor_out bitwise_left_shift.Scalar_Tensor_out bitwise_right_shift.Scalar_Tensor_out",
     "5, l[5,4]<4"},
    {"abs_", "d[5,4,3]"},
    {"clamp_.Tensor clip_.Tensor clamp.Tensor_out clip.Tensor_out", "d[5,4,3], d[4,1], p[3]"},
    {"max.other min.other max.out min.out", "d[5,4], d[4]"},
    {"polygamma_", "p[5,4], 1"},
    {"special_zeta.other_scalar_out", "w[5,4], 1.5"},
    {"special_zeta.self_scalar_out", "1.5, w[5,4]"},
    {"where.self_out", "b[5,4], d[5,4], d[4]"},
    {"ldexp.Tensor ldexp", "d[5,4], l[5,4]<3"},
    {"lerp.Scalar lerp", "d[5,4], d[5,4], 0.3"},
    {"lerp.Tensor lerp", "d[5,4], d[5,4], p[4]"},
    {"addcdiv", "d[5,4], d[5,4], p[5,4], value=0.5"},
    {"addcmul", "d[5,4], d[4], d[5,1], value=0.5"},
    {"threshold", "d[5,4], 0.1, 0.5"},
    {"complex", "d[5,4], d[5,4]"},
    {"polar", "p[5,4], d[5,4]"},
    {"conj conj_physical angle abs sgn resolve_conj is_complex", "c[5,4]"},
    {"heaviside", "d[5,4], d[4]"},
    {"round.decimals special_round", "d[5,4], decimals=1"},
    {"item is_nonzero", "d(0.5)"},
    {"equal allclose", "d[5,4], d[5,4]"},
    {"fused_moving_avg_obs_fake_quant", "d[5,4]"},
};

constexpr SampleLine kForeachSamples[] = {
    {"_foreach_add.List _foreach_sub.List _foreach_mul.List _foreach_div.List _foreach_maximum.List "
     "_foreach_minimum.List "
     "_foreach_clamp_max.List _foreach_clamp_min.List _foreach_add _foreach_sub _foreach_mul _foreach_div "
     "_foreach_maximum "
     "_foreach_minimum _foreach_clamp_max _foreach_clamp_min _foreach_copy",
     "{d[5,4], d[3]}, {p[5,4], p[3]}"},
    {"_foreach_pow", "{p[5,4], p[3]}, {d[5,4], d[3]}"},
    {"_foreach_pow.ScalarAndTensor", "1.5, {d[5,4], d[3]}"},
    {"_foreach_pow.Scalar _foreach_pow", "{p[5,4], p[3]}, 1.5"},
    {"_foreach_pow.ScalarList _foreach_pow", "{p[5,4], p[3]}, [1.5,2.0]"},
    {"_foreach_add.ScalarList _foreach_sub.ScalarList _foreach_mul.ScalarList _foreach_div.ScalarList "
     "_foreach_maximum.ScalarList _foreach_minimum.ScalarList _foreach_clamp_max.ScalarList "
     "_foreach_clamp_min.ScalarList "
     "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_maximum _foreach_minimum _foreach_clamp_max "
     "_foreach_clamp_min",
     "{d[5,4], d[3]}, [0.5,2.0]"},
    {"_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_maximum _foreach_minimum _foreach_clamp_max "
     "_foreach_clamp_min",
     "{d[5,4], d[3]}, 0.5"},
    {"_foreach_add.Tensor _foreach_mul.Tensor _foreach_div.Tensor _foreach_add _foreach_mul _foreach_div",
     "{d[5,4], d[3]}, d(0.5)"},
    {"_foreach_addcdiv.Scalar _foreach_addcmul.Scalar _foreach_addcdiv _foreach_addcmul",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, 0.5"},
    {"_foreach_addcdiv.ScalarList _foreach_addcmul.ScalarList _foreach_addcdiv _foreach_addcmul",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, [0.5,2.0]"},
    {"_foreach_addcdiv.Tensor _foreach_addcmul.Tensor _foreach_addcdiv _foreach_addcmul",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, d{0.5,2}"},
    {"_foreach_lerp.List _foreach_lerp", "{d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}"},
    {"_foreach_lerp.Scalar _foreach_lerp", "{d[5,4], d[3]}, {d[5,4], d[3]}, 0.3"},
    {"_foreach_lerp.ScalarList _foreach_lerp", "{d[5,4], d[3]}, {d[5,4], d[3]}, [0.3,0.6]"},
    {"_foreach_norm", "{d[5,4], d[3]}"},
    {"_foreach_norm _foreach_powsum", "{d[5,4], d[3]}, 1"},
    {"_foreach_log _foreach_log2 _foreach_log10 _foreach_log1p _foreach_sqrt _foreach_rsqrt _foreach_lgamma "
     "_foreach_acos "
     "_foreach_asin",
     "{p[5,4], p[3]}"},
    {"_foreach_max _foreach_abs _foreach_zero _foreach_neg _foreach_exp _foreach_sign _foreach_frac _foreach_trunc",
     "{d[5,4], d[3]}"},
};

constexpr SampleLine kOptimizerSamples[] = {
    {"_fused_adam _fused_adamw",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, {}, {f(1), f(1)}, lr=0.01, beta1=0.9, "
     "beta2=0.99, "
     "weight_decay=0.01, eps=0.00000001, amsgrad=false, maximize=false"},
    {"_fused_adam.tensor_lr _fused_adamw.tensor_lr _fused_adam _fused_adamw",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, {}, {f(1), f(1)}, lr=d(0.01), beta1=0.9, "
     "beta2=0.99, "
     "weight_decay=0.01, eps=0.00000001, amsgrad=false, maximize=false"},
    {"_fused_sgd",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {d[5,4], d[3]}, weight_decay=0.01, momentum=0.9, lr=0.1, dampening=0.1, "
     "nesterov=false, "
     "maximize=false, is_first_step=false"},
    {"_fused_sgd.tensor_lr _fused_sgd",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {d[5,4], d[3]}, weight_decay=0.01, momentum=0.9, lr=d(0.1), dampening=0.1, "
     "nesterov=false, maximize=false, is_first_step=false"},
    {"_fused_adagrad.tensor_lr _fused_adagrad_.tensor_lr _fused_adagrad.tensor_lr_out",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, {f(1), f(1)}, lr=d(0.1), lr_decay=0.01, weight_decay=0.01, "
     "eps=0.0000001, maximize=false"},
    {"_fused_adagrad",
     "{d[5,4], d[3]}, {d[5,4], d[3]}, {p[5,4], p[3]}, {f(1), f(1)}, lr=0.1, lr_decay=0.01, weight_decay=0.01, "
     "eps=0.0000001, "
     "maximize=false"},
};

}  // namespace

std::vector<SampleLine> other_samples() {
  return join_tables({kElementwiseSamples, kForeachSamples, kOptimizerSamples});
}

}  // namespace moonhalo::testing
