// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/bindings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "moonhalo/scripting/core/methods.h"
#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {
namespace {

const char kMethodsKey = 0;
const char kGettersKey = 0;

struct NamedOpen {
  std::string noun;
  void (*open)(lua_State*);
};

std::vector<NamedOpen>& bindings() {
  static std::vector<NamedOpen> all;
  return all;
}

}  // namespace

void push_tensor_methods(lua_State* lua) { push_registry_table(lua, &kMethodsKey); }
void push_tensor_getters(lua_State* lua) { push_registry_table(lua, &kGettersKey); }

void add_tensor_getters(lua_State* lua, const luaL_Reg* getters) {
  push_tensor_getters(lua);
  add_functions(lua, getters);
  lua_pop(lua, 1);
}

void add_tensor_methods(lua_State* lua, const luaL_Reg* methods) {
  push_tensor_methods(lua);
  add_functions(lua, methods);
  remember_methods(lua, methods, "Tensor");
  lua_pop(lua, 1);
}

void add_functions(lua_State* lua, const luaL_Reg* functions) {
  for (; functions->name; ++functions) {
    lua_pushcfunction(lua, functions->func);
    lua_setfield(lua, -2, functions->name);
  }
}

Binding::Binding(const char* noun, void (*open)(lua_State*)) { bindings().push_back({noun, open}); }

void open_bindings(lua_State* lua) {
  std::vector<NamedOpen> sorted = bindings();
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.noun < b.noun; });
  for (const NamedOpen& binding : sorted) {
    const int before = lua_gettop(lua);
    binding.open(lua);
    TORCH_INTERNAL_ASSERT(lua_gettop(lua) == before, "binding ", binding.noun, " left the stack changed");
  }
}

}  // namespace moonhalo::scripting
