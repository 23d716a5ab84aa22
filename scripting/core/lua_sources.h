// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace moonhalo::scripting {

/// The Lua files of scripting/lua/, embedded at build time: ("nn.conv" for nn/conv.lua, text), sorted by name. Never
/// changes.
const std::vector<std::pair<std::string_view, std::string_view>>& lua_sources();

/// True for the chunk name of an embedded file: its lines mean nothing to a user.
inline bool is_embedded_chunk(const char* source) { return std::string_view(source).starts_with("=moonhalo."); }

}  // namespace moonhalo::scripting
