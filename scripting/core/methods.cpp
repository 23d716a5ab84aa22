// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/methods.h"

#include <algorithm>

#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

const char kTypesKey = 0;

/// A type's word in messages, and the usual name of such an object in scripts.
struct Words {
  std::string what, name;
};

Words words_of(const std::string& type) {
  std::string what = type;
  std::transform(what.begin(), what.end(), what.begin(), [](unsigned char c) { return std::tolower(c); });
  if (type == "Tensor") return {what, "x"};
  if (type == "Module") return {what, "net"};
  if (type == "Optimizer") return {what, "opt"};
  if (type == "DeviceMesh") return {"mesh", "mesh"};
  if (type == "Trainer group") return {what, "trainers"};
  if (type == "Context") return {what, "ctx"};
  if (type == "Micro-batch") return {what, "micro"};
  return {what, what};
}

}  // namespace

void remember_methods(lua_State* lua, const luaL_Reg* methods, const std::string& type) {
  push_registry_table(lua, &kTypesKey);
  for (; methods && methods->name; ++methods) {
    lua_pushcfunction(lua, methods->func);
    push(lua, type);
    lua_rawset(lua, -3);
  }
  lua_pop(lua, 1);
}

void remember_method(lua_State* lua, int index, const std::string& type) {
  lua_pushvalue(lua, index);
  push_registry_table(lua, &kTypesKey);
  lua_insert(lua, -2);
  push(lua, type);
  lua_rawset(lua, -3);
  lua_pop(lua, 1);
}

std::string method_type(lua_State* lua, lua_Debug& frame) {
  if (!lua_checkstack(lua, 4)) return "";
  push_registry_table(lua, &kTypesKey);
  lua_getinfo(lua, "f", &frame);
  const bool known = lua_rawget(lua, -2) == LUA_TSTRING;
  const std::string type = known ? lua_tostring(lua, -1) : "";
  lua_pop(lua, 2);
  return type;
}

std::string freed_tensor() {
  return "the tensor was freed\n  fix   use it before x:free(), or before the block of its local x <close> ends";
}

std::string dot_call(lua_State* lua, const std::string& method, const std::string& type) {
  const bool nothing = is_nil(lua, 1);
  if (!nothing && describe(lua, 1) == kFreedTensor) return method + ": " + freed_tensor();
  const auto [what, name] = words_of(type);
  const char* article = std::string("aeiou").find(what[0]) == std::string::npos ? "a " : "an ";
  return method +
         (nothing ? ": called without its " + what
                  : ": called on " + describe(lua, 1) + ", which is not " + article + what) +
         "\n  fix   write a colon, not a dot: " + name + ":" + method + (nothing ? "()" : "(...)");
}

}  // namespace moonhalo::scripting
