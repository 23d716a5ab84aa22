// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moonhalo {

/// Copies into memory that is not read soon, past the caches where the processor can: memory that is only overwritten
/// is not read first. Another thread sees it after finish_stream.
void stream_copy(char* to, const char* from, size_t bytes);
void finish_stream();

}  // namespace moonhalo
