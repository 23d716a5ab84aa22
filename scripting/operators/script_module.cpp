// SPDX-License-Identifier: Apache-2.0
// TorchScript modules for lua/jit.lua, which makes modules of Lua of them: mh._load_script, mh._trace_script.
#include <optional>

#include "moonhalo/engine/imported/script_program.h"
#include "moonhalo/engine/imported/script_trace.h"
#include "moonhalo/scripting/core/after_calls.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/operators/script_values.h"

namespace moonhalo::scripting {

namespace {

using jit::ScriptProgram;

/// One file as one state loaded it.
struct ScriptFile {
  template <class... From>
  explicit ScriptFile(From&&... from) : program(std::forward<From>(from)...) {}
  ScriptProgram program;
  lua_State* running = nullptr;  ///< the state, or coroutine, whose call the program runs in
  /// Parameters and buffers as they were last seen, to find what the program assigned.
  struct Slot {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    jit::TensorSlot slot;
    at::Tensor tensor;
  };
  std::vector<Slot> slots = {};
};

struct ScriptPart {
  std::shared_ptr<ScriptFile> file;
  torch::jit::Module module;
};

}  // namespace

template <>
inline constexpr const char* kObjectName<ScriptPart> = "ScriptPart";

namespace {

/// The key of the registry's table from objects of TorchScript to the modules of Lua, which are held weakly: a module
/// holds its part of the file.
const char kModulesByObject = 0;

void push_modules_by_object(lua_State* lua) {
  push_registry_table(lua, &kModulesByObject);
  if (lua_getmetatable(lua, -1)) {
    lua_pop(lua, 1);
    return;
  }
  lua_createtable(lua, 0, 1);
  set_field(lua, "__mode", "v");
  lua_setmetatable(lua, -2);
}

void* key_of(const torch::jit::Module& module) { return module._ivalue().get(); }

/// Where the program calls forward of a module: the module of Lua, with its hooks.
c10::IValue call_lua_module(const ScriptFile& file, const torch::jit::Module& module,
                            std::vector<c10::IValue> arguments) {
  lua_State* lua = file.running;
  TORCH_CHECK(lua != nullptr, "a TorchScript module runs outside of a call from Lua");
  const int before = lua_gettop(lua);
  luaL_checkstack(lua, static_cast<int>(arguments.size()) + 8, "too many arguments");
  push_modules_by_object(lua);
  lua_rawgetp(lua, -1, key_of(module));
  lua_remove(lua, -2);
  TORCH_CHECK_VALUE(!lua_isnil(lua, -1), "the TorchScript program calls a module of the class ",
                    jit::class_name(module), ", which was removed from its model");
  int count = 0;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTuple()) {  // one argument, which pushing would spread out
      count += push_script_value(lua, c10::ivalue::Tuple::create({argument}), /*inside=*/true);
    } else {
      count += push_script_value(lua, argument, /*inside=*/true);
    }
  }
  AfterCalls::notify(lua);  // operators until now are those of the calling module
  try {
    call_traced(lua, count, LUA_MULTRET);
  } catch (const LuaError& error) {
    throw LuaError(jit::with_model_line(error.what()), error.traceback());
  }
  const c10::FunctionSchema& schema = file.program.schema(module, "forward");
  c10::IValue result = check_script_result(lua, before + 1, schema.returns().at(0).type(), jit::class_name(module));
  lua_settop(lua, before);
  return result;
}

int push_root(lua_State* lua, const std::shared_ptr<ScriptFile>& file) {
  file->program.replace_forward_calls(
      [its = file.get()](const torch::jit::Module& module, std::vector<c10::IValue> arguments) {
        return call_lua_module(*its, module, std::move(arguments));
      });
  for (const torch::jit::Module& module : file->program.root().modules()) {
    for (const jit::TensorSlot& slot : jit::tensor_slots(module)) {
      file->slots.push_back({module._ivalue(), slot, module._ivalue()->getSlot(slot.slot).toTensor()});
    }
  }
  push_object(lua, std::make_shared<ScriptPart>(ScriptPart{file, file->program.root()}));
  return 1;
}

/// _load_script(path [, device]) -> the root part
int load_script(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const std::optional<c10::Device> device =
      is_nil(lua, 2) ? context(lua).device : std::optional<c10::Device>(check_device(lua, 2));
  return push_root(lua, std::make_shared<ScriptFile>(path, device));
}

using Described = std::map<const void*, std::shared_ptr<const jit::TracedModule>>;

/// Calls visit(name) for each {name, value} of the list `field`, with the value on top of the stack.
template <class Visit>
void for_each_named(lua_State* lua, int table, const char* field, const Visit& visit) {
  lua_getfield(lua, table, field);
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(lua, -1)); ++i) {
    lua_rawgeti(lua, -1, i);
    lua_rawgeti(lua, -1, 1);
    const std::string name = check_string(lua, -1);
    lua_rawgeti(lua, -2, 2);
    visit(name);
    lua_pop(lua, 3);
  }
  lua_pop(lua, 1);
}

/// The table {class =, parameters = {{name, tensor}, ...}, buffers =, children = {{name, table}, ...}} at `index`.
std::shared_ptr<const jit::TracedModule> check_described(lua_State* lua, int index, Described& made) {
  luaL_checkstack(lua, 12, "jit.trace: modules are nested too deeply");
  index = lua_absindex(lua, index);
  std::shared_ptr<const jit::TracedModule>& found = made[lua_topointer(lua, index)];
  if (found) return found;
  const auto module = std::make_shared<jit::TracedModule>();
  found = module;
  lua_getfield(lua, index, "class");
  module->class_name = check_string(lua, -1);
  lua_pop(lua, 1);
  for_each_named(lua, index, "parameters",
                 [&](const std::string& name) { module->parameters.emplace_back(name, check_tensor(lua, -1)); });
  for_each_named(lua, index, "buffers",
                 [&](const std::string& name) { module->buffers.emplace_back(name, check_tensor(lua, -1)); });
  for_each_named(lua, index, "children",
                 [&](const std::string& name) { module->children.emplace_back(name, check_described(lua, -1, made)); });
  return module;
}

/// _trace_script(description, inputs, inputs of the check, forward) -> the root part
int trace_script(lua_State* lua) {
  Described made;
  const auto root = check_described(lua, 1, made);
  const auto forward = [lua](const std::vector<at::Tensor>& given) {
    const int before = lua_gettop(lua);
    luaL_checkstack(lua, static_cast<int>(given.size()) + 8, "jit.trace: too many inputs");
    lua_pushvalue(lua, 4);
    for (const at::Tensor& tensor : given) push(lua, tensor);
    call_traced(lua, static_cast<int>(given.size()), LUA_MULTRET);
    std::vector<at::Tensor> results;
    for (int i = before + 1; i <= lua_gettop(lua); ++i) {
      TORCH_CHECK_TYPE(to_tensor(lua, i), "jit.trace: forward gives tensors, result ", i - before, " is ",
                       describe(lua, i));
      results.push_back(check_tensor(lua, i));
    }
    lua_settop(lua, before);
    return results;
  };
  torch::jit::Module script = jit::trace(*root, check_tensor_list(lua, 2), check_tensor_list(lua, 3), forward);
  return push_root(lua, std::make_shared<ScriptFile>(std::move(script)));
}

/// part:save(path): collective over the world.
int save_part(lua_State* lua) {
  const auto part = check_object<ScriptPart>(lua, 1);
  part->file->program.save(part->module, check_string(lua, 2), *context(lua).world);
  return 0;
}

/// The names of forward's arguments, if the module has one.
std::vector<std::string> arguments_of_forward(const torch::jit::Module& module) {
  std::vector<std::string> names;
  if (const auto forward = module.find_method("forward")) {
    for (const c10::Argument& argument : forward->function().getSchema().arguments()) names.push_back(argument.name());
    names.erase(names.begin());  // self
  }
  return names;
}

/// part:describe() -> {class =, key =, training =, arguments = {name, ...}, tensors = {{name, tensor, is_parameter,
/// key}, ...}, children = {{name, part}, ...}}
int describe_part(lua_State* lua) {
  const auto part = check_object<ScriptPart>(lua, 1);
  lua_newtable(lua);
  set_field(lua, "class", jit::class_name(part->module));
  lua_pushlightuserdata(lua, key_of(part->module));
  lua_setfield(lua, -2, "key");
  set_field(lua, "training", part->module.is_training());
  lua_newtable(lua);
  lua_Integer position = 0;
  for (const std::string& name : arguments_of_forward(part->module)) {
    push(lua, name);
    lua_rawseti(lua, -2, ++position);
  }
  lua_setfield(lua, -2, "arguments");
  lua_newtable(lua);
  position = 0;
  for (const jit::TensorSlot& slot : jit::tensor_slots(part->module)) {
    const at::Tensor tensor = part->module._ivalue()->getSlot(slot.slot).toTensor();
    lua_createtable(lua, 4, 0);
    push(lua, slot.name);
    lua_rawseti(lua, -2, 1);
    push(lua, tensor);
    lua_rawseti(lua, -2, 2);
    push(lua, slot.is_parameter);
    lua_rawseti(lua, -2, 3);
    lua_pushlightuserdata(lua, tensor.unsafeGetTensorImpl());
    lua_rawseti(lua, -2, 4);
    lua_rawseti(lua, -2, ++position);
  }
  lua_setfield(lua, -2, "tensors");
  lua_newtable(lua);
  position = 0;
  for (const auto& [name, child] : jit::child_modules(part->module)) {
    lua_createtable(lua, 2, 0);
    push(lua, name);
    lua_rawseti(lua, -2, 1);
    push_object(lua, std::make_shared<ScriptPart>(ScriptPart{part->file, child}));
    lua_rawseti(lua, -2, 2);
    lua_rawseti(lua, -2, ++position);
  }
  lua_setfield(lua, -2, "children");
  return 1;
}

/// part:stand_for(module): the program calls this module of Lua from now on.
int stand_for(lua_State* lua) {
  const auto part = check_object<ScriptPart>(lua, 1);
  push_modules_by_object(lua);
  lua_pushvalue(lua, 2);
  lua_rawsetp(lua, -2, key_of(part->module));
  return 0;
}

/// part:set(name, tensor): the program computes with this tensor from now on.
int set_tensor(lua_State* lua) {
  const auto part = check_object<ScriptPart>(lua, 1);
  const std::string name = check_string(lua, 2);
  const at::Tensor tensor = check_tensor(lua, 3);
  for (ScriptFile::Slot& slot : part->file->slots) {
    if (slot.object != part->module._ivalue() || slot.slot.name != name) continue;
    jit::set_tensor(*slot.object, slot.slot.slot, tensor);
    slot.tensor = tensor;
    return 0;
  }
  TORCH_CHECK_VALUE(false, jit::class_name(part->module), ": the TorchScript module has no '", name, "'");
}

int set_part_training(lua_State* lua) {
  jit::set_training(check_object<ScriptPart>(lua, 1)->module, check_bool(lua, 2));
  return 0;
}

/// Calls taken(module, name, tensor) for each tensor that the program assigned; `taken` stands at `index`.
void give_assigned(lua_State* lua, ScriptFile& file, int index) {
  push_modules_by_object(lua);
  const int modules = lua_gettop(lua);
  for (ScriptFile::Slot& slot : file.slots) {
    const c10::IValue& value = slot.object->getSlot(slot.slot.slot);
    if (!value.isTensor() || value.toTensor().is_same(slot.tensor)) continue;
    slot.tensor = value.toTensor();
    lua_pushvalue(lua, index);
    if (lua_rawgetp(lua, modules, slot.object.get()) == LUA_TNIL) {
      lua_pop(lua, 2);
      continue;
    }
    push(lua, slot.slot.name);
    push(lua, slot.tensor);
    lua_call(lua, 3, 0);
  }
  lua_pop(lua, 1);
}

/// part:run(taken, method, ...) -> the method's results. `taken(module, name, tensor)` learns of tensors that the
/// program assigned to parameters and buffers.
int run_part(lua_State* lua) {
  const auto part = check_object<ScriptPart>(lua, 1);
  const std::string method = check_string(lua, 3);
  ScriptFile& file = *part->file;
  const std::string where = jit::class_name(part->module) + ":" + method;
  ScriptArguments given = check_script_arguments(lua, 4, file.program.schema(part->module, method), where);
  lua_State* const outer = std::exchange(file.running, lua);
  const auto restore = [&file, outer](void*) { file.running = outer; };
  c10::IValue result;
  {
    const std::unique_ptr<void, decltype(restore)> at_end(&file, restore);
    result = file.program.run(part->module, method, std::move(given.positional), given.named);
  }
  if (outer == nullptr) give_assigned(lua, file, 2);
  return push_script_value(lua, result, /*inside=*/outer != nullptr);
}

void open_script_module(lua_State* lua) {
  static const luaL_Reg methods[] = {{"describe", guard<describe_part>},
                                     {"stand_for", guard<stand_for>},
                                     {"set", guard<set_tensor>},
                                     {"set_training", guard<set_part_training>},
                                     {"run", guard<run_part>},
                                     {"save", guard<save_part>},
                                     {nullptr, nullptr}};
  define_object<ScriptPart>(lua, methods);
  static const luaL_Reg functions[] = {
      {"_load_script", guard<load_script>}, {"_trace_script", guard<trace_script>}, {nullptr, nullptr}};
  add_functions(lua, functions);
}

const Binding script_module_binding{"script_module", open_script_module};

}  // namespace
}  // namespace moonhalo::scripting
