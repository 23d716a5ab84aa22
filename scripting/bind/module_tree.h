// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/model/module_tree.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

/// The module of mh.nn at `index` as a ModuleTree, for the time of a call: it refers to the Lua module.
ModuleTreePtr check_module_tree(lua_State* lua, int index);
/// Pushes the Lua module of a tree that check_module_tree or its children() made.
void push_module(lua_State* lua, const ModuleTree& tree);

}  // namespace moonhalo::scripting
