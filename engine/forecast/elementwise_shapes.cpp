// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "moonhalo/engine/forecast/shape_rules.h"
#include "moonhalo/engine/forecast/work_space.h"

namespace moonhalo {
namespace {

// Elementwise operators: another one that has a meta kernel, and gives the same sizes, strides and dtype.

void like(ShapeCall& call) { call.give(at::empty_like(call.tensor(0))); }
void like_with_buffer(ShapeCall& call) {
  call.use_work_space(bytes_of_row_major_copy(call.tensor(0)));
  like(call);
  like(call);
}
void float_like(ShapeCall& call) { call.give(at::sin(call.tensor(0))); }
void row_major_like(ShapeCall& call) { call.give_like(call.tensor(0)); }
void bool_like(ShapeCall& call) {
  call.give(at::empty_like(call.tensor(0), call.tensor(0).options().dtype(at::kBool)));
}

// A kernel makes complex results of complex numbers first.
void absolute(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  if (x.is_complex()) call.use_work_space(static_cast<int64_t>(x.nbytes()));
  call.give(at::empty_like(x, x.options().dtype(c10::toRealValueType(x.scalar_type()))));
}

void angle(ShapeCall& call) { call.tensor(0).is_complex() ? absolute(call) : float_like(call); }

void where(ShapeCall& call) {
  const at::Tensor &a = call.tensor(1), &b = call.tensor(2);
  const at::ScalarType dtype = at::result_type(a, b);
  call.give(at::addcmul(call.tensor(0).to(dtype), a.to(dtype), b.to(dtype)));
}

void sum_of_two(ShapeCall& call) { call.give(at::add(call.tensor(0), call.tensor(1))); }
void sum_with_number(ShapeCall& call) { call.give(at::add(call.tensor(1), call.value(0).toScalar())); }
void comparison(ShapeCall& call) { call.give(at::eq(call.tensor(0), call.tensor(1))); }

void complex_of_two(ShapeCall& call) {
  const at::Tensor sum = at::add(call.tensor(0), call.tensor(1));
  call.give(at::empty_like(sum, sum.options().dtype(c10::toComplexType(sum.scalar_type()))));
}

void mantissa_and_exponent(ShapeCall& call) {
  like(call);
  call.give(at::empty_like(call.tensor(0), call.tensor(0).options().dtype(at::kInt)));
}

void dropout(ShapeCall& call) {
  like(call);
  bool_like(call);
}

// Places in a sorted sequence: the values that are looked for are argument `kPlace`.
template <size_t kPlace>
void places_in_order(ShapeCall& call) {
  const at::ScalarType dtype = call.value(2).toBool() ? at::kInt : at::kLong;
  const c10::IValue& asked = call.value(kPlace);
  asked.isTensor() ? call.give(asked.toTensor().sizes(), dtype) : call.give({}, dtype);
}

// Reductions

void to_one(ShapeCall& call) { call.give({}, call.tensor(0).scalar_type()); }

void sum_to_one(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  const c10::IValue dtype = call.size() > 1 ? call.value(1) : c10::IValue();
  const at::ScalarType otherwise = c10::isIntegralType(x.scalar_type(), true) ? at::kLong : x.scalar_type();
  call.give({}, dtype.isNone() ? otherwise : dtype.toScalarType());
}

at::Tensor reduced(const at::Tensor& x, const c10::IValue& dims, bool keepdim, at::ScalarType dtype) {
  const at::Tensor typed = x.to(dtype);
  return dims.isNone() ? at::sum(typed, at::OptionalIntArrayRef(), keepdim, dtype)
                       : at::sum(typed, dims.toIntVector(), keepdim, dtype);
}

void variance(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  call.give(reduced(x, call.value(1), call.value(3).toBool(), c10::toRealValueType(x.scalar_type())));
}

void variance_and_mean(ShapeCall& call) {
  variance(call);
  call.give(reduced(call.tensor(0), call.value(1), call.value(3).toBool(), call.tensor(0).scalar_type()));
}

void sum_without_nan(ShapeCall& call) {
  const at::ScalarType own = call.tensor(0).scalar_type();
  const at::ScalarType otherwise = c10::isIntegralType(own, true) ? at::kLong : own;
  call.give(reduced(call.tensor(0), call.value(1), call.value(2).toBool(),
                    call.value(3).isNone() ? otherwise : call.value(3).toScalarType()));
}

void count_nonzero(ShapeCall& call) { call.give(reduced(call.tensor(0), call.value(1), false, at::kLong)); }

// values and indices along the dim that is argument `kDim`
template <size_t kDim>
void value_and_place(ShapeCall& call) {
  const auto [values, places] = at::max(call.tensor(0), call.value(kDim).toInt(), call.value(kDim + 1).toBool());
  call.give(values);
  call.give(places);
}

ShapeRules rules_without_reductions() {
  return {
      {"aten::abs", absolute},
      {"aten::angle", angle},
      {"aten::conj_physical", like},
      {"aten::_conj_physical", like},
      {"aten::nan_to_num", like},
      {"aten::relu", like},
      {"aten::hardtanh", like},
      {"aten::hardswish", like},
      {"aten::logit", float_like},
      {"aten::mvlgamma", float_like},
      {"aten::poisson", like},
      {"aten::bernoulli", like},
      {"aten::bernoulli.p", like},
      {"aten::binomial", sum_of_two},
      {"aten::_standard_gamma", like},
      {"aten::_sample_dirichlet", like},
      {"aten::flip", like},
      {"aten::roll", row_major_like},
      {"aten::channel_shuffle", like},
      {"aten::native_channel_shuffle", like},
      {"aten::_logcumsumexp", like},
      {"aten::rrelu_with_noise", like},
      {"aten::_prelu_kernel", sum_of_two},
      {"aten::log_sigmoid_forward", like_with_buffer},
      {"aten::native_dropout", dropout},
      {"aten::logical_not", bool_like},
      {"aten::isnan", bool_like},
      {"aten::logical_and", comparison},
      {"aten::logical_or", comparison},
      {"aten::logical_xor", comparison},
      {"aten::where.self", where},
      {"aten::floor_divide", sum_of_two},
      {"aten::rsub.Tensor", sum_of_two},
      {"aten::remainder.Scalar_Tensor", sum_with_number},
      {"aten::polar", complex_of_two},
      {"aten::complex", complex_of_two},
      {"aten::frexp.Tensor", mantissa_and_exponent},
      {"aten::searchsorted.Tensor", places_in_order<1>},
      {"aten::searchsorted.Scalar", places_in_order<1>},
      {"aten::bucketize.Tensor", places_in_order<0>},
      {"aten::bucketize.Scalar", places_in_order<0>},
  };
}

ShapeRules rules_of_reductions() {
  return {
      {"aten::dot", to_one},
      {"aten::vdot", to_one},
      {"aten::max", to_one},
      {"aten::min", to_one},
      {"aten::median", to_one},
      {"aten::nanmedian", to_one},
      {"aten::trace", sum_to_one},
      {"aten::prod", sum_to_one},
      {"aten::var.correction", variance},
      {"aten::std.correction", variance},
      {"aten::var_mean.correction", variance_and_mean},
      {"aten::std_mean.correction", variance_and_mean},
      {"aten::nansum", sum_without_nan},
      {"aten::count_nonzero.dim_IntList", count_nonzero},
      {"aten::median.dim", value_and_place<1>},
      {"aten::nanmedian.dim", value_and_place<1>},
      {"aten::mode", value_and_place<1>},
      {"aten::kthvalue", value_and_place<2>},
  };
}

}  // namespace

const ShapeRules& elementwise_shape_rules() {
  static const ShapeRules rules = [] {
    ShapeRules all = rules_without_reductions();
    const ShapeRules reductions = rules_of_reductions();
    all.insert(all.end(), reductions.begin(), reductions.end());
    return all;
  }();
  return rules;
}

}  // namespace moonhalo
