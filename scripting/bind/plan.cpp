// SPDX-License-Identifier: Apache-2.0
// Parallel plans as objects; bind/module_tree.cpp applies them.
#include "moonhalo/scripting/bind/plan.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/bind/mesh.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<ArgumentPlan> = "ArgumentPlan";

namespace {

/// make_plan(json)
int make_plan(lua_State* lua) {
  push_object(lua, std::make_shared<ParallelPlan>(parse_plan(check_string(lua, 1))));
  return 1;
}

/// load_plan(path)
int load_plan_file(lua_State* lua) {
  push_object(lua, std::make_shared<ParallelPlan>(load_plan(check_string(lua, 1))));
  return 1;
}

/// plan:has_styles() -> boolean
///   Whether the plan has entries that a parallel style decides, such as mh.ColwiseParallel.
///   returns     boolean     false for a plan of placements alone
///   collective  no
///   example
///     mh.plan.new{}:has_styles()    --> false
int plan_has_styles(lua_State* lua) {
  push(lua, !check_object<ParallelPlan>(lua, 1)->styles.empty());
  return 1;
}

/// plan:to_json() -> string
///   The plan as JSON, which mh.plan.load reads from a file. tostring(plan) is the same.
///   returns     string      the same on all ranks
///   collective  no
///   example
///     type(mh.json.decode(mh.plan.new{}:to_json()))    --> table
int plan_text(lua_State* lua) {
  push(lua, to_json(*check_object<ParallelPlan>(lua, 1)));
  return 1;
}

/// Pushes table[key] of the table on top.
void plan_field(lua_State* lua, const char* key) { lua_getfield(lua, -1, key); }

template <class Read>
auto read_plan_field(lua_State* lua, const char* key, Read read) {
  plan_field(lua, key);
  auto value = read(lua, -1);
  lua_pop(lua, 1);
  return value;
}

/// Calls `visit` with each element of the list at `table[key]` on top of the stack.
template <class Visit>
void each(lua_State* lua, int table, Visit visit) {
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, table));
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, table, i);
    visit();
    lua_pop(lua, 1);
  }
}

std::vector<ModuleFacts> check_modules(lua_State* lua, int index) {
  std::vector<ModuleFacts> modules;
  each(lua, index, [&] {
    ModuleFacts facts;
    facts.name = read_plan_field(lua, "name", check_string);
    facts.kinds = read_plan_field(lua, "kinds", check_string_list);
    plan_field(lua, "tensors");
    each(lua, lua_gettop(lua), [&] {
      facts.tensors.push_back(
          {read_plan_field(lua, "name", check_string), read_plan_field(lua, "shape", check_int_list)});
    });
    lua_pop(lua, 1);
    modules.push_back(std::move(facts));
  });
  return modules;
}

/// {positions = {[1] = ArgumentPlan, ...}, names = {mask = ArgumentPlan}, count = 1}, nil when empty.
void push_arguments(lua_State* lua, const SignaturePlan& plan) {
  if (plan.empty()) {
    lua_pushnil(lua);
    return;
  }
  lua_createtable(lua, 0, 2);
  lua_newtable(lua);
  for (size_t i = 0; i < plan.by_position.size(); ++i) {
    if (!plan.by_position[i]) continue;
    push_object(lua, std::make_shared<ArgumentPlan>(*plan.by_position[i]));
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
  lua_setfield(lua, -2, "positions");
  lua_newtable(lua);
  for (const auto& [name, argument] : plan.by_name) {
    push_object(lua, std::make_shared<ArgumentPlan>(argument));
    lua_setfield(lua, -2, name.c_str());
  }
  lua_setfield(lua, -2, "names");
}

/// plan:resolve(modules, mesh, unmatched) -> table
///   Finds what the plan says about each module of a model; mh.parallelize_module calls it.
///   modules     {table}     {name, kinds, tensors = {{name, shape}}} of each module
///   mesh        DeviceMesh  the mesh of the plan's placements
///   unmatched   "error"|"warn"   what a pattern without a module does
///   returns     table       for each module {tensors, inputs, outputs, custom}; a second result is the plan without
///     patterns and styles
///   collective  no
///   errors      ValueError: a pattern without a module, or two that fit equally well
///   example
///     local modules, plan = mh.plan.new{}:resolve({}, mesh, "error")
///     #modules, plan:has_styles()    --> 0  false
int plan_resolve(lua_State* lua) {
  const auto plan = check_object<ParallelPlan>(lua, 1);
  const MeshPtr mesh = check_object<DeviceMesh>(lua, 3);
  const std::string unmatched = check_string(lua, 4);
  TORCH_CHECK_VALUE(unmatched == "error" || unmatched == "warn", "parallelize_module: unmatched is '", unmatched, "'",
                    did_you_mean(unmatched, {"error", "warn"}), "\n  have  error, warn");
  const std::vector<ModuleFacts> modules = check_modules(lua, 2);
  const auto resolved = resolve(*plan, modules, *mesh, unmatched == "warn" ? Unmatched::kWarn : Unmatched::kError);
  lua_createtable(lua, static_cast<int>(resolved.size()), 0);
  lua_Integer position = 0;
  for (const ModulePlan& module : resolved) {
    lua_createtable(lua, 0, 4);
    lua_newtable(lua);
    for (const auto& [name, tensor] : module.tensors) {
      lua_createtable(lua, 0, 2);
      push_placements(lua, tensor.placements);
      lua_setfield(lua, -2, "placements");
      set_field(lua, "listed", tensor.listed);
      if (tensor.gradient) {
        push_placements(lua, *tensor.gradient);
        lua_setfield(lua, -2, "gradient");
      }
      lua_setfield(lua, -2, name.c_str());
    }
    lua_setfield(lua, -2, "tensors");
    push_arguments(lua, module.inputs);
    lua_setfield(lua, -2, "inputs");
    push_arguments(lua, module.outputs);
    lua_setfield(lua, -2, "outputs");
    set_field(lua, "custom", module.custom);
    lua_rawseti(lua, -2, ++position);
  }
  push_object(lua, std::make_shared<ParallelPlan>(spelt_out(resolved, modules)));
  return 2;
}

int warn(lua_State* lua) {
  TORCH_WARN(check_string(lua, 1));
  return 0;
}

const luaL_Reg kPlanMethods[] = {{"resolve", guard<plan_resolve>},
                                 {"has_styles", guard<plan_has_styles>},
                                 {"to_json", guard<plan_text>},
                                 {nullptr, nullptr}};
const luaL_Reg kPlanMeta[] = {{"__tostring", guard<plan_text>}, {nullptr, nullptr}};
const luaL_Reg kArgumentMethods[] = {{nullptr, nullptr}};

// Functions that only the embedded Lua files call are kept out of `mh`.
const luaL_Reg kPlanInternals[] = {
    {"make_plan", guard<make_plan>}, {"load_plan", guard<load_plan_file>}, {"warn", guard<warn>}, {nullptr, nullptr}};

void open_plan(lua_State* lua) {
  define_object<ParallelPlan>(lua, kPlanMethods, nullptr, kPlanMeta);
  define_object<ArgumentPlan>(lua, kArgumentMethods);
  lua_newtable(lua);
  add_functions(lua, kPlanInternals);
  lua_setfield(lua, -2, "_plans");
}

const Binding plan_binding{"plan", open_plan};

}  // namespace

FactoryPlan check_factory_plan(lua_State* lua, int index, const DeviceMesh& mesh) {
  if (lua_isboolean(lua, index)) return replicated_factories(mesh);
  FactoryPlan plan;
  lua_pushnil(lua);
  while (lua_next(lua, index) != 0) {
    plan[check_string(lua, -2)] = check_placements(lua, -1);
    lua_pop(lua, 1);
  }
  check_factories(plan, mesh);
  return plan;
}

}  // namespace moonhalo::scripting
