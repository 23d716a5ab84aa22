// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/pytorch/utf8.h"

#include <cstddef>
#include <cstdint>

namespace moonhalo::io {

bool is_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<uint8_t>(bytes[i]);
    const size_t length = first < 0x80         ? 1
                          : (first >> 5) == 6  ? 2
                          : (first >> 4) == 14 ? 3
                          : (first >> 3) == 30 ? 4
                                               : 0;
    if (length == 0 || i + length > bytes.size()) return false;
    uint32_t letter = length == 1 ? first : first & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<uint8_t>(bytes[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      letter = letter << 6 | (next & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (letter < kLeast[length] || letter > 0x10ffff || (letter >= 0xd800 && letter < 0xe000)) return false;
    i += length;
  }
  return true;
}

std::string latin1_to_utf8(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto letter = static_cast<uint8_t>(byte);
    if (letter < 0x80) {
      text += byte;
    } else {
      text += static_cast<char>(0xc0 | letter >> 6);
      text += static_cast<char>(0x80 | (letter & 0x3f));
    }
  }
  return text;
}

}  // namespace moonhalo::io
