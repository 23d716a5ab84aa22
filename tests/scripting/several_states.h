// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

using State = std::unique_ptr<lua_State, void (*)(lua_State*)>;

/// States that live at once: Lua seeds their hashes by their addresses, so `next` orders keys differently in them.
inline std::vector<State> several_states(int count = 8) {
  std::vector<State> states;
  for (int i = 0; i < count; ++i) states.push_back(new_state());
  return states;
}

/// Returns what `code` returns, as text, or its error.
inline std::string run(lua_State* lua, const std::string& code) {
  lua_settop(lua, 0);
  if (luaL_loadbufferx(lua, code.data(), code.size(), "=script.lua", "t") != LUA_OK) return lua_tostring(lua, -1);
  try {
    call_traced(lua, 0, 1);
  } catch (const LuaError& error) {
    return error.what();
  }
  return luaL_tolstring(lua, -1, nullptr);
}

inline std::set<std::string> results(const std::vector<State>& states, const std::string& code) {
  std::set<std::string> all;
  for (const State& state : states) all.insert(run(state.get(), code));
  return all;
}

}  // namespace moonhalo::scripting
