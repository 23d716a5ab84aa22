// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/held_values.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <type_traits>

#include "moonhalo/engine/base/autograd_compat.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

/// Tables in the registry, by the address of a userdata: those that live, weakly; those that are kept.
const char kHandlesKey = 0, kKeptKey = 0;

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakNode =
    std::conditional_t<std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>,
                       std::weak_ptr<torch::autograd::Node>, c10::weak_intrusive_ptr<torch::autograd::Node>>;

void push_handles(lua_State* lua) {
  push_registry_table(lua, &kHandlesKey);
  if (lua_getmetatable(lua, -1)) {
    lua_pop(lua, 1);
    return;
  }
  lua_createtable(lua, 0, 1);
  lua_pushstring(lua, "v");
  lua_setfield(lua, -2, "__mode");
  lua_setmetatable(lua, -2);
}

/// Pushes the userdata of this address; false, and nothing, if Lua has found it dead.
bool push_handle(lua_State* lua, const void* handle) {
  for (void (*table)(lua_State*) : {+[](lua_State* l) { push_registry_table(l, &kKeptKey); }, &push_handles}) {
    table(lua);
    const bool found = lua_rawgetp(lua, -1, handle) == LUA_TUSERDATA;
    lua_remove(lua, -2);
    if (found) return true;
    lua_pop(lua, 1);
  }
  return false;
}

/// Pushes value `number` of the userdata of this address; false, and nothing, if there is none.
bool push_value(lua_State* lua, const void* handle, int64_t number) {
  if (!push_handle(lua, handle)) return false;
  const int kind = lua_getiuservalue(lua, -1, 1) == LUA_TTABLE ? lua_rawgeti(lua, -1, number) : LUA_TNONE;
  if (kind == LUA_TNONE || kind == LUA_TNIL) {
    lua_pop(lua, kind == LUA_TNONE ? 2 : 3);
    return false;
  }
  lua_replace(lua, -3);
  lua_pop(lua, 1);
  return true;
}

/// The userdata at the top enters a table.
void enter(lua_State* lua, void (*table)(lua_State*)) {
  table(lua);
  lua_pushvalue(lua, -2);
  lua_rawsetp(lua, -2, lua_touserdata(lua, -1));
  lua_pop(lua, 1);
}

/// Pushes the table of values of the userdata at the top.
void push_values(lua_State* lua) {
  if (lua_getiuservalue(lua, -1, 1) == LUA_TTABLE) return;
  lua_pop(lua, 1);
  lua_newtable(lua);
  lua_pushvalue(lua, -1);
  lua_setiuservalue(lua, -3, 1);
}

}  // namespace

OwnedFunction::OwnedFunction(lua_State* lua, int object, int value)
    : state_(state_data(lua)), handle_(lua_touserdata(lua, object)), number_(++state_->held_so_far) {
  luaL_checkstack(lua, 4, "a function of an object");
  value = lua_absindex(lua, value);
  lua_pushvalue(lua, object);
  push_values(lua);
  lua_pushvalue(lua, value);
  lua_rawseti(lua, -2, number_);
  lua_pop(lua, 1);
  enter(lua, &push_handles);
  lua_pop(lua, 1);
}

lua_State* OwnedFunction::lua() const {
  TORCH_INTERNAL_ASSERT(state_, "empty Lua function");
  return open_state(*state_);
}

bool OwnedFunction::try_push() const {
  lua_State* state = lua();
  luaL_checkstack(state, 4, "a function of an object");
  return push_value(state, handle_, number_);
}

void OwnedFunction::push() const {
  if (!try_push()) throw LuaError("a function of an object was called after the object was collected");
}

struct HeldValue::Slot {
  /// One tensor, and the userdata of it that holds the value.
  struct Holder {
    WeakTensor tensor;
    const void* handle;
    bool holds_tensor = true;
  };

  std::shared_ptr<StateData> state;
  int64_t number = 0;
  std::vector<Holder> holders;
  std::optional<WeakNode> node;

  ~Slot() {
    if (state->thread != std::this_thread::get_id()) {
      // The value stays where it is, to be found no more, until its userdata die.
      const std::lock_guard lock(state->dead_mutex);
      state->dead_held.push_back(number);
      return;
    }
    state->held.erase(number);
    if (state->lua && lua_checkstack(state->lua, 8)) take_out(state->lua);
  }

  /// Others than the scripts' userdata hold a tensor, or the node where the value is called.
  bool is_needed() const {
    long users_of_node = 0;
    for (const Holder& holder : holders) {
      const auto tensor = holder.tensor.lock();
      if (!tensor) continue;
      if (tensor.use_count() > (holder.holds_tensor ? 2U : 1U)) return true;  // one is ours, here
      const auto* meta = static_cast<torch::autograd::AutogradMeta*>(tensor->autograd_meta());
      users_of_node += node && meta && meta->grad_fn_ && meta->grad_fn_ == node->lock();
    }
    return node && static_cast<long>(node->use_count()) > users_of_node;
  }

  void take_out(lua_State* lua) const {
    for (const Holder& holder : holders) {
      if (!push_handle(lua, holder.handle)) continue;
      if (lua_getiuservalue(lua, -1, 1) == LUA_TTABLE) {
        lua_pushnil(lua);
        lua_rawseti(lua, -2, number);
      }
      lua_pop(lua, 2);
    }
  }
};

namespace {

using SlotPointer = std::shared_ptr<HeldValue::Slot>;

/// Calls `each(slot)` for the values that the userdata at `index` holds.
template <typename Each>
void for_each_slot(lua_State* lua, int index, StateData& state, const Each& each) {
  if (lua_getiuservalue(lua, index, 1) != LUA_TTABLE) return lua_pop(lua, 1);
  std::vector<int64_t> numbers;
  for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) numbers.push_back(lua_tointeger(lua, -2));
  lua_pop(lua, 1);
  for (const int64_t number : numbers) {
    const auto found = state.held.find(number);
    if (found == state.held.end()) continue;
    if (const SlotPointer slot = std::static_pointer_cast<HeldValue::Slot>(found->second.lock())) each(*slot);
  }
}

bool any_is_needed(lua_State* lua, int index, StateData& state) {
  bool needed = false;
  for_each_slot(lua, index, state, [&](const HeldValue::Slot& slot) { needed |= slot.is_needed(); });
  return needed;
}

int sweep_kept(lua_State* lua);

/// The next collection calls sweep_kept.
void watch_collections(lua_State* lua, StateData& state) {
  if (state.watches_collections) return;
  state.watches_collections = true;
  lua_newuserdatauv(lua, 0, 0);
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, sweep_kept);
  lua_setfield(lua, -2, "__gc");
  lua_setmetatable(lua, -2);
  lua_pop(lua, 1);
}

/// Lets go of the userdata that autograd does not need any more: the next collection finds them dead, or not.
int sweep_kept(lua_State* lua) {
  StateData& state = *state_data(lua);
  state.watches_collections = false;
  push_registry_table(lua, &kKeptKey);
  bool any = false;
  for (lua_pushnil(lua); lua_next(lua, -2);) {
    const bool needed = any_is_needed(lua, lua_gettop(lua), state);
    any |= needed;
    auto* handle = static_cast<at::Tensor*>(lua_touserdata(lua, -1));
    lua_pop(lua, 1);
    if (needed) continue;
    lua_pushvalue(lua, -1);
    lua_pushnil(lua);
    lua_rawset(lua, -4);
    state.kept.erase(handle);
  }
  lua_pop(lua, 1);
  if (any) watch_collections(lua, state);
  return 0;
}

}  // namespace

HeldValue::HeldValue(lua_State* lua, const std::vector<int>& tensors, int value) : slot_(std::make_shared<Slot>()) {
  const std::shared_ptr<StateData>& state = state_data(lua);
  slot_->state = state;
  slot_->number = ++state->held_so_far;
  {
    const std::lock_guard lock(state->dead_mutex);
    for (const int64_t dead : state->dead_held) state->held.erase(dead);
    state->dead_held.clear();
  }
  value = lua_absindex(lua, value);
  luaL_checkstack(lua, 8, "a value beside a tensor");
  for (const int index : tensors) {
    const at::Tensor& tensor = check_tensor(lua, index);
    if (!slot_->node && tensor.grad_fn()) slot_->node.emplace(tensor.grad_fn());
    slot_->holders.push_back({WeakTensor(tensor.getIntrusivePtr()), lua_touserdata(lua, index)});
    lua_pushvalue(lua, index);
    push_values(lua);
    lua_pushvalue(lua, value);
    lua_rawseti(lua, -2, slot_->number);
    lua_pop(lua, 1);
    enter(lua, &push_handles);
    lua_pop(lua, 1);
  }
  state->held.emplace(slot_->number, slot_);
}

lua_State* HeldValue::lua() const {
  TORCH_INTERNAL_ASSERT(slot_, "empty Lua value");
  return open_state(*slot_->state);
}

void HeldValue::push() const {
  lua_State* state = lua();
  luaL_checkstack(state, 8, "a value beside a tensor");
  const auto find = [&] {
    return std::any_of(slot_->holders.begin(), slot_->holders.end(),
                       [&](const Slot::Holder& holder) { return push_value(state, holder.handle, slot_->number); });
  };
  if (find()) return;
  // Between the collection that found the userdata dead and its __gc, which keeps it.
  lua_gc(state, LUA_GCCOLLECT);
  if (!find()) throw LuaError("a Lua function of a hook or of mh.checkpoint was called while it was being collected");
}

bool keep_for_autograd(lua_State* lua) {
  if (lua_getiuservalue(lua, 1, 1) != LUA_TTABLE) {
    lua_pop(lua, 1);
    return false;
  }
  lua_pop(lua, 1);
  StateData& state = *state_data(lua);
  if (!any_is_needed(lua, 1, state)) {
    forget_handle(lua, 1);
    return false;
  }
  lua_pushvalue(lua, 1);
  enter(
      lua, +[](lua_State* l) { push_registry_table(l, &kKeptKey); });
  enter(lua, &push_handles);
  state.kept.insert(static_cast<at::Tensor*>(lua_touserdata(lua, 1)));
  lua_getmetatable(lua, 1);  // set again: its __gc is called again
  lua_setmetatable(lua, 1);
  lua_pop(lua, 1);
  watch_collections(lua, state);
  return true;
}

void forget_handle(lua_State* lua, int index) {
  const void* handle = lua_touserdata(lua, index);
  for_each_slot(lua, lua_absindex(lua, index), *state_data(lua), [&](HeldValue::Slot& slot) {
    for (auto& holder : slot.holders) {
      if (holder.handle == handle) holder.holds_tensor = false;
    }
  });
}

}  // namespace moonhalo::scripting
