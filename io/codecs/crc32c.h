// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace moonhalo::io {

/// The checksum of RFC 3720 (Castagnoli's polynomial).
uint32_t crc32c(const char* data, size_t bytes);

/// The same of data that are in parts: the exclusive or of all parts' addends, in any order and by any ranks, then
/// crc32c_of_parts. `behind`: bytes of the whole that follow the part.
uint32_t crc32c_addend(const char* data, size_t bytes, uint64_t behind);
uint32_t crc32c_of_parts(uint32_t addends, uint64_t bytes);

}  // namespace moonhalo::io
