// SPDX-License-Identifier: Apache-2.0
// Models that are built without memory and filled block by block: mh.deferred_init.
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.deferred_init(fn [, {min_numel = 1024}]): what fn() returns, made of deferred tensors.
int deferred_init(lua_State* lua) {
  if (!is_callable(lua, 1)) argument_error(lua, 1, "a function");
  const Options options(lua, 2, "deferred_init", {"min_numel"});
  const int64_t min_numel = options.get_int("min_numel", DeferredInit::kMinNumel);
  lua_settop(lua, 1);
  const DeferredInit scope(min_numel);
  lua_call(lua, 0, LUA_MULTRET);
  return lua_gettop(lua);
}

int deferred(lua_State* lua) {
  push(lua, is_deferred(check_tensor(lua, 1)));
  return 1;
}

/// mh.materialize(tensor [, mesh, placements]): plain and whole, or the owned block (collective over
/// the mesh).
int materialize_tensor(lua_State* lua) {
  const at::Tensor tensor = check_tensor(lua, 1);
  push(lua, is_nil(lua, 2) ? materialize(tensor)
                           : materialize(tensor, check_object<DeviceMesh>(lua, 2), check_placements(lua, 3)));
  return 1;
}

/// mh.materialize_module(net): every parameter and buffer plain and whole; returns net.
int materialize_modules_tensors(lua_State* lua) {
  for (const char* method : {"parameters", "buffers"}) {
    const bool is_module = lua_istable(lua, 1) && luaL_getmetafield(lua, 1, "class") != LUA_TNIL;
    TORCH_CHECK_TYPE(is_module, "materialize_module: wanted an nn.Module, got ", describe(lua, 1));
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
