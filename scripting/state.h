// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "scripting/errors.h"

namespace moonhalo::scripting {

/// What one Lua state knows about the run it belongs to. One per state, a state belongs to one rank
/// and one thread.
struct Context {
  CommunicatorPtr world;  ///< never null; a world of one outside parallel runs
  bool ranks_are_threads = false;
  c10::Device device = c10::Device(c10::kCPU);  ///< what the command line asked for
  std::string script;                           ///< path as given, empty in the repl
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> settings;  ///< --set key=value, in order
  std::string config_file;                                    ///< --config, empty when none
  std::string log_file;                                       ///< --log, empty when none
  bool quiet = false;
  bool rank_was_lost = false;  ///< set when a CommError reached the script

  int64_t rank() const { return world->rank(); }
  int64_t world_size() const { return world->size(); }

  /// The generator that random operators of this rank draw from on `device`: the engine's on the
  /// CPU, so that plain tensors and ShardTensors draw alike; others are made on first use from the
  /// seed.
  at::Generator generator(c10::Device device);
  /// Restarts all generators of this rank. The same seed on every rank gives the same numbers on
  /// every rank.
  void manual_seed(uint64_t seed);
  uint64_t seed() const { return seed_; }

 private:
  uint64_t seed_ = 0;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, at::Generator> generators_;
};

/// Makes `require "moonhalo"` (and moonhalo.nn, moonhalo.optim, ...) work in a state that has the
/// standard libraries. Any C++ program may call it. `world` null means a world of one.
void open_moonhalo(lua_State* lua, Context context = {});
Context& context(lua_State* lua);
/// A state with the standard libraries and moonhalo, closed by the deleter; the script's folder is
/// on package.path.
std::unique_ptr<lua_State, void (*)(lua_State*)> new_state(Context context = {});
/// Pushes the module table (what `require "moonhalo"` returns). Its unknown fields are looked up in
/// this order: an embedded file NAME.lua becomes the module mh.NAME; then operators; then an error
/// with the nearest names. Embedded files named prelude_*.lua run when a state opens, with the
/// module table as their argument.
void push_module(lua_State* lua);

// Functions.

/// Runs `fn`; a C++ exception becomes a Lua error with the position of the nearest script line
/// (embedded Lua files are skipped) and without the C++ stack. Lua's own errors pass through.
int run_guarded(lua_State* lua, lua_CFunction fn);
template <lua_CFunction kFunction>
int guard(lua_State* lua) {
  return run_guarded(lua, kFunction);
}

/// lua_pcall with a traceback; an error is thrown as LuaError, so C++ code can call Lua functions.
void call_traced(lua_State* lua, int arguments, int results);

/// "script.lua:12: " of the innermost script line that is running, "" when there is none.
std::string script_position(lua_State* lua);

/// Put one at the foot of bind_<noun>.cpp: `open` runs once in every new state, in order of the
/// nouns, with the module table on top of the stack; it must leave the stack as it was. Records the
/// file so that `mh` needs no list to edit.
struct Binding {
  Binding(const char* noun, void (*open)(lua_State*));
};
/// Adds functions to the table on top of the stack.
void add_functions(lua_State* lua, const luaL_Reg* functions);

/// More attributes (called with the tensor at 1) and methods for tensors: `x.mesh`, `x:to_local()`.
/// These win over operators of the same name. Lua code adds methods by `function
/// mh.Tensor.name(self, ...)`.
void add_tensor_getters(lua_State* lua, const luaL_Reg* getters);
void add_tensor_methods(lua_State* lua, const luaL_Reg* methods);

// Values.
//
// check_* throw TypeError/ValueError naming the function and the argument; to_* return nothing when
// it is another type. `index` may be negative. Integers may be given as floats with an integral
// value.

void push(lua_State* lua, const at::Tensor& tensor);  ///< nil when undefined
void push(lua_State* lua, bool value);
void push(lua_State* lua, double value);
template <std::integral Integer>
requires(!std::same_as<Integer, bool>) void push(lua_State* lua, Integer value) {
  lua_pushinteger(lua, static_cast<lua_Integer>(value));
}
void push(lua_State* lua, std::string_view text);
inline void push(lua_State* lua, const char* text) { push(lua, std::string_view(text)); }
inline void push(lua_State* lua, const std::string& text) { push(lua, std::string_view(text)); }
void push(lua_State* lua, const at::Scalar& value);
void push(lua_State* lua, at::ScalarType dtype);       ///< "float32"
void push(lua_State* lua, const c10::Device& device);  ///< "cpu", "cuda:0"
/// A Lua list.
template <class Range>
requires requires(const Range& range) {
  range.begin(), range.end();
} &&(!std::is_convertible_v<const Range&, std::string_view>)void push(lua_State* lua, const Range& values) {
  lua_createtable(lua, static_cast<int>(values.end() - values.begin()), 0);
  lua_Integer position = 0;
  for (const auto& value : values) {
    push(lua, value);
    lua_rawseti(lua, -2, ++position);
  }
}

const at::Tensor* to_tensor(lua_State* lua,
                            int index);  ///< null when it is no tensor or a freed one
const at::Tensor& check_tensor(lua_State* lua, int index);
at::Tensor opt_tensor(lua_State* lua, int index);                      ///< undefined for nil or none
std::vector<at::Tensor> check_tensor_list(lua_State* lua, int index);  ///< a list, or one tensor
int64_t check_int(lua_State* lua, int index);
double check_number(lua_State* lua, int index);
bool check_bool(lua_State* lua, int index);
std::string check_string(lua_State* lua, int index);
std::vector<int64_t> check_int_list(lua_State* lua, int index);  ///< a list, or one integer
std::vector<double> check_number_list(lua_State* lua, int index);
std::vector<std::string> check_string_list(lua_State* lua, int index);
at::Scalar check_scalar(lua_State* lua, int index);     ///< integer, float or boolean
at::ScalarType check_dtype(lua_State* lua, int index);  ///< "float32", "float", "bf16" ...
c10::Device check_device(lua_State* lua, int index);
std::optional<int64_t> to_int(lua_State* lua,
                              int index);  ///< integers and floats with an integral value
std::optional<at::ScalarType> parse_dtype(std::string_view name);
std::string dtype_name(at::ScalarType dtype);
bool is_nil(lua_State* lua, int index);  ///< nil, none, or mh.none
/// True for a function or a table/userdata with __call.
bool is_callable(lua_State* lua, int index);
/// "Tensor float32 [2, 3]", "integer 3", "string 'a'", "table {0, 1}": for messages.
std::string describe(lua_State* lua, int index);
/// Throws TypeError "bad argument #2 to 'distribute_tensor': wanted ..., got ...". Counts self out
/// for methods.
[[noreturn]] void argument_error(lua_State* lua, int index, const std::string& wanted);

/// The option table of a call, `{stride = 2, bias = false}`. Every key must be one of `known`, or a
/// ValueError says which is meant. nil or none is an empty table. The table must stay on the stack
/// while this lives.
class Options {
 public:
  Options(lua_State* lua, int index, std::string op, std::vector<std::string> known);

  bool has(const char* key) const;
  int64_t get_int(const char* key, int64_t fallback) const;
  double get_number(const char* key, double fallback) const;
  bool get_bool(const char* key, bool fallback) const;
  std::string get_string(const char* key, const std::string& fallback) const;
  std::vector<int64_t> get_int_list(const char* key, std::vector<int64_t> fallback) const;
  std::optional<at::ScalarType> get_dtype(const char* key) const;
  std::optional<c10::Device> get_device(const char* key) const;
  at::Tensor get_tensor(const char* key) const;  ///< undefined when absent
  /// Pushes the raw value, nil when absent.
  void push(const char* key) const;

 private:
  template <class Check>
  auto read(const char* key, Check check) const;

  lua_State* lua_;
  int index_ = 0;
  std::string op_;
};

// C++ objects.

/// The name of a C++ type in Lua: `template <> inline constexpr const char* kObjectName<DeviceMesh>
/// = "DeviceMesh";` in namespace moonhalo::scripting, before the first use of push_object /
/// check_object with that type.
template <class T>
inline constexpr const char* kObjectName = nullptr;

namespace detail {
void push_shared(lua_State* lua, const char* type, std::shared_ptr<void> object);
std::shared_ptr<void>* test_shared(lua_State* lua, int index, const char* type);
void define_object(lua_State* lua, const char* type, const luaL_Reg* methods, const luaL_Reg* getters,
                   const luaL_Reg* metamethods);
}  // namespace detail

/// Declares the type once per state. `getters` are attributes (called with the object at 1);
/// unknown names are errors. A metamethod "__index" here is asked, with (object, key), for what is
/// neither a method nor an attribute.
template <class T>
void define_object(lua_State* lua, const luaL_Reg* methods, const luaL_Reg* getters = nullptr,
                   const luaL_Reg* metamethods = nullptr) {
  static_assert(kObjectName<T> != nullptr);
  detail::define_object(lua, kObjectName<T>, methods, getters, metamethods);
}
/// nil when null.
template <class T>
void push_object(lua_State* lua, std::shared_ptr<T> object) {
  static_assert(kObjectName<T> != nullptr);
  using Plain = std::remove_const_t<T>;
  detail::push_shared(lua, kObjectName<T>, std::const_pointer_cast<Plain>(std::move(object)));
}
/// Null when it is another type.
template <class T>
std::shared_ptr<T> to_object(lua_State* lua, int index) {
  static_assert(kObjectName<T> != nullptr);
  std::shared_ptr<void>* object = detail::test_shared(lua, index, kObjectName<T>);
  return object ? std::static_pointer_cast<T>(*object) : nullptr;
}
template <class T>
std::shared_ptr<T> check_object(lua_State* lua, int index) {
  std::shared_ptr<T> object = to_object<T>(lua, index);
  if (!object) argument_error(lua, index, kObjectName<T>);
  return object;
}

/// A Lua value that C++ holds. May outlive the state and be destroyed on any thread; `push` only on
/// the state's own.
class Reference {
 public:
  Reference() = default;
  Reference(lua_State* lua, int index);
  /// Pushes the value on the state's main stack (`lua()`). LuaError when the state is closed or
  /// belongs to another thread.
  void push() const;
  lua_State* lua() const;
  explicit operator bool() const { return slot_ != nullptr; }

 private:
  struct Slot;
  std::shared_ptr<Slot> slot_;
};

}  // namespace moonhalo::scripting
