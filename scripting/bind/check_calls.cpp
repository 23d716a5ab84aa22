// SPDX-License-Identifier: Apache-2.0
// Sets whether ranks compare their calls.
#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

/// mh.check_calls(on) -> boolean
///   Whether processes compare every collective call (operator, shapes, what made the tensors) before data moves.
///   Thread ranks always do.
///   on          boolean     true at the start, unless MOONHALO_CHECK_CALLS is 0
///   returns     boolean     the setting before
///   collective  over all ranks
///   example
///     mh.check_calls(true)
///     mh.check_calls(true)    --> true
int check_calls(lua_State* lua) {
  push(lua, set_check_calls(*context(lua).world, check_bool(lua, 1)));
  return 1;
}

const luaL_Reg kCheckCallsFunctions[] = {{"check_calls", guard<check_calls>}, {nullptr, nullptr}};

const Binding check_calls_binding{"check_calls", [](lua_State* lua) { add_functions(lua, kCheckCallsFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
