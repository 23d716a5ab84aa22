// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace moonhalo::scripting {

/// Writes a piece of standard output at once, so that the lines of thread ranks do not mix. A run does not end because
/// no reader gets what it prints: that is said when it ends.
void write_output(std::string_view text);

/// At the end of the program: the exit status, which is a failure where something was not written (a full disk); says
/// so on stderr.
int checked_output(int status);

}  // namespace moonhalo::scripting
