// SPDX-License-Identifier: Apache-2.0
// Moving averages of a module's parameters. mh.EMA (internal/ema.lua) makes them, and passes the module to each call.
#include "moonhalo/engine/training/ema.h"

#include "moonhalo/scripting/bind/module_tree.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<Ema> = "MovingAverage";

namespace {

/// ema(module, decay, warmup)
int make_ema(lua_State* lua) {
  push_object(lua, std::make_shared<Ema>(check_module_tree(lua, 1),
                                         EmaOptions{.decay = check_number(lua, 2), .warmup = check_bool(lua, 3)}));
  return 1;
}

/// averages(): names and tensors.
int averages_of(lua_State* lua) {
  const auto ema = check_object<Ema>(lua, 1);
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& one : ema->averages()) {
    names.push_back(one.name);
    tensors.push_back(one.tensor);
  }
  push(lua, names);
  push(lua, tensors);
  return 2;
}

/// updates([value]): the number of updates, which is set to `value` before.
int updates_of(lua_State* lua) {
  const auto ema = check_object<Ema>(lua, 1);
  if (!is_nil(lua, 2)) ema->set_updates(check_int(lua, 2));
  push(lua, ema->updates());
  return 1;
}

/// update(module), swap(module), apply_to(module)
int update_ema(lua_State* lua) {
  check_object<Ema>(lua, 1)->update(check_module_tree(lua, 2));
  return 0;
}
int swap_ema(lua_State* lua) {
  check_object<Ema>(lua, 1)->swap(check_module_tree(lua, 2));
  return 0;
}
int apply_ema(lua_State* lua) {
  check_object<Ema>(lua, 1)->apply_to(check_module_tree(lua, 2));
  return 0;
}

const luaL_Reg kEmaFunctions[] = {{"_moving_average", guard<make_ema>}, {nullptr, nullptr}};
const luaL_Reg kEmaMethods[] = {{"averages", guard<averages_of>}, {"updates", guard<updates_of>},
                                {"update", guard<update_ema>},    {"swap", guard<swap_ema>},
                                {"apply_to", guard<apply_ema>},   {nullptr, nullptr}};

const Binding ema_binding{"ema", [](lua_State* lua) {
                            define_object<Ema>(lua, kEmaMethods);
                            add_functions(lua, kEmaFunctions);
                          }};

}  // namespace
}  // namespace moonhalo::scripting
