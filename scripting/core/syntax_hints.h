// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::scripting {

/// Guesses what a user of Python may have meant, "\n  fix   a = a + 1; Lua has no +=", for Lua's message about
/// text that it cannot read; "" when nothing is known. `line` is the script's line that the message is about.
std::string syntax_hint(const std::string& message, const std::string& line);

}  // namespace moonhalo::scripting
