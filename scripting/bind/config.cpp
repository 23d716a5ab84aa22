// SPDX-License-Identifier: Apache-2.0
// Settings files in Lua. They may come from anywhere, so each runs in its own state that has nothing but a copy of
// `math`: what it overwrites stays in there, and without the methods of strings there are no patterns, which take
// hours within one instruction. Random numbers are left out as well, which would differ between ranks.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <ctime>
#include <limits>
#include <memory>
#include <string>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kMostInstructions = 10'000'000;
constexpr int kInstructionsPerLook = 1000;
constexpr int kMostSeconds = 3;  // of this thread; ten million instructions take less than one, but for long strings
constexpr int kDeepestTable = 100;
constexpr size_t kBytesPerValue = 64;
constexpr const char* kFix =
    "\n  fix   settings are a table of numbers, strings, true, false and lists; calculate in the script";

/// Counts what a settings file has used.
struct Used {
  size_t bytes = 0, most = kMostBytes;
  int instructions = 0;
  time_t began = 0;
  bool loaded = false;
  int line = 0;  ///< the last one begun: Lua's error of memory has none
};

void* allocate(void* data, void* block, size_t before, size_t required) {
  auto& used = *static_cast<Used*>(data);
  if (!block) before = 0;  // then it is the kind of object
  if (required == 0) {
    std::free(block);
    used.bytes -= before;
    return nullptr;
  }
  if (required > before && used.bytes + (required - before) > used.most) return nullptr;
  void* const made = std::realloc(block, required);
  if (made) used.bytes += required - before;
  return made;
}

Used& used_by(lua_State* lua) {
  void* data = nullptr;
  lua_getallocf(lua, &data);
  return *static_cast<Used*>(data);
}

time_t seconds_of_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec;
}

void look(lua_State* lua, lua_Debug* where) {
  Used& used = used_by(lua);
  if (where->event == LUA_HOOKLINE) {
    used.line = where->currentline;
    return;
  }
  used.instructions += kInstructionsPerLook;
  const bool many = used.instructions >= kMostInstructions;
  if (!many && seconds_of_thread() - used.began <= kMostSeconds) return;
  lua_getinfo(lua, "Sl", where);
  luaL_error(lua, "%s:%d: it takes more than %d %s", where->short_src, where->currentline,
             many ? kMostInstructions : kMostSeconds, many ? "instructions" : "seconds");
}

/// In the file's own state: load_and_run(path) -> what the file returns.
int load_and_run(lua_State* lua) {
  luaL_requiref(lua, "math", luaopen_math, 0);
  for (const char* drawn : {"random", "randomseed"}) {
    lua_pushnil(lua);
    lua_setfield(lua, -2, drawn);
  }
  lua_setglobal(lua, "math");
  if (luaL_loadfilex(lua, static_cast<const char*>(lua_touserdata(lua, 1)), "t") != LUA_OK) lua_error(lua);
  used_by(lua).loaded = true;
  used_by(lua).began = seconds_of_thread();
  lua_sethook(lua, look, LUA_MASKLINE | LUA_MASKCOUNT, kInstructionsPerLook);
  lua_call(lua, 0, 1);
  lua_sethook(lua, nullptr, 0, 0);
  return 1;
}

/// Makes values of one state again in another.
class Copy {
 public:
  Copy(lua_State* from, lua_State* to, const std::string& path) : from_(from), to_(to), path_(path) {}

  /// Pushes the value on top of `from` onto `to`.
  void top(int depth) {
    size_t length = 0;
    const char* text = lua_type(from_, -1) == LUA_TSTRING ? lua_tolstring(from_, -1, &length) : nullptr;
    bytes_ += kBytesPerValue + length;
    TORCH_CHECK_VALUE(bytes_ <= kMostBytes, "config: the settings of '", path_, "' take more than ", kMostBytes >> 20,
                      " MiB", kFix);
    switch (lua_type(from_, -1)) {
      case LUA_TNIL:
        return lua_pushnil(to_);
      case LUA_TBOOLEAN:
        return lua_pushboolean(to_, lua_toboolean(from_, -1));
      case LUA_TNUMBER:
        return lua_isinteger(from_, -1) ? lua_pushinteger(to_, lua_tointeger(from_, -1))
                                        : lua_pushnumber(to_, lua_tonumber(from_, -1));
      case LUA_TSTRING:
        lua_pushlstring(to_, text, length);
        return;
      case LUA_TTABLE:
        return table(depth);
      default:
        break;
    }
    TORCH_CHECK_VALUE(false, "config: '", path_, "' gives a ", luaL_typename(from_, -1),
                      depth > 0 ? " for " + key() : std::string(), kFix);
  }

 private:
  void table(int depth) {
    TORCH_CHECK_VALUE(depth < kDeepestTable, "config: the tables of '", path_, "' nest deeper than ", kDeepestTable,
                      " levels, or hold themselves", kFix);
    luaL_checkstack(to_, 4, "config");
    lua_newtable(to_);
    for (lua_pushnil(from_); lua_next(from_, -2); lua_pop(from_, 1)) {
      const bool plain = lua_type(from_, -2) == LUA_TSTRING || lua_isinteger(from_, -2);
      TORCH_CHECK_VALUE(plain, "config: '", path_, "' has a ", luaL_typename(from_, -2), " as a key", kFix);
      lua_pushvalue(from_, -2);
      top(depth);
      lua_pop(from_, 1);
      top(depth + 1);
      lua_rawset(to_, -3);
    }
  }

  /// Checks the value on top, which is a table's.
  std::string key() const {
    constexpr size_t kShown = 60;
    if (lua_isinteger(from_, -2)) return "[" + std::to_string(lua_tointeger(from_, -2)) + "]";
    return "'" + std::string(lua_tostring(from_, -2)).substr(0, kShown) + "'";
  }

  lua_State* from_;
  lua_State* to_;
  const std::string& path_;
  size_t bytes_ = 0;
};

/// _config_file(path) -> what the settings file returns. Bounds: 10 million instructions and 3 seconds, 64 MiB
/// inside and of settings, tables of 100 levels.
int config_file(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  Used used;
  const std::unique_ptr<lua_State, void (*)(lua_State*)> state(lua_newstate(allocate, &used), lua_close);
  TORCH_CHECK(state != nullptr, "config: no memory to read '", path, "'");
  lua_State* own = state.get();
  lua_pushcfunction(own, load_and_run);
  lua_pushlightuserdata(own, const_cast<char*>(path.c_str()));
  const int status = lua_pcall(own, 1, 1, 0);
  used.most = std::numeric_limits<size_t>::max();
  if (status == LUA_ERRMEM) {
    const std::string line = used.loaded ? ":" + std::to_string(used.line) : "";
    TORCH_CHECK_VALUE(false, "config: '", path, "' failed: ", path, line, ": it takes more than ", kMostBytes >> 20,
                      " MiB", kFix);
  }
  const char* message = status == LUA_OK ? "" : lua_tostring(own, -1);
  TORCH_CHECK_VALUE(status == LUA_OK || used.loaded, "config: cannot load '", path, "': ", message);
  TORCH_CHECK_VALUE(status == LUA_OK, "config: '", path, "' failed: ", message, kFix);
  TORCH_INTERNAL_ASSERT(lua_checkstack(own, 4 * kDeepestTable));
  Copy(own, lua, path).top(0);
  return 1;
}

const luaL_Reg kConfigFunctions[] = {{"_config_file", guard<config_file>}, {nullptr, nullptr}};

const Binding config_binding{"config", [](lua_State* lua) { add_functions(lua, kConfigFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
