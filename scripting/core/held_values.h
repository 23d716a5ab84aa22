// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {

/// A Lua value that autograd's graph needs and a script may refer to its tensors by: a hook, the function of
/// mh.checkpoint. A Reference would never die, since each of two collectors waits for the other:
///
///     tensor -> graph -> function -> its upvalues -> tensor
///
/// So the tensors' userdata hold it, as Lua sees it, and the graph asks for it there. Where Lua finds such a userdata
/// dead that others than scripts still need (a graph that holds the tensor or its node), it is kept until they do not.
class HeldValue {
 public:
  HeldValue() = default;
  /// `tensors`: stack indices of the tensors beside which the value at `value` is held; what needs it is these tensors
  /// and the first one's grad_fn.
  HeldValue(lua_State* lua, const std::vector<int>& tensors, int value);
  /// As of Reference.
  void push() const;
  lua_State* lua() const;
  explicit operator bool() const { return slot_ != nullptr; }

  struct Slot;

 private:
  std::shared_ptr<Slot> slot_;
};

/// A Lua function that an object calls (an optimizer's hook, a stage of a pipeline) and that may refer to the object by
/// way of its upvalues. The object's userdata holds it, where Lua sees the cycle; a Reference would keep both for ever.
class OwnedFunction {
 public:
  OwnedFunction() = default;
  /// `object`: the stack index of the userdata that push_object made; `value`: that of the function.
  OwnedFunction(lua_State* lua, int object, int value);
  /// As of Reference; LuaError once Lua has found the userdata dead.
  void push() const;
  /// False, and nothing pushed, once Lua has found the userdata dead.
  bool try_push() const;
  lua_State* lua() const;

 private:
  std::shared_ptr<StateData> state_;
  const void* handle_ = nullptr;
  int64_t number_ = 0;
};

/// For the tensor userdata's __gc: true if it is kept, because autograd needs a value that it holds.
bool keep_for_autograd(lua_State* lua);
/// The tensor userdata at `index` gives its tensor away before it is collected.
void forget_handle(lua_State* lua, int index);

}  // namespace moonhalo::scripting
