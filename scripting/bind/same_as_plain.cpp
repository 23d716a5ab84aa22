// SPDX-License-Identifier: Apache-2.0
// Compares a function on blocks with itself on plain tensors: mh.testing.same_as_plain.
#include "moonhalo/engine/testing/same_as_plain.h"

#include <c10/util/Exception.h>

#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

testing::SameAsPlainOptions check_options(lua_State* lua, const Options& given) {
  testing::SameAsPlainOptions options;
  options.draws = given.get_int("draws", options.draws);
  options.seed = static_cast<uint64_t>(given.get_int("seed", 0));
  options.gradients = given.get_bool("gradients", true);
  options.gradgrad = given.get_bool("gradgrad", false);
  options.tolerance = given.get_number("tolerance", options.tolerance);
  given.push("placements");
  if (!is_nil(lua, -1)) {
    TORCH_CHECK_TYPE(lua_istable(lua, -1), "same_as_plain: placements is a list, one entry for each input, got ",
                     describe(lua, -1));
    for (lua_Integer i = 1; lua_geti(lua, -1, i) != LUA_TNIL; ++i, lua_pop(lua, 1)) {
      const bool plain = lua_istable(lua, -1) && lua_rawlen(lua, -1) == 0;
      options.placements.push_back(plain ? std::vector<Placement>{} : check_placements(lua, -1));
    }
    lua_pop(lua, 1);
  }
  lua_pop(lua, 1);
  return options;
}

/// mh._difference_from_plain(fn, inputs, options, state): the text that mh.testing.same_as_plain raises, "" where
/// nothing differs. state.placements are those of the blocks that fn has now. Collective over the mesh.
int difference_from_plain_function(lua_State* lua) {
  if (!is_callable(lua, 1)) argument_error(lua, 1, "a function");
  const std::vector<at::Tensor> inputs = check_tensor_list(lua, 2);
  const Options given(lua, 3, "same_as_plain",
                      {"mesh", "placements", "draws", "seed", "gradients", "gradgrad", "tolerance"});
  testing::SameAsPlainOptions options = check_options(lua, given);
  options.names = {"mh.Shard", "mh.Stored", "mh.Replicate", "mh.Partial", ""};
  options.before_blocks = [lua](const std::string& placements) {
    push(lua, placements);
    lua_setfield(lua, 4, "placements");
  };
  given.push("mesh");
  const MeshPtr mesh =
      is_nil(lua, -1) ? init_device_mesh(*context(lua).world, context(lua).device.str(), {context(lua).world_size()})
                      : check_object<DeviceMesh>(lua, -1);
  const testing::Program program = [lua](const std::vector<at::Tensor>& tensors) {
    const int before = lua_gettop(lua);
    luaL_checkstack(lua, static_cast<int>(tensors.size()) + 1, "same_as_plain: too many inputs");
    lua_pushvalue(lua, 1);
    for (const at::Tensor& tensor : tensors) push(lua, tensor);
    lua_call(lua, static_cast<int>(tensors.size()), LUA_MULTRET);
    std::vector<at::Tensor> results;
    for (int index = before + 1; index <= lua_gettop(lua); ++index) {
      const at::Tensor* const tensor = to_tensor(lua, index);
      TORCH_CHECK_TYPE(tensor != nullptr, "same_as_plain: result ", index - before, " of the function is ",
                       describe(lua, index), "\n  fix   return tensors");
      results.push_back(*tensor);
    }
    TORCH_CHECK_TYPE(!results.empty(), "same_as_plain: the function returns nothing\n  fix   return tensors");
    lua_settop(lua, before);
    return results;
  };
  push(lua, testing::difference_from_plain(mesh, program, inputs, options));
  return 1;
}

const luaL_Reg kSameAsPlainFunctions[] = {{"_difference_from_plain", guard<difference_from_plain_function>},
                                          {nullptr, nullptr}};

const Binding same_as_plain_binding{"same_as_plain", [](lua_State* lua) { add_functions(lua, kSameAsPlainFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
