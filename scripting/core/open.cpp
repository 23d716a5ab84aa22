// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/open.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <dlfcn.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/scripting/core/bindings.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/error_place.h"
#include "moonhalo/scripting/core/limited_functions.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

/// Raises an error, and notes it where that is a C++ exception.
int raise_and_note(lua_State* lua) {
  try {
    return lua_error(lua);
  } catch (...) {  // of any type: it is Lua's own
    *static_cast<bool*>(lua_touserdata(lua, 1)) = true;
    throw;
  }
}

/// Lua compiled as C jumps over C++ functions: nothing that they hold is let go. A program that is linked with it gives
/// it to all its libraries.
void check_errors_are_exceptions(lua_State* lua) {
  bool thrown = false;
  lua_pushcfunction(lua, raise_and_note);
  lua_pushlightuserdata(lua, &thrown);
  lua_pcall(lua, 1, 0, 0);
  lua_pop(lua, 1);
  Dl_info library{};
  const bool known = dladdr(reinterpret_cast<const void*>(&lua_error), &library) != 0 && library.dli_fname != nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(
      thrown,
      "moonhalo: this program's Lua is compiled as C, so its errors would leave C++ functions without an end\n  have  ",
      known ? library.dli_fname : "no name of its library",
      "\n  fix   link the program with liblua5.4-c++ in its place, which has the same functions");
}

/// Leaves out the templates of the current folder ("./?.so"): a job may start where strangers can write.
std::string without_current_folder(const std::string& templates) {
  std::istringstream all(templates);
  std::string result, one;
  while (std::getline(all, one, ';')) {
    if (one.starts_with('/')) result += (result.empty() ? "" : ";") + one;
  }
  return result;
}

/// `require` looks for Lua files in the script's folder first, for libraries in the system's alone.
void set_module_paths(lua_State* lua, const std::string& script) {
  const std::string folder = std::filesystem::path(script).parent_path().string();
  const std::string prefix = folder.empty() ? "" : folder + "/";
  lua_getglobal(lua, "package");
  lua_getfield(lua, -1, "path");
  lua_getfield(lua, -2, "cpath");
  push(lua, prefix + "?.lua;" + prefix + "?/init.lua;" + lua_tostring(lua, -2));
  lua_setfield(lua, -4, "path");
  push(lua, without_current_folder(lua_tostring(lua, -1)));
  lua_setfield(lua, -4, "cpath");
  lua_pop(lua, 3);
}

}  // namespace

void open_moonhalo(lua_State* lua, Context context) {
  luaL_checkstack(lua, 20, "open_moonhalo");
  check_errors_are_exceptions(lua);
  const int top = lua_gettop(lua);
  auto state = std::make_shared<StateData>();
  state->context = std::move(context);
  if (!state->context.world) state->context.world = make_self_communicator();
  state->context.manual_seed(c10::default_rng_seed_val);
  lua_rawgeti(lua, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  state->lua = lua_tothread(lua, -1);
  keep_state_data(lua, state);
  set_program_position(state.get(), [main = state->lua] {
    const std::string position = script_position(main);
    return position.substr(0, position.rfind(": "));
  });

  open_module_table(lua);
  open_bindings(lua);
  run_preludes(lua);
  push_module(lua);
  limit_arguments(lua, -1, "mh.");
  push_tensor_methods(lua);
  limit_arguments(lua, -1, "Tensor:");
  lua_settop(lua, top);
}

std::unique_ptr<lua_State, void (*)(lua_State*)> new_state(Context context) {
  std::unique_ptr<lua_State, void (*)(lua_State*)> state(luaL_newstate(), lua_close);
  TORCH_CHECK(state != nullptr, "moonhalo: no memory for a Lua state");
  lua_State* lua = state.get();
  luaL_openlibs(lua);
  lua_register(lua, "pcall", place_pcall);
  lua_register(lua, "xpcall", place_xpcall);
  patch_coroutines(lua);
  const std::string script = context.script;
  const std::vector<std::string> arguments = context.arguments;
  set_module_paths(lua, script);
  open_moonhalo(lua, std::move(context));

  push(lua, arguments);
  push(lua, script);
  lua_rawseti(lua, -2, 0);
  lua_setglobal(lua, "arg");
  return state;
}

}  // namespace moonhalo::scripting
