// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/options.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {
namespace {

// The name of an object, whose fields are not options; those of settings (mh.config) are.
std::optional<std::string> object_name(lua_State* lua, int index) {
  if (lua_getmetatable(lua, index) == 0) return std::nullopt;
  lua_getfield(lua, -1, "__name");
  const std::string name = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : "an object";
  lua_pop(lua, 2);
  return name == "config" ? std::nullopt : std::optional(name);
}

}  // namespace

Options::Options(lua_State* lua, int index, std::string op, std::vector<std::string> known)
    : lua_(lua), op_(std::move(op)) {
  if (is_nil(lua, index)) return;
  index_ = lua_absindex(lua, index);
  const bool one_value = !known.empty() && (lua_isnumber(lua, index_) || lua_isboolean(lua, index_));
  TORCH_CHECK_TYPE(lua_istable(lua, index_), op_, ": the options are a table, got ", describe(lua, index_),
                   one_value ? "\n  fix   name it, as in {" + known.front() + " = " + describe(lua, index_) + "}" : "");
  const auto object = object_name(lua, index_);
  TORCH_CHECK_TYPE(!object, op_, ": the options are a plain table, got ", object.value_or(""), "\n  fix   write {",
                   known.empty() ? "name" : known.front(), " = value}");
  std::vector<std::string> unknown;
  for (lua_pushnil(lua); lua_next(lua, index_); lua_pop(lua, 1)) {
    TORCH_CHECK_TYPE(lua_type(lua, -2) == LUA_TSTRING, op_, ": an option has no name: ", describe(lua, -1),
                     "\n  fix   write {name = value}");
    std::string key = lua_tostring(lua, -2);
    if (std::find(known.begin(), known.end(), key) == known.end()) unknown.push_back(std::move(key));
  }
  if (unknown.empty()) return;
  // The first by name, so that all ranks say the same.
  const std::string key = *std::min_element(unknown.begin(), unknown.end());
  TORCH_CHECK_VALUE(false, op_, ": unknown option '", key, "'", did_you_mean(key, known), "\n  have  ",
                    c10::Join(", ", known));
}

template <class Check>
auto Options::read(const char* key, const char* expected, Check check) const {
  push(key);
  try {
    auto value = check(lua_, -1);
    lua_pop(lua_, 1);
    return value;
  } catch (const c10::TypeError&) {
    const std::string got = describe(lua_, -1);
    lua_pop(lua_, 1);
    TORCH_CHECK_TYPE(false, op_, ": option '", key, "' has a value of the wrong type: ", got, "\n  fix   give ",
                     expected);
  }
}

void Options::push(const char* key) const {
  if (index_ == 0) {
    lua_pushnil(lua_);
  } else {
    lua_pushstring(lua_, key);
    lua_rawget(lua_, index_);  // settings (mh.config) refuse to be asked for what they lack
  }
}

bool Options::has(const char* key) const {
  push(key);
  const bool present = !is_nil(lua_, -1);
  lua_pop(lua_, 1);
  return present;
}

int64_t Options::get_int(const char* key, int64_t fallback) const {
  return has(key) ? read(key, "an integer", check_int) : fallback;
}

double Options::get_number(const char* key, double fallback) const {
  return has(key) ? read(key, "a number", check_number) : fallback;
}

bool Options::get_bool(const char* key, bool fallback) const {
  return has(key) ? read(key, "true or false", check_bool) : fallback;
}

std::string Options::get_string(const char* key, const std::string& fallback) const {
  return has(key) ? read(key, "a string", check_string) : fallback;
}

std::vector<int64_t> Options::get_int_list(const char* key, std::vector<int64_t> fallback) const {
  return has(key) ? read(key, "a list of integers, or one", check_int_list) : fallback;
}

std::optional<at::ScalarType> Options::get_dtype(const char* key) const {
  return has(key) ? std::optional(read(key, "a dtype, as in \"float32\"", check_dtype)) : std::nullopt;
}

std::optional<c10::Device> Options::get_device(const char* key) const {
  return has(key) ? std::optional(read(key, "a device, as in \"cpu\"", check_device)) : std::nullopt;
}

at::Tensor Options::get_tensor(const char* key) const {
  return has(key) ? read(key, "a tensor", [](lua_State* lua, int index) { return check_tensor(lua, index); })
                  : at::Tensor();
}

}  // namespace moonhalo::scripting
