// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace moonhalo::io {

/// Expands an LZ4 block into at most `capacity` bytes. Returns how many it gave; nothing for a damaged block or one
/// that needs more space.
std::optional<size_t> lz4_decode(const char* in, size_t bytes, char* out, size_t capacity);

}  // namespace moonhalo::io
