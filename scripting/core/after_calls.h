// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <functional>

namespace moonhalo::scripting {

/// While one lives, `seen` runs on this thread whenever a guarded function (calls.h) has ended, well or not, with the
/// state that called it. May be nested; the innermost counts.
class AfterCalls {
 public:
  using Seen = std::function<void(lua_State*)>;
  explicit AfterCalls(Seen seen);
  ~AfterCalls();
  AfterCalls(const AfterCalls&) = delete;
  AfterCalls& operator=(const AfterCalls&) = delete;

  /// True while one lives on this thread.
  static bool any();
  /// For functions that run several operators in one call: calls `seen` of the innermost one, if there is any.
  static void notify(lua_State* lua);

 private:
  Seen seen_;
  const Seen* before_;
};

}  // namespace moonhalo::scripting
