// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

/// A subcommand that an embedded Lua file carries out: calls its function `main` on one rank with the one argument that
/// `push_argument` pushes. Returns the exit status that it gives (nil: 0).
inline int run_lua_command(const std::string& file, const std::function<void(lua_State*)>& push_argument) {
  SessionOptions options;
  options.ranks = 1;
  options.backend = "threads";
  options.quiet = true;
  int result = kDone;
  const int status = run_session(options, [&](lua_State* lua) {
    push_embedded(lua, file, "main");
    push_argument(lua);
    call_traced(lua, 1, 1);
    if (!is_nil(lua, -1)) result = static_cast<int>(check_int(lua, -1));
  });
  return status != kDone ? status : result;
}

}  // namespace moonhalo::scripting
