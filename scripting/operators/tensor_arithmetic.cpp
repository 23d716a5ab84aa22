// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/operators/tensor_object.h"

namespace moonhalo::scripting {

namespace {

/// A number beside a tensor is a wrapped number: it does not change the tensor's dtype within its
/// kind.
at::Tensor operand(lua_State* lua, int index) {
  const int kind = lua_type(lua, index);
  if (kind != LUA_TNUMBER && kind != LUA_TBOOLEAN) return check_tensor(lua, index);
  at::Tensor number = at::scalar_to_tensor(check_scalar(lua, index));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

using Apply = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

/// On failure says which operator and operands, as the kernels report sizes only.
template <Apply kApply>
int binary(lua_State* lua, const char* symbol) {
  const at::Tensor left = operand(lua, 1);
  const at::Tensor right = operand(lua, 2);
  try {
    push(lua, kApply(left, right));
  } catch (const c10::Error& error) {
    throw std::runtime_error(std::string(error.what_without_backtrace()) + "\n  call  " + describe(lua, 1) + " " +
                             symbol + " " + describe(lua, 2));
  }
  return 1;
}

at::Tensor do_add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
at::Tensor do_sub(const at::Tensor& a, const at::Tensor& b) { return at::sub(a, b); }
at::Tensor do_mul(const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); }
at::Tensor do_div(const at::Tensor& a, const at::Tensor& b) { return at::div(a, b); }
at::Tensor do_floor_divide(const at::Tensor& a, const at::Tensor& b) { return at::floor_divide(a, b); }
at::Tensor do_remainder(const at::Tensor& a, const at::Tensor& b) { return at::remainder(a, b); }
at::Tensor do_and(const at::Tensor& a, const at::Tensor& b) { return at::bitwise_and(a, b); }
at::Tensor do_or(const at::Tensor& a, const at::Tensor& b) { return at::bitwise_or(a, b); }
at::Tensor do_xor(const at::Tensor& a, const at::Tensor& b) { return at::bitwise_xor(a, b); }
at::Tensor do_left(const at::Tensor& a, const at::Tensor& b) { return at::bitwise_left_shift(a, b); }
at::Tensor do_right(const at::Tensor& a, const at::Tensor& b) { return at::bitwise_right_shift(a, b); }

/// The scalar overload has the better kernels and gradient (x^2 is x*x).
at::Tensor do_pow(const at::Tensor& a, const at::Tensor& b) {
  return b.unsafeGetTensorImpl()->is_wrapped_number() ? at::pow(a, b.item()) : at::pow(a, b);
}

int tensor_add(lua_State* lua) { return binary<do_add>(lua, "+"); }
int tensor_sub(lua_State* lua) { return binary<do_sub>(lua, "-"); }
int tensor_mul(lua_State* lua) { return binary<do_mul>(lua, "*"); }
int tensor_div(lua_State* lua) { return binary<do_div>(lua, "/"); }
int tensor_idiv(lua_State* lua) { return binary<do_floor_divide>(lua, "//"); }
int tensor_mod(lua_State* lua) { return binary<do_remainder>(lua, "%"); }
int tensor_pow(lua_State* lua) { return binary<do_pow>(lua, "^"); }
int tensor_and(lua_State* lua) { return binary<do_and>(lua, "&"); }
int tensor_or(lua_State* lua) { return binary<do_or>(lua, "|"); }
int tensor_xor(lua_State* lua) { return binary<do_xor>(lua, "~"); }
int tensor_left(lua_State* lua) { return binary<do_left>(lua, "<<"); }
int tensor_right(lua_State* lua) { return binary<do_right>(lua, ">>"); }

int tensor_negative(lua_State* lua) {
  push(lua, check_tensor(lua, 1).neg());
  return 1;
}

int tensor_not(lua_State* lua) {
  push(lua, check_tensor(lua, 1).bitwise_not());
  return 1;
}

}  // namespace

const luaL_Reg* tensor_arithmetic() {
  static const luaL_Reg metamethods[] = {
      {"__add", guard<tensor_add>},      {"__sub", guard<tensor_sub>},   {"__mul", guard<tensor_mul>},
      {"__div", guard<tensor_div>},      {"__idiv", guard<tensor_idiv>}, {"__mod", guard<tensor_mod>},
      {"__pow", guard<tensor_pow>},      {"__band", guard<tensor_and>},  {"__bor", guard<tensor_or>},
      {"__bxor", guard<tensor_xor>},     {"__shl", guard<tensor_left>},  {"__shr", guard<tensor_right>},
      {"__unm", guard<tensor_negative>}, {"__bnot", guard<tensor_not>},  {nullptr, nullptr}};
  return metamethods;
}

}  // namespace moonhalo::scripting
