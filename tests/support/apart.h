// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace moonhalo::testing {

/// task(0), task(1), ... in a process of their own, so that a crash or a hang is the end of one of them; the next
/// ones go on in another process. The caller must have no threads. `done` gets, in order, what each gave, or in `ended`
/// how the process ended in it.
void run_apart(size_t count, const std::function<std::string(size_t)>& task,
               const std::function<void(size_t, const std::string& text, const std::string& ended)>& done,
               int patience_ms = 60000);

}  // namespace moonhalo::testing
