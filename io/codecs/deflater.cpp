// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/deflater.h"

#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>

namespace moonhalo::io {
namespace {

constexpr size_t kNoisePiece = 16384;
constexpr size_t kWindow = 32768;       // how far back a stream may repeat
constexpr size_t kStoredBytes = 65535;  // the most that a stored block holds
constexpr size_t kStreamHead = 2, kBlockHead = 5, kStreamEnd = 4;

/// True if every byte is about as often as the others: their squared shares add up to hardly more than 1/256. That is
/// less than a hundredth of a byte that a code for them could save, and noise of this length is at half of the bound.
bool bytes_are_even(const unsigned char* piece) {
  std::array<std::array<uint32_t, 256>, 4> counts{};  // four, as a count waits for the one before
  for (size_t i = 0; i < kNoisePiece; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) ++counts[lane][piece[i + lane]];
  }
  uint64_t squares = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    const uint64_t count = counts[0][byte] + counts[1][byte] + counts[2][byte] + counts[3][byte];
    squares += count * count;
  }
  constexpr uint64_t kEven = kNoisePiece * kNoisePiece / 256;
  return squares <= kEven + kEven / 32;
}

/// Four bytes in a row that came before. It keeps every fourth place, and looks in the first quarter of a piece: what
/// repeats is found there too.
class Repeats {
 public:
  bool found(const unsigned char* piece) {
    size_t found = 0;
    for (size_t i = 0; i < kNoisePiece / 4; ++i) {
      const uint32_t word = word_at(piece + i);
      uint32_t& known = known_[place(word)];
      found += known == word;
      if (i % 4 == 0) known = word;
    }
    for (size_t i = kNoisePiece / 4; i < kNoisePiece; i += 4) {
      const uint32_t word = word_at(piece + i);
      known_[place(word)] = word;
    }
    return found > kNoisePiece / 512;
  }

 private:
  static constexpr int kBits = 14;
  static uint32_t word_at(const unsigned char* bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof(word));
    return word;
  }
  static size_t place(uint32_t word) { return word * 2654435761U >> (32 - kBits); }

  std::array<uint32_t, size_t{1} << kBits> known_{};
};

/// Returns how many of the first bytes are noise that deflate makes no smaller. What comes before bytes that repeat is
/// not among them, as those may repeat it.
size_t noise_in_front(const unsigned char* in, size_t bytes) {
  size_t noise = 0;
  if (bytes <= kWindow) return 0;
  Repeats repeats;
  while (noise + kNoisePiece + 3 <= bytes && bytes_are_even(in + noise) && !repeats.found(in + noise))
    noise += kNoisePiece;
  return noise > kWindow ? noise - kWindow : 0;
}

/// Blocks of a stream that are not its last.
char* store_blocks(const char* in, size_t bytes, char* out) {
  for (size_t size = 0; bytes > 0; in += size, bytes -= size) {
    size = std::min(bytes, kStoredBytes);
    *out++ = 0;
    for (const size_t length : {size, ~size}) {
      *out++ = static_cast<char>(length);
      *out++ = static_cast<char>(length >> 8);
    }
    std::memcpy(out, in, size);
    out += size;
  }
  return out;
}

}  // namespace

void Deflater::Closer::operator()(libdeflate_compressor* compressor) const { libdeflate_free_compressor(compressor); }

Deflater::Deflater(int level) : level_(level), compressor_(libdeflate_alloc_compressor(level)) {
  if (!compressor_) throw std::bad_alloc();
}

size_t Deflater::deflate(const char* in, size_t bytes, char* out, size_t capacity) {
  const size_t noise = level_ > 0 ? noise_in_front(reinterpret_cast<const unsigned char*>(in), bytes) : 0;
  if (noise == 0) return libdeflate_zlib_compress(compressor_.get(), in, bytes, out, capacity);
  const size_t blocks = (noise + kStoredBytes - 1) / kStoredBytes;
  if (capacity < kStreamHead + blocks * kBlockHead + noise + kStreamEnd) return 0;
  out[0] = 0x78;  // deflate with its largest window
  out[1] = 0x01;
  char* next = store_blocks(in, noise, out + kStreamHead);
  const size_t left = capacity - static_cast<size_t>(next - out) - kStreamEnd;
  const size_t rest = libdeflate_deflate_compress(compressor_.get(), in + noise, bytes - noise, next, left);
  if (rest == 0) return 0;
  next += rest;
  const uint32_t sum = libdeflate_adler32(1, in, bytes);
  for (int shift = 24; shift >= 0; shift -= 8) *next++ = static_cast<char>(sum >> shift);
  return static_cast<size_t>(next - out);
}

}  // namespace moonhalo::io
