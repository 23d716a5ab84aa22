// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "scripting/state.h"

namespace moonhalo::scripting {

/// Everything that hangs on one Lua state. Lives until lua_close, or longer while a Reference holds
/// it.
struct StateData {
  Context context;
  lua_State* lua = nullptr;  ///< main thread of the state; null once it is closed
  std::thread::id thread = std::this_thread::get_id();
  int64_t unswept_bytes = 0;  ///< tensor memory handed to Lua since the last collection

  /// Registry slots whose References died on other threads; freed by the state's own thread.
  std::mutex dead_mutex;
  std::vector<int> dead_slots;
};

const std::shared_ptr<StateData>& state_data(lua_State* lua);

/// Pushes the table that the registry keeps under `key` (the address of a static), made on first
/// use.
void push_registry_table(lua_State* lua, const void* key);

/// The methods that tensors have besides operators, and their attributes.
void push_tensor_methods(lua_State* lua);
void push_tensor_getters(lua_State* lua);

}  // namespace moonhalo::scripting
