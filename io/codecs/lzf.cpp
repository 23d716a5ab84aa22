// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/lzf.h"

#include <hdf5.h>

#include <cstdlib>
#include <cstring>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io {
namespace {

/// `length` bytes from `distance` before `to`; they may overlap. Writes up to 7 bytes too many.
void repeat(unsigned char* to, size_t distance, size_t length) {
  const unsigned char* from = to - distance;
  if (distance < 8) {
    for (size_t i = 0; i < length; ++i) to[i] = from[i];
    return;
  }
  for (size_t i = 0; i < length; i += 8) std::memcpy(to + i, from + i, 8);
}

/// A chunk as HDF5 hands it to a filter: `*buffer` is from malloc and changes hands. 0 is a failure, which leaves a
/// chunk that is to be written as it was: the filter is optional.
size_t filter(unsigned flags, size_t count, const unsigned values[], size_t bytes, size_t* capacity, void** buffer) {
  if (!(flags & H5Z_FLAG_REVERSE) || count < 3) return 0;
  const size_t whole = values[2];  // bytes of a chunk, to which a checksum may have been added
  constexpr size_t kSums = 16;
  auto* in = static_cast<char*>(std::malloc(bytes + kLzfSlack));
  auto* out = static_cast<char*>(std::malloc(whole + kSums + kLzfSlack));
  size_t got = 0;
  if (in && out) {
    std::memcpy(in, *buffer, bytes);
    got = lzf_decode(in, bytes, out, whole + kSums);
  }
  std::free(in);
  if (got < whole || got == 0) {  // HDF5 believes that it got a whole chunk
    std::free(out);
    return 0;
  }
  std::free(*buffer);
  *buffer = out;
  *capacity = whole + kSums;
  return got;
}

}  // namespace

// A stream of runs. A first byte below 32 is followed by that many bytes and one more, as they are; any other holds
// in its upper 3 bits the length less 2 of a repetition (7: the next byte adds to it), in its lower 5, and the byte
// that follows, how far before is what is repeated, less 1.
size_t lzf_decode(const char* in, size_t bytes, char* out, size_t capacity) {
  const auto* from = reinterpret_cast<const unsigned char*>(in);
  const unsigned char* const from_end = from + bytes;
  auto* to = reinterpret_cast<unsigned char*>(out);
  unsigned char* const begin = to;
  const auto left = [&] { return capacity - static_cast<size_t>(to - begin); };
  while (from < from_end) {
    const size_t first = *from++;
    if (first < 32) {
      const size_t length = first + 1;
      if (length > static_cast<size_t>(from_end - from) || length > left()) return 0;
      std::memcpy(to, from, 32);
      from += length;
      to += length;
      continue;
    }
    size_t length = (first >> 5) + 2;
    if (length == 9 && from < from_end) length += *from++;
    if (from == from_end) return 0;
    const size_t distance = ((first & 31) << 8 | *from++) + 1;
    if (distance > static_cast<size_t>(to - begin) || length > left()) return 0;
    repeat(to, distance, length);
    to += length;
  }
  return static_cast<size_t>(to - begin);
}

void register_lzf() {
  static const bool done = [] {
    const h5::Scope scope;
    static const H5Z_class2_t record = {H5Z_CLASS_T_VERS, kLzfFilter, 1, 1, "lzf", nullptr, nullptr, filter};
    return H5Zfilter_avail(kLzfFilter) > 0 || H5Zregister(&record) >= 0;
  }();
  static_cast<void>(done);
}

}  // namespace moonhalo::io
