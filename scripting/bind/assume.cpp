// SPDX-License-Identifier: Apache-2.0
// Numbers of results to plan with, where they depend on values that a dry run does not compute.
#include <c10/util/Exception.h>

#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

/// mh.assume(count, fn, ...) -> any
///   Calls fn(...). In a plan (`moonhalo plan`, `--fake-tensors`) operators within it whose number of results depends
///   on values that are not computed, as that of `x:nonzero()`, give `count` results. Other runs compute the number.
///   count       integer     at least 0
///   fn          function    called with the other arguments
///   returns     any         what fn returns
///   collective  as fn
///   errors      ValueError: a negative count
///     TypeError: fn is not a function
///   example
///     local wet = mh.assume(1000, function(x) return x:nonzero() end, mh.ones{4})
///     wet.shape    --> {4, 1}
int assume(lua_State* lua) {
  const int64_t count = check_int(lua, 1);
  TORCH_CHECK_VALUE(count >= 0, "assume: a count is at least 0\n  have  ", count,
                    "\n  fix   give the number to plan with");
  if (!is_callable(lua, 2)) argument_error(lua, 2, "a function");
  const AssumedCount assumed(count);
  lua_call(lua, lua_gettop(lua) - 2, LUA_MULTRET);
  return lua_gettop(lua) - 1;
}

const luaL_Reg kAssumeFunctions[] = {{"assume", guard<assume>}, {nullptr, nullptr}};

const Binding assume_binding{"assume", [](lua_State* lua) { add_functions(lua, kAssumeFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
