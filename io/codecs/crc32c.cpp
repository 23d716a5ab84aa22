// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace moonhalo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are looked up as they are in a word");

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

// The register that starts with zeros and is not inverted at the end: then sums of parts add up (exclusive or).
uint32_t by_tables(uint32_t sum, const char* data, size_t bytes) {
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= sum;
    sum = 0;
    for (size_t k = 0; k < 8; ++k) sum ^= kTable[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes > 0; --bytes, ++data) sum = sum >> 8 ^ kTable[0][(sum ^ static_cast<unsigned char>(*data)) & 255];
  return sum;
}

// Polynomials over two elements, the highest power in the lowest bit.
constexpr uint32_t times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ (b & 1 ? 0x82f63b78u : 0);
  }
  return product;
}

// x to the powers 1, 2, 4, 8, ...
constexpr std::array<uint32_t, 67> make_powers() {
  std::array<uint32_t, 67> powers{1u << 30};
  for (size_t k = 1; k < powers.size(); ++k) powers[k] = times(powers[k - 1], powers[k - 1]);
  return powers;
}
constexpr std::array<uint32_t, 67> kPowers = make_powers();

// The register after `n` bytes of zeros.
constexpr uint32_t moved(uint32_t sum, uint64_t bytes) {
  for (size_t k = 3; bytes != 0 && sum != 0; bytes >>= 1, ++k) {
    if (bytes & 1) sum = times(kPowers[k], sum);
  }
  return sum;
}

#if defined(__x86_64__)
[[gnu::target("sse4.2")]] uint32_t by_instruction(uint32_t sum, const char* data, size_t bytes) {
  constexpr size_t kLane = 8 << 10;
  constexpr uint32_t kMoved = moved(1u << 31, kLane);
  // An instruction waits for the one before it, three lanes do not wait for each other.
  for (; bytes >= 3 * kLane; bytes -= 3 * kLane, data += 3 * kLane) {
    uint64_t lanes[3] = {sum, 0, 0};
    for (size_t at = 0; at < kLane; at += 8) {
      for (size_t lane = 0; lane < 3; ++lane) {
        uint64_t word;
        std::memcpy(&word, data + lane * kLane + at, 8);
        lanes[lane] = __builtin_ia32_crc32di(lanes[lane], word);
      }
    }
    sum = static_cast<uint32_t>(lanes[0]);
    for (size_t lane = 1; lane < 3; ++lane) sum = times(kMoved, sum) ^ static_cast<uint32_t>(lanes[lane]);
  }
  uint64_t wide = sum;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  sum = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++data) sum = __builtin_ia32_crc32qi(sum, static_cast<unsigned char>(*data));
  return sum;
}

uint32_t add(uint32_t sum, const char* data, size_t bytes) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  return has_instruction ? by_instruction(sum, data, bytes) : by_tables(sum, data, bytes);
}
#else
uint32_t add(uint32_t sum, const char* data, size_t bytes) { return by_tables(sum, data, bytes); }
#endif

}  // namespace

uint32_t crc32c(const char* data, size_t bytes) { return ~add(~0u, data, bytes); }

uint32_t crc32c_addend(const char* data, size_t bytes, uint64_t behind) { return moved(add(0, data, bytes), behind); }

uint32_t crc32c_of_parts(uint32_t addends, uint64_t bytes) { return ~(addends ^ moved(~0u, bytes)); }

}  // namespace moonhalo::io
