// SPDX-License-Identifier: Apache-2.0
// Models that are built without memory and filled block by block: mh.deferred_init.
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.deferred_init(fn, {min_numel = 1024}) -> any
///   Calls fn() while large tensors are only recorded, not computed, and returns its results. Such tensors get memory
///   and values when they are distributed (mh.parallelize_module, mh.fully_shard) or materialized: each rank computes
///   its own block, with the values that the whole tensor would have.
///   fn          function    makes a model
///   min_numel   integer     smaller tensors are made at once
///   returns     any         the results of fn
///   collective  no
///   errors      TypeError: fn is not a function
///   example
///     local net = mh.deferred_init(function() return nn.Linear(100, 100) end)
///     mh.is_deferred(net.weight), mh.is_deferred(net.bias)    --> true  false
int deferred_init(lua_State* lua) {
  if (!is_callable(lua, 1)) argument_error(lua, 1, "a function");
  const Options options(lua, 2, "deferred_init", {"min_numel"});
  const int64_t min_numel = options.get_int("min_numel", DeferredInit::kMinNumel);
  lua_settop(lua, 1);
  const DeferredInit scope(min_numel);
  lua_call(lua, 0, LUA_MULTRET);
  return lua_gettop(lua);
}

/// x:is_deferred() -> boolean
/// mh.is_deferred(x) -> boolean
///   Whether the tensor was made by mh.deferred_init and has no memory yet.
///   x           Tensor      what is asked about
///   returns     boolean     false for every other tensor
///   collective  no
///   example
///     mh.ones{2}:is_deferred()    --> false
int deferred(lua_State* lua) {
  push(lua, is_deferred(check_tensor(lua, 1)));
  return 1;
}

/// mh.materialize(tensor, mesh = nil, placements = nil) -> Tensor
///   Computes a deferred tensor: whole and plain, or the block of this rank.
///   tensor      Tensor      made by mh.deferred_init
///   mesh        DeviceMesh?   where blocks are made
///   placements  {Placement}?   one for each mesh dim
///   returns     Tensor      the same values as without mh.deferred_init
///   collective  over the mesh, if one is given
///   example
///     local weight = mh.deferred_init(function() return mh.ones{64, 64} end)
///     mh.materialize(weight, mesh, {mh.Shard(0)}):sum():item()    --> 4096.0
int materialize_tensor(lua_State* lua) {
  const at::Tensor tensor = check_tensor(lua, 1);
  push(lua, is_nil(lua, 2) ? materialize(tensor)
                           : materialize(tensor, check_object<DeviceMesh>(lua, 2), check_placements(lua, 3)));
  return 1;
}

/// mh.materialize_module(net) -> Module
///   Computes all deferred parameters and buffers of a module, whole and plain, in place.
///   net         Module      made by mh.deferred_init
///   returns     Module      net itself
///   collective  no
///   errors      TypeError: net is not a module
///   example
///     local net = mh.deferred_init(function() return nn.Linear(100, 100) end)
///     mh.is_deferred(mh.materialize_module(net).weight)    --> false
int materialize_modules_tensors(lua_State* lua) {
  for (const char* method : {"parameters", "buffers"}) {
    const bool is_module = lua_istable(lua, 1) && luaL_getmetafield(lua, 1, "class") != LUA_TNIL;
    TORCH_CHECK_TYPE(is_module, "materialize_module: expected an nn.Module, got ", describe(lua, 1));
    lua_pop(lua, 1);
    lua_getfield(lua, 1, method);
    lua_pushvalue(lua, 1);
    lua_call(lua, 1, 1);
    for (at::Tensor& tensor : check_tensor_list(lua, lua_gettop(lua))) materialize_in_place(tensor);
    lua_pop(lua, 1);
  }
  lua_settop(lua, 1);
  return 1;
}

void open_deferred(lua_State* lua) {
  static const luaL_Reg methods[] = {{"is_deferred", guard<deferred>}, {nullptr, nullptr}};
  static const luaL_Reg functions[] = {{"deferred_init", guard<deferred_init>},
                                       {"is_deferred", guard<deferred>},
                                       {"materialize", guard<materialize_tensor>},
                                       {"materialize_module", guard<materialize_modules_tensors>},
                                       {nullptr, nullptr}};
  add_functions(lua, functions);
  add_tensor_methods(lua, methods);
}

const Binding deferred_binding{"deferred", open_deferred};

}  // namespace

}  // namespace moonhalo::scripting
