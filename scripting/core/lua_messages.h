// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::scripting {

/// An error of Lua itself, "script.lua:3: attempt to call a table value (for iterator 'for iterator')", with a remedy
/// where it has a common cause; other messages as they are.
std::string with_remedy(std::string message);

}  // namespace moonhalo::scripting
