// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/scripting/core/devices.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/methods.h"

namespace moonhalo::scripting {

namespace {

struct DtypeName {
  const char* name;
  at::ScalarType dtype;
};

/// The first name of each dtype is the one that scripts are shown.
constexpr DtypeName kDtypes[] = {
    {"float32", at::kFloat},
    {"float", at::kFloat},
    {"float64", at::kDouble},
    {"double", at::kDouble},
    {"float16", at::kHalf},
    {"half", at::kHalf},
    {"bfloat16", at::kBFloat16},
    {"bf16", at::kBFloat16},
    {"int64", at::kLong},
    {"long", at::kLong},
    {"int32", at::kInt},
    {"int", at::kInt},
    {"int16", at::kShort},
    {"short", at::kShort},
    {"int8", at::kChar},
    {"uint8", at::kByte},
    {"uint16", at::kUInt16},
    {"uint32", at::kUInt32},
    {"uint64", at::kUInt64},
    {"bool", at::kBool},
    {"complex64", at::kComplexFloat},
    {"cfloat", at::kComplexFloat},
    {"complex128", at::kComplexDouble},
    {"cdouble", at::kComplexDouble},
    {"complex32", at::kComplexHalf},
    {"float8_e4m3fn", at::kFloat8_e4m3fn},
    {"float8_e5m2", at::kFloat8_e5m2},
};

}  // namespace

namespace {

/// True if the key and the value on top of the stack are what table.pack adds: n, the length.
bool is_packed_length(lua_State* lua, int index) {
  return lua_type(lua, -2) == LUA_TSTRING && std::string_view(lua_tostring(lua, -2)) == "n" && lua_isinteger(lua, -1) &&
         lua_tointeger(lua, -1) == static_cast<lua_Integer>(lua_rawlen(lua, index));
}

}  // namespace

void check_empty_list(lua_State* lua, int index, const char* required) {
  std::string key;
  lua_pushnil(lua);
  for (bool more = lua_next(lua, index); more; more = key.empty() && lua_next(lua, index)) {
    if (!is_packed_length(lua, index)) key = describe(lua, -2);
    lua_pop(lua, key.empty() ? 1 : 2);
  }
  if (key.empty()) return;
  argument_error(lua, index, std::string(required) + " (the table has no element 1, but the key " + key + ")");
}

std::string name_in_list(lua_State* lua, int index) {
  index = lua_absindex(lua, index);
  std::string first;  // of all, by its bytes: Lua's order differs between ranks
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) != LUA_TSTRING || is_packed_length(lua, index)) continue;
    const std::string name = lua_tostring(lua, -2);
    if (first.empty() || name < first) first = name;
  }
  return first;
}

void check_no_names(lua_State* lua, int index, const std::string& required) {
  const std::string name = name_in_list(lua, index);
  if (!name.empty()) argument_error(lua, index, required + " (it has the name '" + name + "', too)");
}

namespace {

template <class Element, class Check>
std::vector<Element> check_list(lua_State* lua, int index, const char* required, Check check) {
  if (!lua_istable(lua, index)) argument_error(lua, index, required);
  index = lua_absindex(lua, index);
  std::vector<Element> values;
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  values.reserve(count);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    std::optional<Element> value = check(lua, -1);
    if (!value) {
      const std::string got = describe(lua, -1);
      lua_pop(lua, 1);
      std::ostringstream text;
      text << required << " (element " << i << " is " << got << ")";
      argument_error(lua, index, text.str());
    }
    values.push_back(std::move(*value));
    lua_pop(lua, 1);
  }
  if (count == 0) {
    check_empty_list(lua, index, required);
  } else {
    check_no_names(lua, index, required);
  }
  return values;
}

std::optional<double> to_number(lua_State* lua, int index) {
  if (lua_type(lua, index) != LUA_TNUMBER) return std::nullopt;
  return lua_tonumber(lua, index);
}

std::string describe_table(lua_State* lua, int index) {
  std::ostringstream text;
  index = lua_absindex(lua, index);
  if (luaL_getmetafield(lua, index, "__name") != LUA_TNIL) {
    const std::string name = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : "an object";
    lua_pop(lua, 1);
    if (name != "config") return name;
  }
  const auto length = static_cast<lua_Integer>(lua_rawlen(lua, index));
  text << "{";
  for (lua_Integer i = 1; i <= std::min<lua_Integer>(length, 6); ++i) {
    lua_rawgeti(lua, index, i);
    text << (i > 1 ? ", " : "") << (lua_istable(lua, -1) ? "{...}" : describe(lua, -1));
    lua_pop(lua, 1);
  }
  if (length > 6) text << ", ... " << length << " elements";
  std::vector<std::string> names;  // sorted, so that all ranks say the same
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) == LUA_TSTRING) names.emplace_back(lua_tostring(lua, -2));
  }
  std::sort(names.begin(), names.end());
  names.resize(std::min<size_t>(names.size(), 6));
  for (const std::string& name : names) {
    lua_pushlstring(lua, name.data(), name.size());
    lua_rawget(lua, index);
    text << (&name == names.data() && length == 0 ? "" : ", ") << name << " = "
         << (lua_istable(lua, -1) ? "{...}" : describe(lua, -1));
    lua_pop(lua, 1);
  }
  text << "}";
  return text.str();
}

}  // namespace

void push(lua_State* lua, bool value) { lua_pushboolean(lua, value); }
void push(lua_State* lua, double value) { lua_pushnumber(lua, value); }
void push(lua_State* lua, std::string_view text) { lua_pushlstring(lua, text.data(), text.size()); }
void push(lua_State* lua, at::ScalarType dtype) { push(lua, dtype_name(dtype)); }
void push(lua_State* lua, const c10::Device& device) { push(lua, device.str()); }

void push(lua_State* lua, const at::Scalar& value) {
  if (value.isBoolean()) {
    push(lua, value.toBool());
  } else if (value.isIntegral(false)) {
    TORCH_CHECK_VALUE(!value.isUnsigned() || value.toUInt64() <= uint64_t{LUA_MAXINTEGER}, value.toUInt64(),
                      " is larger than Lua's integers, which end at ", LUA_MAXINTEGER,
                      "\n  fix   x:view(\"int64\"):item() has the same bits, as an integer below 0; tostring(x) shows "
                      "the number");
    push(lua, value.toLong());
  } else if (value.isFloatingPoint()) {
    push(lua, value.toDouble());
  } else {
    push(lua, at::scalar_tensor(value, at::kComplexDouble));
  }
}

std::optional<at::ScalarType> parse_dtype(std::string_view name) {
  for (const DtypeName& entry : kDtypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const DtypeName& entry : kDtypes) {
    if (dtype == entry.dtype) return entry.name;
  }
  return c10::toString(dtype);
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeName& entry : kDtypes) names.emplace_back(entry.name);
  return names;
}

std::optional<c10::Device> parse_device(const std::string& name) {
  if (name == "meta") return c10::Device(c10::kMeta);
  return parse_compute_device(name);
}

bool is_nil(lua_State* lua, int index) {
  return lua_isnoneornil(lua, index) || (lua_islightuserdata(lua, index) && !lua_touserdata(lua, index));
}

bool is_callable(lua_State* lua, int index) {
  if (lua_isfunction(lua, index)) return true;
  if (luaL_getmetafield(lua, index, "__call") == LUA_TNIL) return false;
  lua_pop(lua, 1);
  return true;
}

std::string describe(lua_State* lua, int index) {
  if (is_nil(lua, index)) return "nil";
  if (const at::Tensor* tensor = to_tensor(lua, index)) return describe(*tensor);
  switch (lua_type(lua, index)) {
    case LUA_TNUMBER: {
      std::ostringstream text;
      if (lua_isinteger(lua, index)) {
        text << lua_tointeger(lua, index);
      } else if (std::isnan(lua_tonumber(lua, index))) {
        text << "nan";
      } else {
        text << lua_tonumber(lua, index);
        if (text.str().find_first_of(".en") == std::string::npos) text << ".0";
      }
      return text.str();
    }
    case LUA_TBOOLEAN:
      return lua_toboolean(lua, index) ? "true" : "false";
    case LUA_TSTRING: {
      const std::string_view text = lua_tostring(lua, index);
      std::ostringstream quoted;
      quoted << "'" << text.substr(0, 40) << (text.size() > 40 ? "..." : "") << "'";
      return quoted.str();
    }
    case LUA_TTABLE:
      return describe_table(lua, index);
    default:
      break;
  }
  if (luaL_getmetafield(lua, index, "__name") == LUA_TSTRING) {
    const std::string name = lua_tostring(lua, -1);
    lua_pop(lua, 1);
    return name == "Tensor" ? kFreedTensor : name;
  }
  return luaL_typename(lua, index);
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined Tensor";
  std::ostringstream text;
  text << "Tensor " << dtype_name(tensor.scalar_type()) << " " << tensor.sizes();
  if (!tensor.device().is_cpu()) text << " " << tensor.device();
  return text.str();
}

void argument_error(lua_State* lua, int index, const std::string& required) {
  const int position = lua_absindex(lua, index);
  const std::string got = describe(lua, position);
  lua_Debug frame;
  std::string name = "?";
  int argument = position;
  std::string type;
  if (lua_getstack(lua, 0, &frame) && lua_getinfo(lua, "n", &frame) && frame.name) {
    name = frame.name;
    type = method_type(lua, frame);
    if (std::string_view(frame.namewhat) == "method" || !type.empty()) --argument;
  }
  TORCH_CHECK_TYPE(got != kFreedTensor, name == "?" ? "" : name + ": ", freed_tensor());
  TORCH_CHECK_TYPE(argument > 0 || type.empty(), dot_call(lua, name, type));
  const std::string what = required.substr(0, required.find("; did you mean"));
  const std::string hint = required.substr(what.size());
  TORCH_CHECK_TYPE(argument > 0, name, ": wrong self, expected ", what, ", got ", got, hint);
  TORCH_CHECK_TYPE(false, name, ": bad argument #", argument, ", expected ", what, ", got ", got, hint);
}

std::optional<int64_t> to_int(lua_State* lua, int index) {
  if (lua_type(lua, index) != LUA_TNUMBER) return std::nullopt;
  int is_integral = 0;
  const lua_Integer value = lua_tointegerx(lua, index, &is_integral);
  if (!is_integral) return std::nullopt;
  return value;
}

const at::Tensor& check_tensor(lua_State* lua, int index) {
  const at::Tensor* tensor = to_tensor(lua, index);
  if (!tensor) argument_error(lua, index, "a tensor");
  return *tensor;
}

at::Tensor opt_tensor(lua_State* lua, int index) {
  return is_nil(lua, index) ? at::Tensor() : check_tensor(lua, index);
}

std::vector<at::Tensor> check_tensor_list(lua_State* lua, int index) {
  if (const at::Tensor* tensor = to_tensor(lua, index)) return {*tensor};
  return check_list<at::Tensor>(lua, index, "a list of tensors", [](lua_State* state, int i) {
    const at::Tensor* tensor = to_tensor(state, i);
    return tensor ? std::optional<at::Tensor>(*tensor) : std::nullopt;
  });
}

int64_t check_int(lua_State* lua, int index) {
  const std::optional<int64_t> value = to_int(lua, index);
  if (!value) argument_error(lua, index, "an integer");
  return *value;
}

double check_number(lua_State* lua, int index) {
  const std::optional<double> value = to_number(lua, index);
  if (!value) argument_error(lua, index, "a number");
  return *value;
}

bool check_bool(lua_State* lua, int index) {
  if (!lua_isboolean(lua, index)) argument_error(lua, index, "true or false");
  return lua_toboolean(lua, index);
}

std::string check_string(lua_State* lua, int index) {
  if (lua_type(lua, index) != LUA_TSTRING) argument_error(lua, index, "a string");
  size_t length = 0;
  const char* text = lua_tolstring(lua, index, &length);
  return {text, length};
}

std::vector<int64_t> check_int_list(lua_State* lua, int index) {
  if (const auto value = to_int(lua, index)) return {*value};
  return check_list<int64_t>(lua, index, "a list of integers", to_int);
}

std::vector<double> check_number_list(lua_State* lua, int index) {
  if (const auto value = to_number(lua, index)) return {*value};
  return check_list<double>(lua, index, "a list of numbers", to_number);
}

std::vector<std::string> check_string_list(lua_State* lua, int index) {
  if (lua_type(lua, index) == LUA_TSTRING) return {check_string(lua, index)};
  return check_list<std::string>(lua, index, "a list of strings", [](lua_State* state, int i) {
    return lua_type(state, i) == LUA_TSTRING ? std::optional<std::string>(lua_tostring(state, i)) : std::nullopt;
  });
}

at::Scalar check_scalar(lua_State* lua, int index) {
  if (lua_isboolean(lua, index)) return at::Scalar(static_cast<bool>(lua_toboolean(lua, index)));
  if (lua_type(lua, index) != LUA_TNUMBER) argument_error(lua, index, "a number or boolean");
  if (lua_isinteger(lua, index)) return at::Scalar(static_cast<int64_t>(lua_tointeger(lua, index)));
  return at::Scalar(static_cast<double>(lua_tonumber(lua, index)));
}

at::ScalarType check_dtype(lua_State* lua, int index) {
  const std::string name = lua_type(lua, index) == LUA_TSTRING ? lua_tostring(lua, index) : "";
  const std::optional<at::ScalarType> dtype = parse_dtype(name);
  if (!dtype) argument_error(lua, index, "a dtype such as \"float32\"" + did_you_mean(name, dtype_names()));
  return *dtype;
}

c10::Device check_device(lua_State* lua, int index) {
  const std::string name = lua_type(lua, index) == LUA_TSTRING ? lua_tostring(lua, index) : "";
  const std::optional<c10::Device> device = parse_device(name);
  if (!device) argument_error(lua, index, "a device such as \"cpu\" or \"cuda:0\"");
  return present(*device);
}

}  // namespace moonhalo::scripting
