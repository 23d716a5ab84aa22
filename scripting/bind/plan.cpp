// SPDX-License-Identifier: Apache-2.0
// Parallel plans as objects; bind/module_tree.cpp applies them.
#include "moonhalo/scripting/bind/plan.h"

#include "moonhalo/scripting/bind/mesh.h"

namespace moonhalo::scripting {

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

int warn(lua_State* lua) {
  TORCH_WARN(check_string(lua, 1));
  return 0;
}

const luaL_Reg kPlanMethods[] = {
    {"has_styles", guard<plan_has_styles>}, {"to_json", guard<plan_text>}, {nullptr, nullptr}};
const luaL_Reg kPlanMeta[] = {{"__tostring", guard<plan_text>}, {nullptr, nullptr}};

// Functions that only the embedded Lua files call are kept out of `mh`.
const luaL_Reg kPlanInternals[] = {
    {"make_plan", guard<make_plan>}, {"load_plan", guard<load_plan_file>}, {"warn", guard<warn>}, {nullptr, nullptr}};

void open_plan(lua_State* lua) {
  define_object<ParallelPlan>(lua, kPlanMethods, nullptr, kPlanMeta);
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
