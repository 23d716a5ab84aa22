// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::scripting {

/// A message of LibTorch for users of Lua: advice in Python's spelling, or of what does not exist here,
/// becomes a remedy that works; some mistakes that LibTorch only states get one. Other messages stay as they are.
std::string in_lua(std::string message);

}  // namespace moonhalo::scripting
