// SPDX-License-Identifier: Apache-2.0
// mh.checkpoint(fn, ...): segments that are computed again in the backward pass. checkpoint.lua gives it its name.
#include <c10/util/Exception.h>

#include "moonhalo/engine/model/recompute.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

/// The arguments of a call, in which tensors are replaced by those of each run.
struct Call {
  Reference function;
  std::vector<Reference> arguments;  // empty for tensors, which the segment's node keeps
  std::vector<size_t> tensors;       // which of them are tensors
};

std::vector<at::Tensor> run(const Call& call, const std::vector<at::Tensor>& inputs) {
  call.function.push();
  lua_State* lua = call.function.lua();
  const int before = lua_gettop(lua) - 1;
  luaL_checkstack(lua, static_cast<int>(call.arguments.size()), "checkpoint: too many arguments");
  size_t next = 0;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (next < call.tensors.size() && call.tensors[next] == i) {
      push(lua, inputs[next++]);
    } else {
      call.arguments[i].push();
    }
  }
  call_traced(lua, static_cast<int>(call.arguments.size()), LUA_MULTRET);
  std::vector<at::Tensor> results;
  for (int i = before + 1; i <= lua_gettop(lua); ++i) {
    if (!to_tensor(lua, i)) {
      const std::string got = describe(lua, i);
      lua_settop(lua, before);
      TORCH_CHECK_TYPE(false, "checkpoint: the function gives tensors, result ", i - before, " is ", got);
    }
    results.push_back(check_tensor(lua, i));
  }
  lua_settop(lua, before);
  return results;
}

/// _checkpoint(fn, ...) -> the results of fn(...)
int checkpoint_call(lua_State* lua) {
  if (!is_callable(lua, 1)) argument_error(lua, 1, "a function");
  auto call = std::make_shared<Call>();
  call->function = Reference(lua, 1);
  std::vector<at::Tensor> inputs;
  for (int i = 2; i <= lua_gettop(lua); ++i) {
    call->arguments.push_back(to_tensor(lua, i) ? Reference() : Reference(lua, i));
    if (!to_tensor(lua, i)) continue;
    call->tensors.push_back(static_cast<size_t>(i) - 2);
    inputs.push_back(check_tensor(lua, i));
  }
  const std::vector<at::Tensor> results =
      checkpoint([call](const std::vector<at::Tensor>& given) { return run(*call, given); }, inputs);
  luaL_checkstack(lua, static_cast<int>(results.size()), "checkpoint: too many results");
  for (const at::Tensor& result : results) push(lua, result);
  return static_cast<int>(results.size());
}

void open_checkpoint(lua_State* lua) {
  static const luaL_Reg functions[] = {{"_checkpoint", guard<checkpoint_call>}, {nullptr, nullptr}};
  add_functions(lua, functions);
}

const Binding recompute_binding{"checkpoint", open_checkpoint};

}  // namespace
}  // namespace moonhalo::scripting
