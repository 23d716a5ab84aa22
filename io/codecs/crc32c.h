// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace moonhalo::io {

/// The checksum of RFC 3720 (Castagnoli's polynomial).
uint32_t crc32c(const char* data, size_t bytes);

}  // namespace moonhalo::io
