// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/state.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/scripting/core/errors.h"

namespace moonhalo::scripting {

namespace {

const char kStateKey = 0;

using StatePtr = std::shared_ptr<StateData>;

int collect_state(lua_State* lua) {
  auto* state = static_cast<StatePtr*>(lua_touserdata(lua, 1));
  (*state)->lua = nullptr;
  for (at::Tensor* tensor : std::exchange((*state)->kept, {})) tensor->reset();
  clear_program_position(state->get());
  state->~StatePtr();
  return 0;
}

}  // namespace

void Context::manual_seed(uint64_t seed) {
  seed_ = seed;
  moonhalo::manual_seed(seed);
}

const StatePtr& state_data(lua_State* lua) {
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kStateKey);
  auto* state = static_cast<StatePtr*>(lua_touserdata(lua, -1));
  lua_pop(lua, 1);
  TORCH_CHECK_VALUE(state != nullptr, "moonhalo: this Lua state was not opened\n  fix   call open_moonhalo(lua) first");
  return *state;
}

Context& context(lua_State* lua) { return state_data(lua)->context; }

void keep_state_data(lua_State* lua, std::shared_ptr<StateData> state) {
  new (lua_newuserdatauv(lua, sizeof(StatePtr), 0)) StatePtr(state);
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, collect_state);
  lua_setfield(lua, -2, "__gc");
  lua_setmetatable(lua, -2);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kStateKey);
}

void push_registry_table(lua_State* lua, const void* key) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, key) == LUA_TTABLE) return;
  lua_pop(lua, 1);
  lua_newtable(lua);
  lua_pushvalue(lua, -1);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, key);
}

lua_State* open_state(const StateData& state) {
  if (!state.lua) throw LuaError("a Lua function was called after its state had been closed");
  if (state.thread != std::this_thread::get_id())
    throw LuaError("a Lua function was called on another thread than its state's");
  return state.lua;
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
  return open_state(*slot_->state);
}

void Reference::push() const {
  lua_State* state = lua();
  luaL_checkstack(state, 4, "reference");
  lua_rawgeti(state, LUA_REGISTRYINDEX, slot_->slot);
}

}  // namespace moonhalo::scripting
