// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/calls.h"

#include <utility>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/scripting/core/after_calls.h"
#include "moonhalo/scripting/core/error_place.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/lua_sources.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/scripting_context.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {
namespace {

/// For the script's line of operators.
class NoteState {
 public:
  explicit NoteState(lua_State* lua) : noted_(hooks_are_on()) {
    if (noted_) [[unlikely]]
      before_ = std::exchange(scripting_context->recorded_state, lua);
  }
  ~NoteState() {
    if (noted_) [[unlikely]]
      scripting_context->recorded_state = before_;
  }
  NoteState(const NoteState&) = delete;
  NoteState& operator=(const NoteState&) = delete;

 private:
  const bool noted_;
  lua_State* before_ = nullptr;
};

std::string string_at(lua_State* lua, int index) {
  size_t length = 0;
  const char* text = lua_tolstring(lua, index, &length);
  return text ? std::string(text, length) : std::string("(error without a message)");
}

int traced_message(lua_State* lua) {
  if (is_exit(lua, 1)) return 1;
  push(lua, placed_message(lua, lua_type(lua, 1) == LUA_TSTRING ? string_at(lua, 1) : error_value_text(lua, 1)));
  luaL_traceback(lua, lua, nullptr, 1);
  lua_createtable(lua, 2, 0);
  lua_insert(lua, -3);
  lua_rawseti(lua, -3, 2);
  lua_rawseti(lua, -2, 1);
  return 1;
}

}  // namespace

AfterCalls::AfterCalls(Seen seen)
    : seen_(std::move(seen)), before_(std::exchange(scripting_context->after_calls, &seen_)) {}
AfterCalls::~AfterCalls() { scripting_context->after_calls = before_; }
bool AfterCalls::any() { return scripting_context->after_calls != nullptr; }
void AfterCalls::notify(lua_State* lua) {
  if (const Seen* const seen = scripting_context->after_calls) (*seen)(lua);
}

std::string with_whole_path(std::string message, const char* source) {
  constexpr size_t kKept = LUA_IDSIZE - 1 - 3;  // the end of a longer path, after "..."
  const std::string path = *source == '@' ? source + 1 : "";
  if (path.size() <= kKept || !message.starts_with("...")) return message;
  if (message.compare(3, kKept, path, path.size() - kKept) == 0) message.replace(0, 3 + kKept, path);
  return message;
}

std::string script_position(lua_State* lua) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(lua, level, &frame); ++level) {
    lua_getinfo(lua, "Sl", &frame);
    if (frame.currentline <= 0 || is_embedded_chunk(frame.source)) continue;
    return with_whole_path(frame.short_src, frame.source) + ":" + std::to_string(frame.currentline) + ": ";
  }
  return "";
}

lua_State* recorded_state() { return scripting_context->recorded_state; }

int run_guarded(lua_State* lua, lua_CFunction fn) {
  const NoteState note(lua);
  // The message is pushed inside the handler and raised after it, so that the C++ exception is gone
  // by then.
  try {
    const int results = fn(lua);
    AfterCalls::notify(lua);
    return results;
  } catch (const ScriptExit& exit) {
    push_exit(lua, exit);
  } catch (const ScriptStop& stop) {
    push_exit(lua, stop);
  } catch (const LuaError& error) {
    push(lua, std::string_view(error.what()));
  } catch (const CommError& error) {
    context(lua).rank_was_lost = true;
    push(lua, script_position(lua) + plain_message(error) + module_place(lua));
  } catch (const std::exception& error) {
    push(lua, script_position(lua) + plain_message(error) + module_place(lua));
  }
  AfterCalls::notify(lua);
  return lua_error(lua);
}

void call_traced(lua_State* lua, int arguments, int results) {
  const int base = lua_gettop(lua) - arguments;
  lua_pushcfunction(lua, traced_message);
  lua_pushcfunction(lua, call_with_guard);
  lua_rotate(lua, base, 2);
  const int status = lua_pcall(lua, arguments + 1, results, base);
  lua_remove(lua, base);
  if (status == LUA_OK) return;
  if (is_exit(lua, -1)) {
    lua_pop(lua, 1);
    throw_exit(lua);
  }
  std::string message, trace;
  if (lua_istable(lua, -1)) {
    lua_rawgeti(lua, -1, 1);
    lua_rawgeti(lua, -2, 2);
    message = string_at(lua, -2);
    trace = string_at(lua, -1);
    lua_pop(lua, 2);
  } else {
    message = string_at(lua, -1);
  }
  lua_pop(lua, 1);
  throw LuaError(message, trace);
}

}  // namespace moonhalo::scripting
