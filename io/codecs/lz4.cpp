// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/lz4.h"

#include <cstring>

namespace moonhalo::io {
namespace {

/// The rest of a length whose four bits are all set: bytes that add to it, until one is not 255. False at the end.
bool read_length(const unsigned char*& from, const unsigned char* end, size_t& length) {
  for (size_t more = 255; more == 255; length += more) {
    if (from == end) return false;
    more = *from++;
  }
  return true;
}

}  // namespace

// A block of runs. The upper four bits of a first byte count the bytes that follow as they are; then come two bytes,
// how far before is what is repeated; the lower four bits are its length less 4. The last run has no repetition.
std::optional<size_t> lz4_decode(const char* in, size_t bytes, char* out, size_t capacity) {
  const auto* from = reinterpret_cast<const unsigned char*>(in);
  const unsigned char* const end = from + bytes;
  size_t done = 0;
  while (from < end) {
    const size_t first = *from++;
    size_t literals = first >> 4;
    if (literals == 15 && !read_length(from, end, literals)) return std::nullopt;
    if (literals > static_cast<size_t>(end - from) || literals > capacity - done) return std::nullopt;
    std::memcpy(out + done, from, literals);
    from += literals;
    done += literals;
    if (from == end) return done;
    if (end - from < 2) return std::nullopt;
    const size_t distance = from[0] | static_cast<size_t>(from[1]) << 8;
    from += 2;
    size_t length = first & 15;
    if (length == 15 && !read_length(from, end, length)) return std::nullopt;
    length += 4;
    if (distance == 0 || distance > done || length > capacity - done) return std::nullopt;
    char* const to = out + done;
    if (distance >= length) {
      std::memcpy(to, to - distance, length);
    } else {
      for (size_t i = 0; i < length; ++i)
        to[i] = to[static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(distance)];
    }
    done += length;
  }
  return std::nullopt;
}

}  // namespace moonhalo::io
