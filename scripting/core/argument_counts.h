// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>
#include <string_view>

namespace moonhalo::scripting {

// A call with more arguments than its function takes is an error, as in PyTorch: Lua would ignore the others. The
// reference says how many a function takes; of Lua functions without `...` their parameters do.

/// A function of the reference.
struct KnownCall {
  std::string_view name;  ///< "mh.Shard", "Tensor:item"
  std::string_view text;  ///< "mh.Shard(dim, sizes = nil)"
  int most;               ///< arguments, the object of a method included
  bool in_lua;
};
/// Null for a name without an entry, and where any number of arguments is right. Lives as long as the program.
const KnownCall* find_call(std::string_view name);
/// True if names in the reference begin so: "mh.nn.".
bool is_call_prefix(const std::string& prefix);

/// Drops nils behind `most` arguments, which say nothing. True if more are left.
bool has_surplus(lua_State* lua, int most);
/// The error about `count` arguments of a function that takes `taken`. `call`: as KnownCall::text, or "". `first`: the
/// first that is too many, described.
std::string surplus_text(const std::string& name, int count, int taken, std::string_view call,
                         const std::string& first);
/// TypeError: the running function `name` got more than `most` arguments. `method`: the first is its object. `call`: as
/// KnownCall::text, or "".
[[noreturn]] void refuse_surplus(lua_State* lua, int most, const std::string& name, bool method, std::string_view call);
/// The error if the running method got more than `most` arguments, its object included.
void check_argument_count(lua_State* lua, int most, const std::string& name);

/// Pushes the number of parameters of the Lua function at `index`; -1 if it takes any number.
void push_parameter_count(lua_State* lua, int index);

/// False if the function on top of the stack, forward or init of a module, is one of Moonhalo and takes fewer than
/// `arguments` beside the module. One of a script is a function of Lua as others are.
bool module_takes(lua_State* lua, int arguments);
/// The error about it: the module is at 1, its arguments and the function follow.
[[noreturn]] void refuse_of_module(lua_State* lua, const std::string& name);

}  // namespace moonhalo::scripting
