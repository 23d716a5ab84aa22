// SPDX-License-Identifier: Apache-2.0
// The order of samples, for scripting/lua/data.lua.
#include <ATen/ATen.h>

#include "moonhalo/engine/random/permutation.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// _permuted(places, size, key, stream): what stands at these places (int64, 1-D) of a permutation of [0, size).
int permuted(lua_State* lua) {
  const at::Tensor& places = check_tensor(lua, 1);
  const Permutation permutation(check_int(lua, 2), static_cast<uint64_t>(check_int(lua, 3)),
                                static_cast<uint64_t>(check_int(lua, 4)));
  const at::Tensor on_host = places.cpu();  // a script's tensors are on its device
  at::Tensor values = at::empty_like(on_host);
  const auto from = on_host.accessor<int64_t, 1>();
  auto to = values.accessor<int64_t, 1>();
  for (int64_t i = 0; i < from.size(0); ++i) to[i] = permutation(from[i]);
  push(lua, values.to(places.device()));
  return 1;
}

const Binding permutation_binding{
    "permutation", [](lua_State* lua) {
      static const luaL_Reg functions[] = {{"_permuted", guard<permuted>}, {nullptr, nullptr}};
      add_functions(lua, functions);
    }};

}  // namespace

}  // namespace moonhalo::scripting
