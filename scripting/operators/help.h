// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>

namespace moonhalo::scripting {

/// Returns the entries of a name: "mh.nn.Conv2d", "nn.Conv2d", "Conv2d", "x:redistribute", "Tensor:redistribute"; of a
/// class or a table ("Tensor", "mh.optim") a list of what it has; of an operator of LibTorch what `moonhalo ops` says.
/// Throws ValueError, with the nearest name, if there is nothing.
std::string help_on(const std::string& name);
/// Returns the names whose entries have all words, with their first sentence, the best first; "" if there is none.
std::string help_search(const std::string& words);
/// Returns what help is about, and the tables and classes that have entries.
std::string help_overview();
/// Sets the global `help`: help(x) prints on rank 0 the entry of a name or a function, facts about a tensor, the
/// methods of an object.
void set_help_function(lua_State* lua);

}  // namespace moonhalo::scripting
