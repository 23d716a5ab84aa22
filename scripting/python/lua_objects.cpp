// SPDX-License-Identifier: Apache-2.0
// Objects of Lua's data layer in Python (_data.py): one Lua state for each data set, values in both directions.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <lua.hpp>

#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/run_start.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

namespace {

using scripting::LuaError;
using scripting::Reference;

struct LuaState;

/// A function of Python in a Lua state.
struct PythonFunction {
  LuaState* state;
  py::object call;
};

/// A Lua state, which the objects of a data set keep. It is an object of Python itself, so that Python's collector of
/// cycles sees the functions in it: a transform may refer to its own data set.
struct LuaState {
  PyObject* self = nullptr;
  std::set<PythonFunction*> functions;
  std::optional<py::error_already_set> raised;  ///< the error of a function of Python that Lua called last
  std::unique_ptr<lua_State, void (*)(lua_State*)> lua;
};

/// A table with methods, a function, or another value of Lua that has no counterpart in Python.
struct LuaObject {
  LuaObject(LuaState& in, Reference what)
      : owner(py::reinterpret_borrow<py::object>(in.self)), state(&in), value(std::move(what)) {}
  py::object owner;  ///< the state
  LuaState* state;
  Reference value;
};

void push_value(LuaState& state, const py::handle& value, int depth = 0);
py::object to_python(LuaState& state, int index);

/// Runs the function below `arguments` on the stack, while other threads have the interpreter.
void run_lua(LuaState& state, int arguments, int results) {
  lua_State* lua = state.lua.get();
  scripting::context(lua).rank_was_lost = false;
  state.raised.reset();  // an error that Lua has caught is not that of this call
  std::string problem;
  {
    const ScopedRelease released;
    try {
      scripting::call_traced(lua, arguments, results);
      return;
    } catch (const LuaError& error) {
      problem = error.what();
    }
  }
  if (state.raised) throw py::error_already_set(std::move(*std::exchange(state.raised, std::nullopt)));
  if (scripting::context(lua).rank_was_lost) throw CommError(problem);
  throw py::value_error(problem);
}

/// A stack that is left as it was found.
class KeptStack {
 public:
  explicit KeptStack(const LuaState& state) : lua_(state.lua.get()), top_(lua_gettop(lua_)) {
    TORCH_CHECK_VALUE(scripting::state_data(lua_)->thread == std::this_thread::get_id(),
                      "mh.data: this object belongs to another thread\n  fix   use a data set on the thread, or the "
                      "rank, that has opened it");
    luaL_checkstack(lua_, 20, nullptr);
  }
  ~KeptStack() { lua_settop(lua_, top_); }
  KeptStack(const KeptStack&) = delete;
  int top() const { return top_; }

 private:
  lua_State* lua_;
  int top_;
};

py::object results_above(LuaState& state, int top) {
  lua_State* lua = state.lua.get();
  const int count = lua_gettop(lua) - top;
  if (count == 0) return py::none();
  if (count == 1) return to_python(state, top + 1);
  py::tuple all(count);
  for (int i = 0; i < count; ++i) all[i] = to_python(state, top + 1 + i);
  return all;
}

/// Calls the function on top of the stack. Named arguments are a table at the end.
py::object call_top(LuaState& state, int top, const py::args& args, const py::kwargs& options) {
  int count = 0;
  for (const py::handle& one : args) push_value(state, one), ++count;
  if (!options.empty()) push_value(state, options), ++count;
  run_lua(state, count, LUA_MULTRET);
  return results_above(state, top);
}

// ---- Functions of Python in Lua -------------------------------------------------------------------------------------

int call_python(lua_State* lua) {
  const py::gil_scoped_acquire held;
  const auto& function = **static_cast<PythonFunction**>(lua_touserdata(lua, lua_upvalueindex(1)));
  LuaState& state = *function.state;
  try {
    py::tuple arguments(lua_gettop(lua));
    for (size_t i = 0; i < arguments.size(); ++i) arguments[i] = to_python(state, static_cast<int>(i) + 1);
    push_value(state, function.call(*arguments));
    return 1;
  } catch (py::error_already_set& error) {
    const std::string text = error.what();
    state.raised.emplace(std::move(error));
    throw LuaError(text);
  }
}

int free_python(lua_State* lua) {
  const py::gil_scoped_acquire held;
  PythonFunction* function = *static_cast<PythonFunction**>(lua_touserdata(lua, 1));
  function->state->functions.erase(function);
  delete function;
  return 0;
}

void push_function(LuaState& state, const py::handle& function) {
  lua_State* lua = state.lua.get();
  auto** kept = static_cast<PythonFunction**>(lua_newuserdatauv(lua, sizeof(PythonFunction*), 0));
  *kept = new PythonFunction{&state, py::reinterpret_borrow<py::object>(function)};
  state.functions.insert(*kept);
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, free_python);
  lua_setfield(lua, -2, "__gc");
  lua_setmetatable(lua, -2);
  lua_pushcclosure(lua, &scripting::guard<call_python>, 1);
}

/// Python's collector of cycles visits what a state keeps, and breaks cycles through it.
void let_python_collect(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    if (!py::detail::is_holder_constructed(self)) return 0;
    for (const PythonFunction* function : py::cast<LuaState&>(py::handle(self)).functions)
      Py_VISIT(function->call.ptr());
    return 0;
  };
  type.tp_clear = [](PyObject* self) -> int {
    if (!py::detail::is_holder_constructed(self)) return 0;
    std::vector<py::object> calls;  // what the last reference frees may change the set
    for (PythonFunction* function : py::cast<LuaState&>(py::handle(self)).functions)
      calls.push_back(std::exchange(function->call, py::none()));
    return 0;
  };
}

/// The same for the objects of a state.
void let_python_collect_objects(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    if (py::detail::is_holder_constructed(self)) Py_VISIT(py::cast<LuaObject&>(py::handle(self)).owner.ptr());
    return 0;
  };
  type.tp_clear = [](PyObject*) -> int { return 0; };  // the state breaks the cycle
}

// ---- Values ---------------------------------------------------------------------------------------------------------

[[noreturn]] void refuse_value(const py::handle& value) {
  throw py::type_error("mh.data: this value cannot be passed\n  have  " +
                       std::string(py::str(py::type::of(value).attr("__name__"))) +
                       "\n  fix   give numbers, strings, tensors, a DeviceMesh, functions, and lists and dicts of "
                       "these");
}

[[noreturn]] void refuse_key(const std::string& key) {
  throw py::value_error("mh.data: a key of a dict is " + key + "\n  have  keys are strings and integers\n" +
                        "  fix   leave the entry out, or give it a name");
}

constexpr int kDeepest = 100;

/// One level of lists and dicts more; a list may contain itself.
int one_deeper(int depth) {
  if (depth >= kDeepest)
    throw py::value_error("mh.data: lists and dicts are nested more than " + std::to_string(kDeepest) +
                          " deep\n  have  a list or a dict that contains itself, or many levels\n" +
                          "  fix   give a list or a dict that ends");
  return depth + 1;
}

void push_dict(LuaState& state, const py::dict& dict, int depth) {
  lua_State* lua = state.lua.get();
  lua_newtable(lua);
  for (const auto& [key, item] : dict) {
    if (key.is_none()) refuse_key("None");
    if (py::isinstance<py::float_>(key) && std::isnan(key.cast<double>())) refuse_key("NaN");
    push_value(state, key, depth);
    push_value(state, item, depth);
    lua_rawset(lua, -3);
  }
}

/// Pushes values that are neither containers nor objects; false for these.
bool push_single(lua_State* lua, const py::handle& value) {
  if (value.is_none()) {
    lua_pushnil(lua);
  } else if (py::isinstance<py::bool_>(value)) {
    lua_pushboolean(lua, value.cast<bool>());
  } else if (py::isinstance<py::int_>(value)) {
    lua_pushinteger(lua, value.cast<int64_t>());
  } else if (py::isinstance<py::float_>(value)) {
    lua_pushnumber(lua, value.cast<double>());
  } else if (py::isinstance<py::str>(value) || py::isinstance<py::bytes>(value)) {
    scripting::push(lua, value.cast<std::string>());
  } else if (THPVariable_Check(value.ptr())) {
    scripting::push(lua, value.cast<at::Tensor>());
  } else if (THPDtype_Check(value.ptr())) {
    scripting::push(lua, value.cast<at::ScalarType>());
  } else if (py::isinstance<DeviceMesh>(value)) {
    scripting::push_object(lua, value.cast<MeshPtr>());
  } else {
    return false;
  }
  return true;
}

void push_value(LuaState& state, const py::handle& value, int depth) {
  lua_State* lua = state.lua.get();
  luaL_checkstack(lua, 10, nullptr);
  if (push_single(lua, value)) return;
  if (py::isinstance<LuaObject>(value)) {
    const auto& object = value.cast<const LuaObject&>();
    TORCH_CHECK_VALUE(object.state == &state,
                      "mh.data: an object of another data set\n  fix   combine what one data "
                      "set has made");
    object.value.push();
  } else if (py::isinstance<py::dict>(value)) {
    push_dict(state, value.cast<py::dict>(), one_deeper(depth));
  } else if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    const int below = one_deeper(depth);
    lua_newtable(lua);
    lua_Integer position = 0;
    for (const py::handle& item : value) {
      push_value(state, item, below);
      lua_rawseti(lua, -2, ++position);
    }
  } else if (PyCallable_Check(value.ptr()) != 0) {
    push_function(state, value);
  } else if (py::hasattr(value, "__fspath__")) {
    push_value(state, value.attr("__fspath__")());
  } else {
    refuse_value(value);
  }
}

/// True for a table without methods; batches have a metatable that they hide.
bool is_plain_table(lua_State* lua, int index) {
  if (lua_type(lua, index) != LUA_TTABLE) return false;
  if (lua_getmetatable(lua, index) == 0) return true;
  lua_getfield(lua, -1, "__metatable");
  const bool hidden = lua_isboolean(lua, -1) && lua_toboolean(lua, -1) == 0;
  lua_pop(lua, 2);
  return hidden;
}

/// A list where the keys are 1 to n, else a dict.
py::object table_to_python(LuaState& state, int index) {
  lua_State* lua = state.lua.get();
  const auto length = static_cast<lua_Integer>(lua_rawlen(lua, index));
  py::dict all;
  lua_Integer count = 0;
  for (lua_pushnil(lua); lua_next(lua, index) != 0; lua_pop(lua, 1), ++count)
    all[to_python(state, lua_gettop(lua) - 1)] = to_python(state, lua_gettop(lua));
  if (length == 0 || count != length) return all;
  py::list list;
  for (lua_Integer i = 1; i <= length; ++i) list.append(all[py::int_(i)]);
  return list;
}

py::object to_python(LuaState& state, int index) {
  lua_State* lua = state.lua.get();
  luaL_checkstack(lua, 10, nullptr);
  if (scripting::is_nil(lua, index)) return py::none();
  if (lua_type(lua, index) == LUA_TBOOLEAN) return py::bool_(lua_toboolean(lua, index) != 0);
  if (lua_isinteger(lua, index) != 0) return py::int_(lua_tointeger(lua, index));
  if (lua_type(lua, index) == LUA_TNUMBER) return py::float_(lua_tonumber(lua, index));
  if (lua_type(lua, index) == LUA_TSTRING) {
    size_t size = 0;
    const char* text = lua_tolstring(lua, index, &size);
    return py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(size), "surrogateescape"));
  }
  if (const at::Tensor* tensor = scripting::to_tensor(lua, index)) return py::cast(*tensor);
  if (const MeshPtr mesh = scripting::to_object<DeviceMesh>(lua, index)) return py::cast(mesh);
  if (is_plain_table(lua, index)) return table_to_python(state, index);
  return py::cast(LuaObject(state, Reference(lua, index)));
}

// ---- Objects --------------------------------------------------------------------------------------------------------

int get_field(lua_State* lua) { return lua_gettable(lua, 1), 1; }
int length_of(lua_State* lua) { return lua_pushinteger(lua, luaL_len(lua, 1)), 1; }
int text_of(lua_State* lua) { return luaL_tolstring(lua, 1, nullptr), 1; }

/// Calls a function with the object, and leaves its result on top of the stack.
void call_with_object(const LuaObject& object, lua_CFunction function) {
  lua_pushcfunction(object.state->lua.get(), function);
  object.value.push();
  run_lua(*object.state, 1, 1);
}

void push_attribute(const LuaObject& object, const py::handle& name) {
  lua_pushcfunction(object.state->lua.get(), get_field);
  object.value.push();
  push_value(*object.state, name);
  run_lua(*object.state, 2, 1);
}

/// An attribute; a function becomes a method, with the object as its first argument.
py::object attribute(const py::object& self, const std::string& name) {
  const auto& object = self.cast<const LuaObject&>();
  const KeptStack stack(*object.state);
  try {
    push_attribute(object, py::str(name));
  } catch (const py::builtin_exception& error) {
    throw py::attribute_error(error.what());
  }
  const py::object found = to_python(*object.state, lua_gettop(object.state->lua.get()));
  if (lua_type(object.state->lua.get(), -1) != LUA_TFUNCTION) return found;
  return py::reinterpret_steal<py::object>(PyMethod_New(found.ptr(), self.ptr()));
}

LuaObject open_data(const CommunicatorPtr& world) {
  scripting::Context context;
  context.world = world;
  const py::object owner =
      py::cast(std::make_unique<LuaState>(LuaState{.lua = scripting::new_state(std::move(context))}));
  auto& state = owner.cast<LuaState&>();
  state.self = owner.ptr();
  const KeptStack stack(state);
  lua_State* lua = state.lua.get();
  {
    const ScopedRelease released;
    scripting::RunStart::draw().agreed(*world).enter(lua, world->size());
  }
  lua_pushcfunction(lua, get_field);
  scripting::push_module(lua);
  lua_pushstring(lua, "data");
  run_lua(state, 2, 1);
  return {state, Reference(lua, -1)};
}

}  // namespace

void define_lua_objects(py::module_& m) {
  py::class_<LuaState>(m, "_LuaState", py::custom_type_setup(&let_python_collect));
  py::class_<LuaObject>(m, "_LuaObject", py::custom_type_setup(&let_python_collect_objects))
      .def("__getattr__", &attribute)
      .def("__getitem__",
           [](const LuaObject& object, const py::object& key) {
             const KeptStack stack(*object.state);
             push_attribute(object, key);
             return to_python(*object.state, lua_gettop(object.state->lua.get()));
           })
      .def("__call__",
           [](const LuaObject& object, const py::args& args, const py::kwargs& options) {
             const KeptStack stack(*object.state);
             object.value.push();
             return call_top(*object.state, stack.top(), args, options);
           })
      .def("__len__",
           [](const LuaObject& object) {
             const KeptStack stack(*object.state);
             call_with_object(object, length_of);
             return lua_tointeger(object.state->lua.get(), -1);
           })
      .def("__repr__", [](const LuaObject& object) {
        const KeptStack stack(*object.state);
        call_with_object(object, text_of);
        return std::string(lua_tostring(object.state->lua.get(), -1));
      });
  m.def("_open_data", &open_data);
}

}  // namespace moonhalo::python
