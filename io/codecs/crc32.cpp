// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/crc32.h"

#include <libdeflate.h>

namespace moonhalo::io {

uint32_t crc32(const char* data, size_t bytes) { return libdeflate_crc32(0, data, bytes); }

}  // namespace moonhalo::io
