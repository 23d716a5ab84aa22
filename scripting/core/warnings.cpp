// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/warnings.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "moonhalo/scripting/core/calls.h"

namespace moonhalo::scripting {

void ScriptWarnings::Handler::process(const c10::Warning& warning) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::string text = script_position(lua_) + "warning: " + warning.msg() + "\n";
  const std::lock_guard lock(mutex);
  if (!said.insert(text).second) return;
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace moonhalo::scripting
