// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include <lua.hpp>

#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/scripting/operators/operators.h"

namespace moonhalo::scripting {

/// The arguments of a call as Lua gives them: stack indices of the positional ones, and of the
/// values of a last table with string keys.
struct LuaCall {
  lua_State* lua;
  bool method = false;
  std::vector<int> positional;
  std::vector<std::pair<std::string, int>> keywords;
  /// The last argument was `{}`, which may be an empty list or no options at all.
  bool empty_table_last = false;
};

/// Reads the arguments on the stack; pushes the values of the keyword table.
LuaCall read_call(lua_State* lua, bool method);

/// An overload and its arguments, ready for callBoxed.
struct ChosenOverload {
  const c10::OperatorHandle* op = nullptr;
  torch::jit::Stack stack;
  int cost = 0;
  /// The option of PyTorch's Python factories, which no schema has.
  bool requires_grad = false;
  /// `mesh` and `placements` of a factory: only the owned block is made.
  MeshPtr mesh;
  std::vector<Placement> placements;
};

/// The overload whose schema types fit the arguments best (see `Cost`; ties: fewer defaults, then
/// the dispatcher's order). Absent generators are this rank's. Throws TypeError that names the
/// operator, what was passed, every schema and why it does not fit.
ChosenOverload choose_overload(const OperatorSet& set, const LuaCall& call);

/// "matmul(Tensor float32 [2, 3], 2, dim = 0)" for messages.
std::string describe_call(const std::string& name, const LuaCall& call);

/// Chooses, calls, pushes the results; returns how many.
int call_operator(lua_State* lua, const OperatorSet& set, bool method);

}  // namespace moonhalo::scripting
