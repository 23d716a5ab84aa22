// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/repl.h"

#include <editline/readline.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/syntax_hints.h"
#include "moonhalo/scripting/operators/help.h"
#include "moonhalo/scripting/operators/operators.h"
#include "moonhalo/scripting/program/report.h"

namespace moonhalo::scripting {

namespace {

std::atomic<bool> interrupted = false;
lua_State* completing = nullptr;  // libedit's callbacks take no argument; only rank 0 reads lines

void on_interrupt(int) { interrupted = true; }

void interrupt_hook(lua_State* lua, lua_Debug*) {
  if (interrupted) luaL_error(lua, "interrupted");
}

/// The names that a value offers: keys of tables, and of its metatable's __index tables.
void add_keys(lua_State* lua, int index, std::vector<std::string>& names) {
  index = lua_absindex(lua, index);
  if (to_tensor(lua, index)) {
    for (void (*table)(lua_State*) : {push_tensor_methods, push_tensor_getters}) {
      table(lua);
      add_keys(lua, -1, names);
      lua_pop(lua, 1);
    }
    const std::vector<std::string> operators = operator_names();
    names.insert(names.end(), operators.begin(), operators.end());
    return;
  }
  if (lua_istable(lua, index)) {
    for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
      if (lua_type(lua, -2) == LUA_TSTRING) names.emplace_back(lua_tostring(lua, -2));
    }
    push_module(lua);
    const bool is_module = lua_rawequal(lua, -1, index);
    lua_pop(lua, 1);
    if (is_module) names = module_names(lua);
  }
  if (luaL_getmetafield(lua, index, "__index") == LUA_TNIL) return;
  if (lua_istable(lua, -1) && !lua_rawequal(lua, -1, index)) add_keys(lua, -1, names);
  lua_pop(lua, 1);
}

char* next_completion(const char* text, int again) {
  static std::vector<std::string> matches;
  static size_t position = 0;
  if (again == 0) {
    matches = complete_word(completing, text);
    position = 0;
  }
  return position < matches.size() ? strdup(matches[position++].c_str()) : nullptr;
}

char** completions(const char* text, int, int) {
  rl_attempted_completion_over = 1;
  return rl_completion_matches(text, next_completion);
}

/// Lines from the terminal with history and completion, or from a pipe without prompts.
class LineReader {
 public:
  explicit LineReader(lua_State* lua) : terminal_(isatty(STDIN_FILENO) != 0) {
    if (!terminal_) return;
    completing = lua;
    rl_readline_name = "moonhalo";
    rl_initialize();
    rl_attempted_completion_function = completions;
    rl_basic_word_break_characters = " \t\n\"\\'`@$><=;|&{}()[]+-*/%^~#,";
    if (const char* home = std::getenv("HOME")) history_ = std::string(home) + "/.moonhalo_history";
    if (!history_.empty()) read_history(history_.c_str());
  }
  ~LineReader() {
    if (terminal_ && !history_.empty()) write_history(history_.c_str());
  }

  bool terminal() const { return terminal_; }

  bool read(const char* prompt, std::string& line) {
    if (!terminal_) return static_cast<bool>(std::getline(std::cin, line));
    char* text = readline(prompt);
    if (!text) return false;
    line = text;
    std::free(text);
    if (!line.empty()) add_history(line.c_str());
    return true;
  }

 private:
  bool terminal_;
  std::string history_;
};

/// A whole chunk: further lines are read while the syntax needs them. Returns false at the end of the input.
bool read_chunk(lua_State* lua, LineReader& reader, std::string& chunk) {
  if (!reader.read("> ", chunk)) return false;
  for (bool incomplete = false;;) {
    if (load_chunk(lua, chunk, incomplete).empty()) {
      lua_pop(lua, 1);
      return true;
    }
    std::string line;
    if (!incomplete || !reader.read(">> ", line)) return true;
    chunk += "\n" + line;
  }
}

void print_results(lua_State* lua, int first) {
  const int count = lua_gettop(lua) - first + 1;
  if (count <= 0) return;
  lua_getglobal(lua, "print");
  lua_insert(lua, first);
  lua_call(lua, count, 0);
}

/// The failure's text, "" for none.
std::string run_chunk(lua_State* lua, const std::string& chunk) {
  bool incomplete = false;
  const int top = lua_gettop(lua);
  std::string failure = load_chunk(lua, chunk, incomplete);
  if (!failure.empty()) return failure;
  try {
    lua_pushcfunction(lua, [](lua_State* state) {
      lua_call(state, 0, LUA_MULTRET);
      if (context(state).rank() == 0) print_results(state, 1);
      return 0;
    });
    lua_insert(lua, top + 1);
    call_traced(lua, 1, 0);
  } catch (const ScriptExit&) {
    if (context(lua).world_size() == 1) throw;
    failure = "os.exit: several ranks read from here; an end of file (Ctrl-D) ends them";
  } catch (const LuaError& error) {
    ErrorReport report;
    report.add(0, error, false);
    failure = report.text(1);
    if (failure.ends_with('\n')) failure.pop_back();
  }
  lua_settop(lua, top);
  return failure;
}

}  // namespace

std::string load_chunk(lua_State* lua, const std::string& text, bool& incomplete) {
  incomplete = false;
  const std::string expression = "return " + text;
  if (luaL_loadbufferx(lua, expression.data(), expression.size(), "=repl", "t") == LUA_OK) return "";
  lua_pop(lua, 1);
  if (luaL_loadbufferx(lua, text.data(), text.size(), "=repl", "t") == LUA_OK) return "";
  const std::string message = lua_tostring(lua, -1);
  lua_pop(lua, 1);
  incomplete = message.ends_with("<eof>");
  return message + syntax_hint(message, text);
}

std::vector<std::string> complete_word(lua_State* lua, const std::string& text) {
  const int top = lua_gettop(lua);
  const size_t last = text.find_last_of(".:");
  const std::string path = last == std::string::npos ? "" : text.substr(0, last);
  const std::string stem = last == std::string::npos ? text : text.substr(last + 1);
  lua_pushglobaltable(lua);
  for (size_t from = 0; from < path.size();) {
    const size_t end = std::min(path.find_first_of(".:", from), path.size());
    push(lua, path.substr(from, end - from));
    if (!lua_istable(lua, -2)) break;
    lua_rawget(lua, -2);
    from = end + 1;
  }
  std::vector<std::string> names, matches;
  add_keys(lua, -1, names);
  lua_settop(lua, top);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) {
    if (name.starts_with(stem)) matches.push_back(text.substr(0, text.size() - stem.size()) + name);
  }
  return matches;
}

void run_repl(lua_State* lua, RankBoard& board) {
  push_module(lua);
  lua_setglobal(lua, "mh");
  set_help_function(lua);
  const bool reads = context(lua).rank() == 0;
  std::unique_ptr<LineReader> reader = reads ? std::make_unique<LineReader>(lua) : nullptr;
  const auto before = reads ? std::signal(SIGINT, on_interrupt) : SIG_DFL;
  lua_sethook(lua, interrupt_hook, LUA_MASKCOUNT, 1000);
  // Published chunks begin with a mark, so that the empty text can end the session.
  for (int step = 0;; ++step) {
    if (reads) {
      std::string chunk;
      const bool more = read_chunk(lua, *reader, chunk);
      interrupted = false;
      board.publish(more ? "+" + chunk : "");
    }
    const std::string chunk = board.await(step);
    if (chunk.empty()) break;
    const RankBoard::Outcome outcome = board.arrive(*context(lua).world, run_chunk(lua, chunk.substr(1)));
    if (reads && !outcome.failure.empty()) {
      std::fflush(stdout);
      std::fprintf(stderr, "%s\n", outcome.failure.c_str());
    }
    if (outcome.aborted)
      throw CommError(
          "repl: the ranks have diverged in a collective and cannot go on together"
          "\n  fix   start again; every rank must make the same collective calls");
  }
  if (reads) {
    std::signal(SIGINT, before);
    if (reader->terminal()) std::printf("\n");
  }
}

}  // namespace moonhalo::scripting
