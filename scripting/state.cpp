// SPDX-License-Identifier: Apache-2.0
#include "scripting/state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <filesystem>

#include "engine/check_calls.h"
#include "engine/random.h"
#include "scripting/devices.h"
#include "scripting/error_place.h"
#include "scripting/methods.h"
#include "scripting/modules.h"
#include "scripting/script_exit.h"
#include "scripting/state_data.h"

namespace moonhalo::scripting {

namespace {

const char kStateKey = 0;
const char kMethodsKey = 0;
const char kGettersKey = 0;

using StatePtr = std::shared_ptr<StateData>;

int collect_state(lua_State* lua) {
  auto* state = static_cast<StatePtr*>(lua_touserdata(lua, 1));
  (*state)->lua = nullptr;
  clear_program_position(state->get());
  state->~StatePtr();
  return 0;
}

struct NamedOpen {
  std::string noun;
  void (*open)(lua_State*);
};

std::vector<NamedOpen>& bindings() {
  static std::vector<NamedOpen> all;
  return all;
}

std::string string_at(lua_State* lua, int index) {
  size_t length = 0;
  const char* text = lua_tolstring(lua, index, &length);
  return text ? std::string(text, length) : std::string("(error without a message)");
}

int traced_message(lua_State* lua) {
  if (is_exit(lua, 1)) return 1;
  push(lua, placed_message(lua, lua_type(lua, 1) == LUA_TSTRING ? string_at(lua, 1) : error_value_text(lua, 1)));
  luaL_traceback(lua, lua, nullptr, 1);
  lua_createtable(lua, 2, 0);
  lua_insert(lua, -3);
  lua_rawseti(lua, -3, 2);
  lua_rawseti(lua, -2, 1);
  return 1;
}

void add_all(lua_State* lua, const luaL_Reg* functions) {
  for (; functions->name; ++functions) {
    lua_pushcfunction(lua, functions->func);
    lua_setfield(lua, -2, functions->name);
  }
}

}  // namespace

at::Generator Context::generator(c10::Device wanted) {
  const c10::Device device = present(wanted);
  if (device.is_cpu()) return default_generator();
  c10::DeviceIndex index = device.index();
  if (index < 0) {
    index = at::globalContext().getAcceleratorHooksInterface(device.type()).getCurrentDevice();
  }
  at::Generator& generator = generators_[{device.type(), index}];
  if (!generator.defined()) {
    generator = at::globalContext().defaultGenerator(c10::Device(device.type(), index)).clone();
    generator.set_current_seed(seed_);
  }
  return generator;
}

void Context::manual_seed(uint64_t seed) {
  seed_ = seed;
  moonhalo::manual_seed(seed);
  for (auto& [device, generator] : generators_) generator.set_current_seed(seed);
}

const StatePtr& state_data(lua_State* lua) {
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kStateKey);
  auto* state = static_cast<StatePtr*>(lua_touserdata(lua, -1));
  lua_pop(lua, 1);
  TORCH_CHECK_VALUE(
      state != nullptr,
      "moonhalo: this Lua state was not opened\n  fix   call open_moonhalo(lua) first");
  return *state;
}

Context& context(lua_State* lua) { return state_data(lua)->context; }

void push_registry_table(lua_State* lua, const void* key) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return;
  lua_pop(lua, 1);
  lua_newtable(lua);
  lua_pushvalue(lua, -1);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, key);
}

void push_tensor_methods(lua_State* lua) { push_registry_table(lua, &kMethodsKey); }
void push_tensor_getters(lua_State* lua) { push_registry_table(lua, &kGettersKey); }

void add_tensor_getters(lua_State* lua, const luaL_Reg* getters) {
  push_tensor_getters(lua);
  add_all(lua, getters);
  lua_pop(lua, 1);
}

void add_tensor_methods(lua_State* lua, const luaL_Reg* methods) {
  push_tensor_methods(lua);
  add_all(lua, methods);
  remember_methods(lua, methods, "Tensor");
  lua_pop(lua, 1);
}

void add_functions(lua_State* lua, const luaL_Reg* functions) { add_all(lua, functions); }

Binding::Binding(const char* noun, void (*open)(lua_State*)) { bindings().push_back({noun, open}); }

void open_moonhalo(lua_State* lua, Context context) {
  luaL_checkstack(lua, 20, "open_moonhalo");
  const int top = lua_gettop(lua);
  auto state = std::make_shared<StateData>();
  state->context = std::move(context);
  if (!state->context.world) state->context.world = make_self_communicator();
  state->context.manual_seed(c10::default_rng_seed_val);
  lua_rawgeti(lua, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  state->lua = lua_tothread(lua, -1);
  new (lua_newuserdatauv(lua, sizeof(StatePtr), 0)) StatePtr(state);
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, collect_state);
  lua_setfield(lua, -2, "__gc");
  lua_setmetatable(lua, -2);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kStateKey);
  set_program_position(state.get(), [main = state->lua] {
    const std::string position = script_position(main);
    return position.substr(0, position.rfind(": "));
  });

  open_module_table(lua);
  std::vector<NamedOpen> sorted = bindings();
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.noun < b.noun; });
  for (const NamedOpen& binding : sorted) {
    const int before = lua_gettop(lua);
    binding.open(lua);
    TORCH_INTERNAL_ASSERT(lua_gettop(lua) == before, "binding ", binding.noun,
                          " left the stack changed");
  }
  run_preludes(lua);
  lua_settop(lua, top);
}

std::unique_ptr<lua_State, void (*)(lua_State*)> new_state(Context context) {
  std::unique_ptr<lua_State, void (*)(lua_State*)> state(luaL_newstate(), lua_close);
  TORCH_CHECK(state != nullptr, "moonhalo: no memory for a Lua state");
  lua_State* lua = state.get();
  luaL_openlibs(lua);
  lua_register(lua, "pcall", place_pcall);
  lua_register(lua, "xpcall", place_xpcall);
  mend_coroutines(lua);
  const std::string script = context.script;
  const std::vector<std::string> arguments = context.arguments;
  open_moonhalo(lua, std::move(context));

  const std::string folder = std::filesystem::path(script).parent_path().string();
  const std::string prefix = folder.empty() ? "" : folder + "/";
  lua_getglobal(lua, "package");
  lua_getfield(lua, -1, "path");
  const std::string path = prefix + "?.lua;" + prefix + "?/init.lua;" + lua_tostring(lua, -1);
  push(lua, path);
  lua_setfield(lua, -3, "path");
  lua_pop(lua, 2);

  push(lua, arguments);
  push(lua, script);
  lua_rawseti(lua, -2, 0);
  lua_setglobal(lua, "arg");
  return state;
}

std::string script_position(lua_State* lua) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(lua, level, &frame); ++level) {
    lua_getinfo(lua, "Sl", &frame);
    if (frame.currentline <= 0 || is_embedded_chunk(frame.source)) continue;
    return std::string(frame.short_src) + ":" + std::to_string(frame.currentline) + ": ";
  }
  return "";
}

int run_guarded(lua_State* lua, lua_CFunction fn) {
  // The message is pushed inside the handler and raised after it, so that the C++ exception is gone
  // by then.
  try {
    return fn(lua);
  } catch (const ScriptExit& exit) {
    push_exit(lua, exit);
  } catch (const LuaError& error) {
    push(lua, std::string_view(error.what()));
  } catch (const CommError& error) {
    context(lua).rank_was_lost = true;
    push(lua, script_position(lua) + error.what() + module_place(lua));
  } catch (const std::exception& error) {
    push(lua, script_position(lua) + plain_message(error) + module_place(lua));
  }
  return lua_error(lua);
}

void call_traced(lua_State* lua, int arguments, int results) {
  const int base = lua_gettop(lua) - arguments;
  lua_pushcfunction(lua, traced_message);
  lua_pushcfunction(lua, call_with_guard);
  lua_rotate(lua, base, 2);
  const int status = lua_pcall(lua, arguments + 1, results, base);
  lua_remove(lua, base);
  if (status == LUA_OK) return;
  if (is_exit(lua, -1)) {
    lua_pop(lua, 1);
    throw to_exit(lua);
  }
  std::string message, trace;
  if (lua_istable(lua, -1)) {
    lua_rawgeti(lua, -1, 1);
    lua_rawgeti(lua, -2, 2);
    message = string_at(lua, -2);
    trace = string_at(lua, -1);
    lua_pop(lua, 2);
  } else {
    message = string_at(lua, -1);
  }
  lua_pop(lua, 1);
  throw LuaError(message, trace);
}

struct Reference::Slot {
  std::shared_ptr<StateData> state;
  int slot;

  ~Slot() {
    if (state->thread == std::this_thread::get_id()) {
      if (state->lua) luaL_unref(state->lua, LUA_REGISTRYINDEX, slot);
    } else {
      const std::lock_guard lock(state->dead_mutex);
      state->dead_slots.push_back(slot);
    }
  }
};

Reference::Reference(lua_State* lua, int index) {
  const std::shared_ptr<StateData> state = state_data(lua);
  {
    const std::lock_guard lock(state->dead_mutex);
    for (const int dead : state->dead_slots) luaL_unref(lua, LUA_REGISTRYINDEX, dead);
    state->dead_slots.clear();
  }
  lua_pushvalue(lua, index);
  slot_ = std::make_shared<Slot>(state, luaL_ref(lua, LUA_REGISTRYINDEX));
}

lua_State* Reference::lua() const {
  TORCH_INTERNAL_ASSERT(slot_, "empty Lua reference");
  if (!slot_->state->lua) throw LuaError("a Lua function was called after its state had been closed");
  if (slot_->state->thread != std::this_thread::get_id()) {
    throw LuaError("a Lua function was called on another thread than its state's");
  }
  return slot_->state->lua;
}

void Reference::push() const {
  lua_State* state = lua();
  luaL_checkstack(state, 4, "reference");
  lua_rawgeti(state, LUA_REGISTRYINDEX, slot_->slot);
}

}  // namespace moonhalo::scripting
