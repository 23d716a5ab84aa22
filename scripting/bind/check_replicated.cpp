// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.check_replicated(on = nil) -> boolean
///   Whether plain tensors that are used together with ShardTensors are compared between ranks, because they must be
///   equal on all of them. Without an argument nothing changes.
///   on          boolean?    true at the start
///   returns     boolean     the setting before
///   collective  over all ranks, which must give the same; without an argument no
///   errors      TypeError: neither true nor false
///   example
///     mh.check_replicated(false), mh.check_replicated(true)    --> true  false
int check_replicated_function(lua_State* lua) {
  if (lua_gettop(lua) == 0) {
    push(lua, check_replicated());
    return 1;
  }
  TORCH_CHECK_TYPE(lua_isboolean(lua, 1), "check_replicated: expected true or false, got ", describe(lua, 1));
  push(lua, set_check_replicated(lua_toboolean(lua, 1) != 0, context(lua).world.get()));
  return 1;
}

const luaL_Reg kCheckReplicatedFunctions[] = {{"check_replicated", guard<check_replicated_function>},
                                              {nullptr, nullptr}};

const Binding check_replicated_binding("check_replicated",
                                       [](lua_State* lua) { add_functions(lua, kCheckReplicatedFunctions); });

}  // namespace

}  // namespace moonhalo::scripting
