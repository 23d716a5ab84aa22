// SPDX-License-Identifier: Apache-2.0
// Sets how long ranks wait for each other.
#include <c10/util/Exception.h>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// mh.get_timeout() -> number
///   How long this rank waits for others in a collective before it gives up.
///   returns     number      seconds
///   collective  no
///   example
///     mh.get_timeout() > 0    --> true
int get_timeout(lua_State* lua) {
  push(lua, seconds(context(lua).world->timeout()));
  return 1;
}

/// mh.set_timeout(seconds) -> number
///   Sets how long this rank waits for others in a collective before it gives up, on every mesh.
///   seconds     number      0.001 to 1e9
///   returns     number      seconds before
///   collective  no, but all ranks must set the same
///   errors      ValueError: another number
///   example
///     local before = mh.set_timeout(300)
///     mh.set_timeout(before)    --> 300.0
int set_timeout(lua_State* lua) {
  const double limit = check_number(lua, 1);
  TORCH_CHECK_VALUE(limit >= 1e-3 && limit <= 1e9, "set_timeout: expected seconds from 0.001 to 1e9, got ",
                    describe(lua, 1));
  get_timeout(lua);
  backend_of(*context(lua).world).set_time_limit(std::chrono::milliseconds(static_cast<int64_t>(limit * 1000)));
  return 1;
}

const luaL_Reg kTimeoutFunctions[] = {
    {"get_timeout", guard<get_timeout>}, {"set_timeout", guard<set_timeout>}, {nullptr, nullptr}};

const Binding timeout_binding{"timeout", [](lua_State* lua) { add_functions(lua, kTimeoutFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
