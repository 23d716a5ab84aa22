// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <lua.hpp>

namespace moonhalo::scripting {

/// While it lives, warnings of LibTorch and of the engine on this thread are printed to stderr as
/// "script.lua:12: warning: ..." with the line of the script that caused them; each text once in
/// this process, however many ranks (threads) say it.
class ScriptWarnings {
 public:
  explicit ScriptWarnings(lua_State* lua) : handler_(lua), guard_(&handler_) {}

 private:
  class Handler : public c10::WarningHandler {
   public:
    explicit Handler(lua_State* lua) : lua_(lua) {}
    void process(const c10::Warning& warning) override;

   private:
    lua_State* lua_;
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace moonhalo::scripting
