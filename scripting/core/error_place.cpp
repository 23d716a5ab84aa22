// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/error_place.h"

#include <c10/util/Exception.h>

#include <limits>

#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/scripting/core/argument_counts.h"
#include "moonhalo/scripting/core/bindings.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/lua_messages.h"
#include "moonhalo/scripting/core/lua_sources.h"
#include "moonhalo/scripting/core/methods.h"
#include "moonhalo/scripting/core/module_scope.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/scripting_context.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

const char kNamerKey = 0;
/// Module calls are C calls, which Lua limits to 200: what is farther out is a recursion without them.
constexpr int kMostFrames = 1000;
constexpr int kMethodLimit = 5;  // the upvalue of a method that says how many arguments it takes
constexpr const char* kModuleLine = "\n  in    ";

/// Puts a list of the modules that are running on the stack, innermost first; their number.
lua_Integer push_running_modules(lua_State* lua) {
  lua_newtable(lua);
  lua_Integer count = 0;
  lua_Debug frame;
  for (int level = 0; level < kMostFrames && lua_getstack(lua, level, &frame); ++level) {
    lua_getinfo(lua, "f", &frame);
    const bool module = lua_tocfunction(lua, -1) == call_module;
    lua_pop(lua, 1);
    if (module && lua_getlocal(lua, &frame, 1)) lua_rawseti(lua, -2, ++count);
  }
  return count;
}

/// Returns the namer's first or second result for the modules that are running; nothing outside of modules.
std::optional<std::string> running_module(lua_State* lua, int result) {
  if (!lua_checkstack(lua, 10)) return std::nullopt;
  const int top = lua_gettop(lua);
  std::optional<std::string> text;
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kNamerKey) == LUA_TFUNCTION && push_running_modules(lua) > 0 &&
      lua_pcall(lua, 1, 2, 0) == LUA_OK && lua_type(lua, top + result) == LUA_TSTRING) {
    text = lua_tostring(lua, top + result);
  }
  lua_settop(lua, top);
  return text;
}

/// The length of "moonhalo.nn.conv:12: " at the beginning of a message about Moonhalo's own Lua code, or 0.
size_t embedded_position(const std::string& message) {
  if (!message.starts_with("moonhalo.")) return 0;
  const size_t colon = message.find(':');
  const size_t digits = message.find_first_not_of("0123456789", colon + 1);
  if (colon == std::string::npos || digits == std::string::npos || digits == colon + 1) return 0;
  return message.compare(digits, 2, ": ") == 0 ? digits + 2 : 0;
}

/// True if a first line says "file:12: ".
bool has_position(const std::string& message) {
  const size_t line = message.find('\n');
  for (size_t at = message.find(": "); at != std::string::npos && at < line; at = message.find(": ", at + 1)) {
    const size_t before = at == 0 ? std::string::npos : message.find_last_not_of("0123456789", at - 1);
    if (before != std::string::npos && before + 1 < at && message[before] == ':') return true;
  }
  return false;
}

void add_place(lua_State* lua, std::string& message) {
  if (message.find(kModuleLine) == std::string::npos) message += module_place(lua);
}

/// Names the file in full where it is one of the running functions.
void name_whole_path(lua_State* lua, std::string& message) {
  lua_Debug frame;
  for (int level = 0; message.starts_with("...") && level < kMostFrames && lua_getstack(lua, level, &frame); ++level) {
    lua_getinfo(lua, "S", &frame);
    message = with_whole_path(std::move(message), frame.source);
  }
}

/// The script's line and a remedy for what Lua itself found in Moonhalo's own files.
void explain(lua_State* lua, std::string& message) {
  name_whole_path(lua, message);
  if (message.ends_with("a nil value (local 'self')"))
    message += "\n  fix   write a colon, not a dot, before the method's name: object:method(...)";
  message = with_remedy(std::move(message));
  if (message.ends_with("(number expected, got Tensor)")) message += "\n  fix   x:item() gives the number of a tensor";
  if (const size_t length = embedded_position(message)) {
    const std::string inside = message.substr(0, length - 2);
    message = script_position(lua) + message.substr(length) + "\n  from  " + inside;
  }
}

int finish(lua_State* lua, int, lua_KContext) { return lua_gettop(lua); }
int finish_module(lua_State* lua, int, lua_KContext) { return lua_gettop(lua) - 1; }

/// The handler is at 1, true at 2.
int finish_pcall(lua_State* lua, int status, lua_KContext) {
  if (status == LUA_OK || status == LUA_YIELD) return lua_gettop(lua) - 1;
  if (is_exit(lua, -1)) return lua_error(lua);
  lua_pushboolean(lua, 0);
  lua_insert(lua, -2);
  return 2;
}

/// The handler is on top of the stack, the function at 1, before its arguments.
int protected_call(lua_State* lua) {
  lua_pushboolean(lua, 1);
  lua_pushcfunction(lua, call_with_guard);
  lua_rotate(lua, 1, 3);
  return finish_pcall(lua, lua_pcallk(lua, lua_gettop(lua) - 3, LUA_MULTRET, 1, 0, finish_pcall), 0);
}

/// Upvalue: the handler of an xpcall, which is not asked about os.exit.
int handle_error(lua_State* lua) {
  if (is_exit(lua, 1)) return 1;
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, lua_gettop(lua) - 1, 1);
  return 1;
}

int call_first(lua_State* lua) {
  lua_callk(lua, lua_gettop(lua) - 1, LUA_MULTRET, 0, finish);
  return lua_gettop(lua);
}

bool has_hooks(lua_State* lua, const char* hooks) {
  lua_pushstring(lua, hooks);
  lua_rawget(lua, 1);
  lua_pushnil(lua);
  const bool any = lua_next(lua, -2) != 0;
  lua_pop(lua, any ? 3 : 1);
  return any;
}

/// Pushes what a call of the module at 1 runs.
void push_forward(lua_State* lua) {
  const int type = lua_getfield(lua, lua_upvalueindex(1), "call");
  const bool plain = type == LUA_TFUNCTION && lua_rawequal(lua, -1, lua_upvalueindex(2));
  if (!plain || has_hooks(lua, "_pre_hooks") || has_hooks(lua, "_hooks")) return;
  lua_pop(lua, 1);
  lua_pushliteral(lua, "forward");
  if (lua_rawget(lua, 1) != LUA_TNIL) return;
  lua_pop(lua, 1);
  lua_getfield(lua, lua_upvalueindex(1), "forward");
}

const char kRecordedKey = 0;
constinit MakeModuleScope make_module_scope = nullptr;

/// The module at 1 as an event of a recorder, while its forward runs.
class RecordModule {
 public:
  explicit RecordModule(lua_State* lua) { begin(lua); }
  ~RecordModule() {
    if (recorded_) end();
  }
  RecordModule(const RecordModule&) = delete;
  RecordModule& operator=(const RecordModule&) = delete;

 private:
  void begin(lua_State* lua) {
    Recorder* recorder = Recorder::of_this_rank();
    if (recorder == nullptr) return;
    const auto name = [lua] {
      // Kept, so that no other module has its address while the recorder remembers it.
      push_registry_table(lua, &kRecordedKey);
      lua_pushvalue(lua, 1);
      lua_pushboolean(lua, 1);
      lua_rawset(lua, -3);
      lua_pop(lua, 1);
      const std::string path = module_path(lua).value_or("");
      if (!path.empty()) return path;
      const bool named = luaL_getmetafield(lua, 1, "__name") == LUA_TSTRING;
      const std::string class_name = named ? lua_tostring(lua, -1) : "Module";
      if (named) lua_pop(lua, 1);
      return class_name;
    };
    recorder->begin_module(this, recorder->module_number(lua_topointer(lua, 1), name));
    recorded_ = true;
  }
  void end() {
    if (Recorder* recorder = Recorder::of_this_rank()) recorder->end(this);
  }
  bool recorded_ = false;
};

/// The number of arguments that a function takes, by its upvalue.
int limit_at(lua_State* lua, int upvalue) {
  const auto most = static_cast<int>(lua_tointeger(lua, lua_upvalueindex(upvalue)));
  return most < 0 ? std::numeric_limits<int>::max() : most;
}

int call_first_upvalue(lua_State* lua) {
  const int arguments = lua_gettop(lua);
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_callk(lua, arguments, LUA_MULTRET, 0, finish);
  return lua_gettop(lua);
}

/// By the name with which the script calls it.
int refuse_surplus_of_framed(lua_State* lua) {
  lua_Debug frame;
  const bool named = lua_getstack(lua, 0, &frame) && lua_getinfo(lua, "n", &frame) && frame.name != nullptr;
  const char* const entry = lua_tostring(lua, lua_upvalueindex(kFramedName));
  const KnownCall* const call = entry != nullptr ? find_call(entry) : nullptr;
  refuse_surplus(lua, limit_at(lua, kFramedLimit), named ? frame.name : "this function",
                 named && std::string_view(frame.namewhat) == "method", call != nullptr ? call->text : "");
}

[[noreturn]] void refuse_surplus_of_method(lua_State* lua, const char* type, const char* name) {
  const KnownCall* const call = find_call(std::string(type) + ":" + name);
  refuse_surplus(lua, limit_at(lua, kMethodLimit), name, true, call != nullptr ? call->text : "");
}

/// The error of a module of Moonhalo whose forward takes fewer arguments.
int refuse_arguments(lua_State* lua) {
  const bool named = luaL_getmetafield(lua, 1, "__name") == LUA_TSTRING;
  const std::string name = named ? lua_tostring(lua, -1) : "Module";
  if (named) lua_pop(lua, 1);
  refuse_of_module(lua, name);
}

/// _framed(fn, like = fn) -> the same function, in whose tail calls the caller's line is not lost. It takes as many
/// arguments as `like`.
int make_framed(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TFUNCTION);
  lua_settop(lua, 2);
  push_parameter_count(lua, lua_isnil(lua, 2) ? 1 : 2);
  lua_replace(lua, 2);
  lua_pushnil(lua);
  lua_pushcclosure(lua, call_framed, 3);
  return 1;
}

/// _module_call(class, call) -> the __call of its modules.
int make_module_call(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TTABLE);
  luaL_checktype(lua, 2, LUA_TFUNCTION);
  lua_settop(lua, 2);
  lua_pushcclosure(lua, call_module, 2);
  return 1;
}

/// Upvalues: the function, its name, a table whose keys are the objects, their type, how many arguments it takes.
int call_method(lua_State* lua) {
  bool known = false;
  if (lua_gettop(lua) > 0) {
    lua_pushvalue(lua, 1);
    known = lua_rawget(lua, lua_upvalueindex(3)) != LUA_TNIL;
    lua_pop(lua, 1);
  }
  const char *const name = lua_tostring(lua, lua_upvalueindex(2)), *const type = lua_tostring(lua, lua_upvalueindex(4));
  TORCH_CHECK_TYPE(known, dot_call(lua, name, type));
  if (has_surplus(lua, limit_at(lua, kMethodLimit))) [[unlikely]]
    refuse_surplus_of_method(lua, type, name);
  return call_first_upvalue(lua);
}

/// Errors unless the arguments are a function, its name, a table and a type; leaves these.
void check_method(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TFUNCTION);
  luaL_checktype(lua, 2, LUA_TSTRING);
  luaL_checktype(lua, 3, LUA_TTABLE);
  luaL_checktype(lua, 4, LUA_TSTRING);
  lua_settop(lua, 4);
}

/// _method(fn, name, objects, type) -> a method that says so when it is called without its object.
int make_method(lua_State* lua) {
  check_method(lua);
  push_parameter_count(lua, 1);
  lua_pushcclosure(lua, guard<call_method>, kMethodLimit);
  return 1;
}

/// Lua gives up after as many tables of __index (MAXTAGLOOP).
constexpr int kMostTables = 2000;

/// True if the argument at 1 is an object of the class at `of`, whose metatable has it as __class, or a table that
/// inherits from one by tables of __index.
bool is_object(lua_State* lua, int of) {
  if (lua_gettop(lua) == 0) return false;
  luaL_checkstack(lua, 3, nullptr);
  const int top = lua_gettop(lua);
  bool known = false;
  lua_pushvalue(lua, 1);
  for (int i = 0; i < kMostTables && !known && lua_getmetatable(lua, top + 1); ++i) {
    lua_pushliteral(lua, "__class");
    lua_rawget(lua, top + 2);
    known = lua_rawequal(lua, -1, of);
    lua_pushliteral(lua, "__index");
    if (lua_rawget(lua, top + 2) != LUA_TTABLE) break;
    lua_replace(lua, top + 1);
    lua_settop(lua, top + 1);
  }
  lua_settop(lua, top);
  return known;
}

/// Upvalues: the function, its name, the class, the type of its objects, how many arguments it takes.
int call_class_method(lua_State* lua) {
  const bool known = is_object(lua, lua_upvalueindex(3));
  const char *const name = lua_tostring(lua, lua_upvalueindex(2)), *const type = lua_tostring(lua, lua_upvalueindex(4));
  TORCH_CHECK_TYPE(known, dot_call(lua, name, type));
  if (has_surplus(lua, limit_at(lua, kMethodLimit))) [[unlikely]]
    refuse_surplus_of_method(lua, type, name);
  return call_first_upvalue(lua);
}

/// _class_method(fn, name, class, type) -> a method of objects whose metatable has __class = class.
int make_class_method(lua_State* lua) {
  check_method(lua);
  push_parameter_count(lua, 1);
  lua_pushcclosure(lua, guard<call_class_method>, kMethodLimit);
  return 1;
}

/// _check_module_call(fn, class_name, module, ...): an error if fn, the forward or init of a module of Moonhalo, takes
/// fewer arguments.
int check_module_call(lua_State* lua) {
  const std::string name = check_string(lua, 2);
  lua_remove(lua, 2);
  lua_pushvalue(lua, 1);
  lua_remove(lua, 1);
  if (!module_takes(lua, lua_gettop(lua) - 2)) refuse_of_module(lua, name);
  return 0;
}

/// _set_module_namer(fn): fn(list of running modules, innermost first) -> "blocks.0.fc (Linear) of Net", "blocks.0.fc"
int set_module_namer(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TFUNCTION);
  lua_settop(lua, 1);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kNamerKey);
  return 0;
}

const Binding kBinding{"calls", [](lua_State* lua) {
                         static const luaL_Reg functions[] = {{"_framed", make_framed},
                                                              {"_method", make_method},
                                                              {"_class_method", make_class_method},
                                                              {"_module_call", make_module_call},
                                                              {"_check_module_call", guard<check_module_call>},
                                                              {"_set_module_namer", set_module_namer},
                                                              {nullptr, nullptr}};
                         add_functions(lua, functions);
                       }};

}  // namespace

std::string module_place(lua_State* lua) {
  const auto place = running_module(lua, 1);
  return place ? kModuleLine + *place : "";
}

std::optional<std::string> module_path(lua_State* lua) {
  const std::optional<std::string> path = running_module(lua, 2);
  const std::string* const inside = scripting_context->program_module;
  if (!path || inside == nullptr || inside->empty()) return path;
  return path->empty() ? *inside : *path + "." + *inside;
}

void set_module_scope(MakeModuleScope make) { make_module_scope = make; }

void forget_recorded_modules(lua_State* lua) {
  lua_pushnil(lua);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kRecordedKey);
}

std::string placed_message(lua_State* lua, std::string message) {
  explain(lua, message);
  add_place(lua, message);
  return message;
}

int place_error(lua_State* lua) {
  if (lua_type(lua, 1) != LUA_TSTRING) return 1;
  std::string message = lua_tostring(lua, 1);
  explain(lua, message);
  if (!has_position(message)) return 1;
  add_place(lua, message);
  push(lua, message);
  return 1;
}

int place_pcall(lua_State* lua) {
  luaL_checkany(lua, 1);
  lua_pushcfunction(lua, place_error);
  return protected_call(lua);
}

int place_xpcall(lua_State* lua) {
  luaL_checktype(lua, 2, LUA_TFUNCTION);
  lua_pushvalue(lua, 2);
  lua_remove(lua, 2);
  lua_pushcclosure(lua, handle_error, 1);
  return protected_call(lua);
}

int call_with_guard(lua_State* lua) { return run_guarded(lua, call_first); }

std::string error_value_text(lua_State* lua, int index) {
  index = lua_absindex(lua, index);
  const bool speaks = luaL_getmetafield(lua, index, "__tostring") != LUA_TNIL;
  if (speaks) {
    lua_pop(lua, 1);
    const std::string text = luaL_tolstring(lua, index, nullptr);
    lua_pop(lua, 1);
    return text;
  }
  return script_position(lua) + "error value " + describe(lua, index);
}

int call_framed(lua_State* lua) {
  const int most = limit_at(lua, kFramedLimit);
  if (lua_gettop(lua) > most && has_surplus(lua, most)) [[unlikely]]
    return guard<refuse_surplus_of_framed>(lua);
  return call_first_upvalue(lua);
}

/// As call_module, with what watches modules: a recorder, the search for NaN.
static int call_watched_module(lua_State* lua, int arguments) {
  std::string problem;
  {
    const RecordModule record(lua);
    const std::unique_ptr<ModuleScope> scope = make_module_scope != nullptr ? make_module_scope(lua) : nullptr;
    push_forward(lua);
    if (arguments > 1 && !module_takes(lua, arguments)) return guard<refuse_arguments>(lua);
    lua_pushvalue(lua, 1);
    lua_rotate(lua, 2, 2);
    lua_callk(lua, arguments + 1, LUA_MULTRET, 0, finish_module);
    if (scope != nullptr) problem = scope->problem(lua);
    if (!problem.empty()) push(lua, problem);
  }
  if (problem.empty()) return lua_gettop(lua) - 1;
  problem = {};
  return lua_error(lua);
}

int call_module(lua_State* lua) {
  // The module stays at 1, where push_running_modules finds it; the arguments are moved, so that nothing else keeps
  // them.
  const int arguments = lua_gettop(lua) - 1;
  if (hooks_are_on()) [[unlikely]]
    return call_watched_module(lua, arguments);
  push_forward(lua);
  if (arguments > 1 && !module_takes(lua, arguments)) [[unlikely]]
    return guard<refuse_arguments>(lua);
  lua_pushvalue(lua, 1);
  lua_rotate(lua, 2, 2);
  lua_callk(lua, arguments + 1, LUA_MULTRET, 0, finish_module);
  return lua_gettop(lua) - 1;
}

}  // namespace moonhalo::scripting
