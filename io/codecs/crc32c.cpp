// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace moonhalo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are looked up as they lie in a word");

using Table = std::array<std::array<uint32_t, 256>, 8>;

/// Table k holds the sums of a byte that k zero bytes follow, so that eight bytes need no waiting for each other.
constexpr Table make_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
    table[0][byte] = sum;
  }
  for (size_t k = 1; k < table.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte)
      table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 255];
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

uint32_t crc32c(const char* data, size_t bytes) {
  uint32_t sum = ~0u;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= sum;
    sum = 0;
    for (size_t k = 0; k < 8; ++k) sum ^= kTable[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes > 0; --bytes, ++data) sum = sum >> 8 ^ kTable[0][(sum ^ static_cast<unsigned char>(*data)) & 255];
  return ~sum;
}

}  // namespace moonhalo::io
