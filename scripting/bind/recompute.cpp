// SPDX-License-Identifier: Apache-2.0
// mh.checkpoint(fn, ...): segments that are computed again in the backward pass. checkpoint.lua gives it its name.
#include <c10/util/Exception.h>

#include "moonhalo/engine/model/recompute.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/held_values.h"

namespace moonhalo::scripting {
namespace {

/// A call, in which tensors are replaced by those of each run.
struct Call {
  Reference at_first;           // a list of the function and its arguments, while it runs for the first time
  HeldValue held;               // the same beside the results, which the function may refer to
  size_t arguments = 0;         // with tensors, which the segment's node keeps
  std::vector<size_t> tensors;  // which of them are tensors
};

std::vector<at::Tensor> run(const Call& call, const std::vector<at::Tensor>& inputs) {
  lua_State* lua = call.held ? call.held.lua() : call.at_first.lua();
  const int before = lua_gettop(lua);
  luaL_checkstack(lua, static_cast<int>(call.arguments) + 2, "checkpoint: too many arguments");
  if (call.held) {
    call.held.push();
  } else {
    call.at_first.push();
  }
  const int list = lua_gettop(lua);
  lua_rawgeti(lua, list, 1);
  size_t next = 0;
  for (size_t i = 0; i < call.arguments; ++i) {
    if (next < call.tensors.size() && call.tensors[next] == i) {
      push(lua, inputs[next++]);
    } else {
      lua_rawgeti(lua, list, static_cast<lua_Integer>(i) + 2);
    }
  }
  lua_remove(lua, list);
  call_traced(lua, static_cast<int>(call.arguments), LUA_MULTRET);
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
  call->arguments = static_cast<size_t>(lua_gettop(lua)) - 1;
  lua_createtable(lua, static_cast<int>(call->arguments) + 1, 0);
  const int list = lua_gettop(lua);
  std::vector<at::Tensor> inputs;
  for (int i = 1; i < list; ++i) {
    if (i > 1 && to_tensor(lua, i)) {
      call->tensors.push_back(static_cast<size_t>(i) - 2);
      inputs.push_back(check_tensor(lua, i));
    } else {
      lua_pushvalue(lua, i);
      lua_rawseti(lua, list, i);
    }
  }
  call->at_first = Reference(lua, list);
  const std::vector<at::Tensor> results =
      checkpoint([call](const std::vector<at::Tensor>& given) { return run(*call, given); }, inputs);
  luaL_checkstack(lua, static_cast<int>(results.size()), "checkpoint: too many results");
  std::vector<int> recorded;
  for (const at::Tensor& result : results) {
    push(lua, result);
    if (result.defined() && result.grad_fn()) recorded.push_back(lua_gettop(lua));
  }
  if (!recorded.empty()) call->held = HeldValue(lua, recorded, list);
  call->at_first = Reference();
  return static_cast<int>(results.size());
}

void open_checkpoint(lua_State* lua) {
  static const luaL_Reg functions[] = {{"_checkpoint", guard<checkpoint_call>}, {nullptr, nullptr}};
  add_functions(lua, functions);
}

const Binding recompute_binding{"checkpoint", open_checkpoint};

}  // namespace
}  // namespace moonhalo::scripting
