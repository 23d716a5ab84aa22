// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace moonhalo::io {

/// Expands an LZ4 block into at most `room` bytes. Returns how many it gave; nothing for a damaged block or one that
/// needs more room.
std::optional<size_t> lz4_decode(const char* in, size_t bytes, char* out, size_t room);

}  // namespace moonhalo::io
