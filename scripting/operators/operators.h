// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <lua.hpp>

#include <string>
#include <vector>

namespace moonhalo::scripting {

/// All overloads of one operator name, in the dispatcher's namespaces aten and moonhalo (or the one
/// that the name gives, as "prims::sum"). Lives as long as the process.
struct OperatorSet {
  std::string name;
  std::vector<c10::OperatorHandle> overloads;
};

/// Null when the dispatcher has no such name. Any thread. Libraries loaded later are found.
const OperatorSet* find_operator(const std::string& name);
/// Every name that `find_operator` finds without a namespace, sorted.
std::vector<std::string> operator_names();
/// Pushes the Lua function for operator `name`, and true; false (nothing pushed) when there is none. With `method` the
/// tensor before the colon stands for the schema's `self`, wherever that is.
bool push_operator(lua_State* lua, const std::string& name, bool method);

}  // namespace moonhalo::scripting
