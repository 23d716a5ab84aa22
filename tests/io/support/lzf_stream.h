// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstring>
#include <string>

namespace moonhalo::testing {

/// A plain lzf compressor, to have streams to read: the last place of every three bytes is looked for.
inline std::string lzf_stream(const std::string& bytes) {
  std::string stream, literals;
  const auto flush = [&] {
    for (size_t i = 0; i < literals.size(); i += 32) {
      const std::string run = literals.substr(i, 32);
      stream += static_cast<char>(run.size() - 1) + run;
    }
    literals.clear();
  };
  std::array<size_t, 1 << 14> seen{};  // place + 1
  for (size_t i = 0; i < bytes.size();) {
    size_t length = 0, distance = 0;
    if (i + 3 <= bytes.size()) {
      uint32_t word = 0;
      std::memcpy(&word, bytes.data() + i, 3);
      size_t& place = seen[(word * 2654435761u) >> 18];
      const size_t from = place;
      place = i + 1;
      distance = i + 1 - from;  // of the place itself
      if (from > 0 && distance <= 8192) {
        while (length < 264 && i + length < bytes.size() && bytes[i + length] == bytes[i + length - distance]) ++length;
      }
    }
    if (length < 3) {
      literals += bytes[i++];
      continue;
    }
    flush();
    const size_t coded = length - 2, back = distance - 1;
    stream += static_cast<char>((coded < 7 ? coded : 7) << 5 | back >> 8);
    if (coded >= 7) stream += static_cast<char>(coded - 7);
    stream += static_cast<char>(back & 255);
    i += length;
  }
  flush();
  return stream;
}

}  // namespace moonhalo::testing
