// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace moonhalo::scripting {

/// The Lua files of scripting/, embedded at build time: (name without ".lua", text), sorted by name. Never changes.
const std::vector<std::pair<std::string_view, std::string_view>>& lua_sources();

}  // namespace moonhalo::scripting
