// SPDX-License-Identifier: Apache-2.0
// Programs of torch.export for lua/export.lua, which makes a module of Lua of them: mh._load_exported.
#include "moonhalo/engine/imported/exported_program.h"

#include <ATen/core/jit_type.h>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/scripting/core/after_calls.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/scripting_context.h"
#include "moonhalo/scripting/operators/schema_convert.h"
#include "moonhalo/scripting/operators/script_values.h"

namespace moonhalo::scripting {

using exported::ExportedProgram;
using exported::ProgramTensor;

template <>
inline constexpr const char* kObjectName<ExportedProgram> = "ExportedProgram";

namespace {

/// _load_exported(path [, device]) -> the program
int load_exported(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const c10::Device device = is_nil(lua, 2) ? context(lua).device : check_device(lua, 2);
  auto program = std::make_shared<ExportedProgram>(path, device);
  TORCH_CHECK_VALUE(!program->input_spec().empty(), "export.load: '", path,
                    "' does not say how arguments and results are nested\n  fix   write it in Python: "
                    "torch.export.save(torch.export.export(net, (x,)), path)");
  push_object(lua, std::move(program));
  return 1;
}

/// program:describe() -> {tensors = {{name, tensor, kind, persistent, key}, ...}, classes = {{module, class}, ...},
/// input_spec = JSON, output_spec = JSON, input_names = list}
int describe_exported(lua_State* lua) {
  const auto program = check_object<ExportedProgram>(lua, 1);
  lua_newtable(lua);
  set_field(lua, "input_spec", program->input_spec());
  set_field(lua, "output_spec", program->output_spec());
  set_field(lua, "input_names", program->input_names());
  lua_newtable(lua);
  lua_Integer position = 0;
  for (const ProgramTensor& tensor : program->tensors()) {
    static constexpr const char* kKinds[] = {"parameter", "buffer", "constant"};
    lua_createtable(lua, 5, 0);
    push(lua, tensor.name);
    lua_rawseti(lua, -2, 1);
    push(lua, tensor.tensor);
    lua_rawseti(lua, -2, 2);
    push(lua, kKinds[static_cast<size_t>(tensor.kind)]);
    lua_rawseti(lua, -2, 3);
    push(lua, tensor.persistent);
    lua_rawseti(lua, -2, 4);
    lua_pushlightuserdata(lua, tensor.tensor.unsafeGetTensorImpl());
    lua_rawseti(lua, -2, 5);
    lua_rawseti(lua, -2, ++position);
  }
  lua_setfield(lua, -2, "tensors");
  lua_newtable(lua);
  position = 0;
  for (const auto& [module, name] : program->classes()) {
    push(lua, std::vector<std::string>{module, name});
    lua_rawseti(lua, -2, ++position);
  }
  lua_setfield(lua, -2, "classes");
  return 1;
}

/// program:set(i, tensor): the program computes with it in the place of its i-th tensor from now on.
int set_exported(lua_State* lua) {
  const auto program = check_object<ExportedProgram>(lua, 1);
  program->tensors().at(static_cast<size_t>(check_int(lua, 2) - 1)).tensor = check_tensor(lua, 3);
  return 0;
}

/// Tells a trace the module of each operator of a run.
ExportedProgram::StepSeen steps_for_traces(lua_State* lua) {
  if (!AfterCalls::any()) return {};
  return [lua](const std::string& module) {
    const ScopedValue inside(scripting_context->program_module, &module);
    AfterCalls::notify(lua);
  };
}

/// program:run(inputs, count) -> a list of the flattened results; `inputs` are flattened, some may be nil.
int run_exported(lua_State* lua) {
  const auto program = check_object<ExportedProgram>(lua, 1);
  std::vector<c10::IValue> inputs;
  const int64_t count = check_int(lua, 3);
  for (int64_t i = 1; i <= count; ++i) {
    lua_rawgeti(lua, 2, i);
    inputs.push_back(check_script_value(lua, lua_gettop(lua), c10::AnyType::get(), "input " + std::to_string(i)));
    lua_pop(lua, 1);
  }
  const std::vector<c10::IValue> results = program->run(inputs, steps_for_traces(lua));
  lua_createtable(lua, static_cast<int>(results.size()), 0);
  for (size_t i = 0; i < results.size(); ++i) {
    push_value(lua, results[i], *c10::AnyType::get());
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
  return 1;
}

void open_exported(lua_State* lua) {
  static const luaL_Reg methods[] = {{"describe", guard<describe_exported>},
                                     {"set", guard<set_exported>},
                                     {"run", guard<run_exported>},
                                     {nullptr, nullptr}};
  define_object<ExportedProgram>(lua, methods);
  static const luaL_Reg functions[] = {{"_load_exported", guard<load_exported>}, {nullptr, nullptr}};
  add_functions(lua, functions);
}

const Binding exported_binding{"exported_program", open_exported};

}  // namespace
}  // namespace moonhalo::scripting
