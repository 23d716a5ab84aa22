// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace moonhalo {

#ifdef __SSE2__

namespace {

constexpr size_t kLine = 64, kPage = 4096, kPages = 4;

void stream_line(char* to, const char* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* line = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2),
                d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(line, a);
  _mm_stream_si128(line + 1, b);
  _mm_stream_si128(line + 2, c);
  _mm_stream_si128(line + 3, d);
}

}  // namespace

void stream_copy(char* to, const char* from, size_t bytes) {
  constexpr size_t kShort = 4 * kLine, kTogether = kPages * kPage;
  if (bytes < kShort) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  // Pages in turns: processors fetch ahead within each, and memory is read in several places at once.
  for (; bytes >= kTogether; to += kTogether, from += kTogether, bytes -= kTogether) {
    for (size_t at = 0; at < kPage; at += kLine) {
      for (size_t page = 0; page < kPages; ++page) stream_line(to + page * kPage + at, from + page * kPage + at);
    }
  }
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) stream_line(to, from);
  std::memcpy(to, from, bytes);
}

void finish_stream() { _mm_sfence(); }

#else

void stream_copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

void finish_stream() {}

#endif

}  // namespace moonhalo
