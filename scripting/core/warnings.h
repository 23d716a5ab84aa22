// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <lua.hpp>

#include <string>
#include <vector>

namespace moonhalo::scripting {

/// While it lives, warnings of LibTorch and of the engine on this thread are printed to stderr as
/// "script.lua:12: warning: ..." with the line of the script that caused them; each text once in
/// this process, however many ranks (threads) say it. Of several processes the first prints those of LibTorch, since
/// all ranks make the same calls. The engine's own are made by one rank where all would say the same.
class ScriptWarnings {
 public:
  explicit ScriptWarnings(lua_State* lua) : handler_(lua), guard_(&handler_) {}
  /// Prints those that this process has left to the first: for a failure, since they may explain it.
  void print_kept() { handler_.print_kept(); }

 private:
  class Handler : public c10::WarningHandler {
   public:
    explicit Handler(lua_State* lua) : lua_(lua) {}
    void process(const c10::Warning& warning) override;
    void print_kept();

   private:
    lua_State* lua_;
    std::vector<std::string> kept_;
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace moonhalo::scripting
