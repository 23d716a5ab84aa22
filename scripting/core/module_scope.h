// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <memory>
#include <string>

namespace moonhalo::scripting {

/// Lives while the forward of a module runs, for what looks at results (bind/nan_watch.h).
class ModuleScope {
 public:
  virtual ~ModuleScope() = default;
  /// The message if the results, from 2 to the top, are refused; "" otherwise.
  virtual std::string problem(lua_State* lua) const = 0;
};

/// Makes the scope of the module at 1, whose arguments are from 2 to the top; null where nothing is looked at. Called
/// while hooks are on (hooks_are_on()).
using MakeModuleScope = std::unique_ptr<ModuleScope> (*)(lua_State* lua);
/// Set once, before the first state.
void set_module_scope(MakeModuleScope make);

}  // namespace moonhalo::scripting
