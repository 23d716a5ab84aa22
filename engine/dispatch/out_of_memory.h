// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The allocator's error once more, with what it cannot know: the call, how its tensors are cut, and which rank holds
/// the largest block of them. `tensors`: those of the call, given and made; some may be null.
[[noreturn]] void throw_with_blocks(const c10::OutOfMemoryError& error, const std::string& op,
                                    const std::vector<SpecPtr>& tensors);

}  // namespace moonhalo
