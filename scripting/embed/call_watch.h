// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <chrono>
#include <optional>
#include <string>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::scripting {

/// Ends Lua code that does not end by itself: while a state runs, it looks now and then whether a call is beyond its
/// budget, and whether another rank has given the call up. What it raises no pcall keeps (ScriptStop). Calls of C
/// functions, which may wait for others, are not cut short.
class CallWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// From now on for `lua`, and for the coroutines that it makes. `control`: where ranks agree how a call ended; it may
  /// be given another value. Both outlive this.
  CallWatch(lua_State* lua, const CommunicatorPtr& control);
  CallWatch(const CallWatch&) = delete;

  /// While it lives, code runs for `budget`, counted from now, or without a limit. `call` is for the message.
  class Limited {
   public:
    Limited(CallWatch& watch, const std::string& call, std::optional<std::chrono::milliseconds> budget);
    ~Limited();
    Limited(const Limited&) = delete;

   private:
    CallWatch& watch_;
  };

 private:
  static void hook(lua_State* lua, lua_Debug*);
  void poll(lua_State* lua);

  const CommunicatorPtr& control_;
  std::string call_;
  std::optional<std::chrono::milliseconds> budget_;
  Clock::time_point ends_, polls_others_;
};

}  // namespace moonhalo::scripting
