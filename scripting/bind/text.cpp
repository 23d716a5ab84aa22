// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/python_names.h"

namespace moonhalo::scripting {

namespace {

/// mh.did_you_mean(name, known) -> string
///   The end of an error message that names the nearest known name.
///   name        string      what was asked for
///   known       {string}    what there is
///   returns     string      "; did you mean 'a'?", or "" if none is near
///   collective  no
///   example
///     mh.did_you_mean("redistibute", {"redistribute", "read"})    --> ; did you mean 'redistribute'?
int did_you_mean_lua(lua_State* lua) {
  push(lua, did_you_mean(check_string(lua, 1), check_string_list(lua, 2)));
  return 1;
}

/// mh.clock() -> number
///   Seconds of a clock that only goes forward, to measure how long something takes. Ranks have different values: do
///   not decide by them.
///   returns     number      seconds since a time that means nothing
///   collective  no
///   example
///     local start = mh.clock()
///     mh.clock() >= start    --> true
int clock_seconds(lua_State* lua) {
  push(lua, std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
  return 1;
}

int64_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// mh.run_info() -> table
///   Facts of the run and its command line.
///   returns     table       {script, config_files, log_file, run_name, resume, settings, quiet, rank, world_size,
///     terminal, color, columns}: nil for what was not given, config_files as a list, settings as a list of {key,
///     value}, the last three about standard error
///   collective  no
///   example
///     mh.run_info().world_size == mh.world_size()    --> true
int run_info(lua_State* lua) {
  const Context& run = context(lua);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  lua_newtable(lua);
  const auto set = [lua](const char* key, const auto& value) { set_field(lua, key, value); };
  const auto set_text = [&](const char* key, const std::string& text) {
    if (!text.empty()) set(key, text);
  };
  set_text("script", run.script);
  set("config_files", run.config_files);
  set_text("log_file", run.log_file);
  set_text("run_name", run.run_name);
  set_text("resume", run.resume);
  set("quiet", run.quiet);
  set("rank", run.rank());
  set("world_size", run.world_size());
  set("terminal", terminal);
  set("color", terminal && !(no_color && *no_color) && !(term && std::string_view(term) == "dumb"));
  set("columns", terminal_columns());
  lua_newtable(lua);
  lua_Integer count = 0;
  for (const auto& [key, value] : run.settings) {
    push(lua, std::vector<std::string>{key, value});
    lua_rawseti(lua, -2, ++count);
  }
  lua_setfield(lua, -2, "settings");
  return 1;
}

/// _python_name_hint(name) -> a remedy for a name that PyTorch's Python has, or "".
int python_name_hint_lua(lua_State* lua) {
  push(lua, python_name_hint(check_string(lua, 1)));
  return 1;
}

const luaL_Reg kTextFunctions[] = {
    {"_python_name_hint", guard<python_name_hint_lua>},
    {"did_you_mean", guard<did_you_mean_lua>},
    {"clock", guard<clock_seconds>},
    {"run_info", guard<run_info>},
    {nullptr, nullptr},
};

const Binding text_binding("text", [](lua_State* lua) { add_functions(lua, kTextFunctions); });

}  // namespace

}  // namespace moonhalo::scripting
