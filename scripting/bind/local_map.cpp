// SPDX-License-Identifier: Apache-2.0
// mh.local_map: a function of plain tensors, run on every rank's block.
#include "moonhalo/engine/model/local_map.h"

#include <c10/util/Exception.h>

#include "moonhalo/scripting/bind/mesh.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<LocalMapOptions> = "LocalMapOptions";

namespace {

/// Per argument or result a list of placements or one placement; nothing for nil, false and mh.none. One placement
/// instead of a list is that of the first.
std::vector<std::optional<Placements>> entries_of(lua_State* lua, const Options& options, const char* key) {
  std::vector<std::optional<Placements>> entries;
  options.push(key);
  if (to_object<Placement>(lua, -1)) {
    entries.emplace_back(check_placements(lua, -1));
  } else if (!is_nil(lua, -1)) {
    TORCH_CHECK_TYPE(lua_istable(lua, -1), "local_map: ", key, " is a list, got ", describe(lua, -1));
    for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
      TORCH_CHECK_VALUE(lua_isinteger(lua, -2) && lua_tointeger(lua, -2) > 0, "local_map: ", key, " has the key ",
                        describe(lua, -2), "\n  fix   write a list, one entry for each tensor");
      if (is_nil(lua, -1) || (lua_isboolean(lua, -1) && !lua_toboolean(lua, -1))) continue;
      const auto position = static_cast<size_t>(lua_tointeger(lua, -2));
      if (entries.size() < position) entries.resize(position);
      entries[position - 1] = check_placements(lua, -1);
    }
  }
  lua_pop(lua, 1);
  return entries;
}

/// Called with the arguments; function and options are upvalues.
int call_mapped(lua_State* lua) {
  const int count = lua_gettop(lua);
  const auto options = check_object<LocalMapOptions>(lua, lua_upvalueindex(2));
  std::vector<at::Tensor> inputs(count);
  for (int i = 0; i < count; ++i) {
    if (const at::Tensor* tensor = to_tensor(lua, i + 1)) inputs[i] = *tensor;
  }
  const auto call = [&](const std::vector<at::Tensor>& blocks) {
    luaL_checkstack(lua, count + 1, "local_map: too many arguments");
    lua_pushvalue(lua, lua_upvalueindex(1));
    for (int i = 0; i < count; ++i) {
      if (blocks[i].is_same(inputs[i])) {
        lua_pushvalue(lua, i + 1);
      } else {
        push(lua, blocks[i]);
      }
    }
    lua_call(lua, count, LUA_MULTRET);
    std::vector<at::Tensor> results(lua_gettop(lua) - count);
    for (size_t i = 0; i < results.size(); ++i) {
      const int index = count + 1 + static_cast<int>(i);
      const bool placed = i < options->out_placements.size() && options->out_placements[i];
      if (const at::Tensor* tensor = to_tensor(lua, index)) {
        results[i] = *tensor;
      } else {
        TORCH_CHECK_TYPE(!placed || is_nil(lua, index), "local_map: out_placements is for tensors, result ", i + 1,
                         " is ", describe(lua, index));
      }
    }
    return results;
  };
  const std::vector<at::Tensor> results = local_map(call, inputs, *options);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i >= options->out_placements.size() || !options->out_placements[i] || !results[i].defined()) continue;
    push(lua, results[i]);
    lua_replace(lua, count + 1 + static_cast<int>(i));
  }
  return lua_gettop(lua) - count;
}

/// mh.local_map(fn, {in_placements = nil, out_placements, in_grad_placements = nil, mesh = nil, redistribute_inputs =
///     false}) -> function
///   A function that calls fn with the blocks of this rank and makes ShardTensors of its results. It is differentiable.
///   fn          function    of plain tensors
///   in_placements   table?   for each argument a list of placements, or one placement for a mesh with one dim; nil for
///     an argument that is passed as it is. A plain tensor with placements counts as replicated
///   out_placements   table   for each result a list of placements; nil for a result that stays as it is
///   in_grad_placements   table?   for each argument the placements of its gradient, where the default does not fit
///   mesh        DeviceMesh?   needed where no argument is a ShardTensor
///   redistribute_inputs   boolean   moves arguments to in_placements; without it others are refused
///   returns     function    takes the arguments of fn
///   collective  the function that it returns: over the mesh
///   errors      ValueError: out_placements is missing, or an argument has other placements
///   example
///     local double = mh.local_map(function(x) return x * 2 end, {out_placements = {mh.Shard(0)}})
///     double(mh.distribute_tensor(mh.arange(4), mesh, {mh.Shard(0)})):sum():item()    --> 12
int make_mapped(lua_State* lua) {
  if (!is_callable(lua, 1)) argument_error(lua, 1, "a function");
  const Options given(lua, 2, "local_map",
                      {"in_placements", "out_placements", "in_grad_placements", "mesh", "redistribute_inputs"});
  TORCH_CHECK_VALUE(given.has("out_placements"), "local_map: out_placements is missing");
  auto options = std::make_shared<LocalMapOptions>();
  options->in_placements = entries_of(lua, given, "in_placements");
  options->out_placements = entries_of(lua, given, "out_placements");
  options->in_grad_placements = entries_of(lua, given, "in_grad_placements");
  options->redistribute_inputs = given.get_bool("redistribute_inputs", false);
  given.push("mesh");
  if (!is_nil(lua, -1)) options->mesh = check_object<DeviceMesh>(lua, -1);
  lua_pushvalue(lua, 1);
  push_object(lua, std::move(options));
  lua_pushcclosure(lua, guard<call_mapped>, 2);
  return 1;
}

const luaL_Reg kNoMethods[] = {{nullptr, nullptr}};
const luaL_Reg kLocalMapFunctions[] = {{"local_map", guard<make_mapped>}, {nullptr, nullptr}};

void open_local_map(lua_State* lua) {
  define_object<LocalMapOptions>(lua, kNoMethods);
  add_functions(lua, kLocalMapFunctions);
}

const Binding local_map_binding{"local_map", open_local_map};

}  // namespace
}  // namespace moonhalo::scripting
