// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace moonhalo::io {

/// The checksum of gzip and PNG.
uint32_t crc32(const char* data, size_t bytes);

}  // namespace moonhalo::io
