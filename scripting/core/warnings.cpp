// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/warnings.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {

namespace {

bool is_of_libtorch(const c10::Warning& warning) {
  constexpr std::string_view kFile = "scripting/core/warnings.cpp";
  std::string_view sources = __FILE__;
  sources.remove_suffix(kFile.size());
  return !std::string_view(warning.source_location().file).starts_with(sources);
}

/// True where another process prints what is the same on all ranks.
bool is_other_process(const Context& run) { return !run.ranks_are_threads && !run.world->is_fake() && run.rank() != 0; }

void print_warning(const std::string& text) {
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void ScriptWarnings::Handler::process(const c10::Warning& warning) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::string text = script_position(lua_) + "warning: " + warning.msg() + "\n";
  const std::lock_guard lock(mutex);
  if (!said.insert(text).second) return;
  if (is_other_process(context(lua_)) && is_of_libtorch(warning)) {
    kept_.push_back(text);
  } else {
    print_warning(text);
  }
}

void ScriptWarnings::Handler::print_kept() {
  for (const std::string& text : kept_) print_warning(text);
  kept_.clear();
}

}  // namespace moonhalo::scripting
