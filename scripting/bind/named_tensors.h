// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

/// A list of {name, tensor}, as files take it.
std::vector<std::pair<std::string, at::Tensor>> check_named_tensors(lua_State* lua, int index);
/// A table of strings by name, or nothing.
std::map<std::string, std::string> check_strings(lua_State* lua, int index);

}  // namespace moonhalo::scripting
