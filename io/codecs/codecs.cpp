// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/codecs.h"

#include <c10/util/Exception.h>
#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "moonhalo/io/codecs/crc32.h"
#include "moonhalo/io/codecs/crc32c.h"
#include "moonhalo/io/codecs/decompressor.h"
#include "moonhalo/io/codecs/deflater.h"
#include "moonhalo/io/codecs/lzf.h"
#include "moonhalo/io/codecs/number_codecs.h"

namespace moonhalo::io {
namespace {

constexpr size_t kSumBytes = 4;

bool adds_sum(const Codec& codec) {
  using Kind = Codec::Kind;
  return codec.kind == Kind::kFletcher32 || codec.kind == Kind::kCrc32c || codec.kind == Kind::kCrc32 ||
         codec.kind == Kind::kAdler32;
}

bool changes_numbers(const Codec& codec) {
  return codec.kind == Codec::Kind::kDelta || codec.kind == Codec::Kind::kScaled;
}

bool compresses(const Codec& codec) {
  return !adds_sum(codec) && !changes_numbers(codec) && codec.kind != Codec::Kind::kShuffle;
}

/// The size of what a codec that does not compress makes of `bytes`.
size_t size_after(const Codec& codec, size_t bytes) {
  if (changes_numbers(codec)) return bytes / given_bytes(codec) * made_bytes(codec);
  return bytes + (adds_sum(codec) ? kSumBytes : 0);
}

bool is_of_hdf5(const Codec& codec) {
  return codec.kind == Codec::Kind::kDeflate || codec.kind == Codec::Kind::kShuffle ||
         codec.kind == Codec::Kind::kFletcher32;
}

/// Fletcher's sum of big-endian 16-bit words, as HDF5 keeps it.
uint32_t fletcher32(const char* data, size_t bytes) {
  const auto* in = reinterpret_cast<const unsigned char*>(data);
  uint32_t low = 0, high = 0;
  const auto fold = [](uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  for (size_t words = bytes / 2; words > 0;) {
    const size_t block = std::min<size_t>(words, 360);  // the most that does not overflow
    for (size_t i = 0; i < block; ++i, in += 2) {
      low += static_cast<uint32_t>(in[0] << 8 | in[1]);
      high += low;
    }
    words -= block;
    low = fold(low);
    high = fold(high);
  }
  if (bytes % 2) {
    low += static_cast<uint32_t>(*in << 8);
    high += low;
    low = fold(low);
    high = fold(high);
  }
  return fold(high) << 16 | fold(low);
}

/// Shuffled bytes: the first of all elements, then the second of all, ...
template <bool kPart>
void copy_byte(const char* in, char* out, size_t element, size_t byte, size_t size, size_t count) {
  const size_t joined = element * size + byte, parted = byte * count + element;
  out[kPart ? parted : joined] = in[kPart ? joined : parted];
}

using Lanes [[gnu::vector_size(16)]] = unsigned char;  // a register, on any machine
template <size_t kSize>
using Block = std::array<Lanes, kSize>;  // as many elements of kSize bytes as there are lanes

/// a0 b0 a1 b1 ..., of the first half of both or of the second.
template <int kFrom>
Lanes interleaved(Lanes a, Lanes b) {
  constexpr int k = kFrom;
  return __builtin_shufflevector(a, b, k, k + 16, k + 1, k + 17, k + 2, k + 18, k + 3, k + 19, k + 4, k + 20, k + 5,
                                 k + 21, k + 6, k + 22, k + 7, k + 23);
}

/// The bytes of both at even places, or at odd ones.
template <int kFrom>
Lanes every_second(Lanes a, Lanes b) {
  constexpr int k = kFrom;
  return __builtin_shufflevector(a, b, k, k + 2, k + 4, k + 6, k + 8, k + 10, k + 12, k + 14, k + 16, k + 18, k + 20,
                                 k + 22, k + 24, k + 26, k + 28, k + 30);
}

/// Streams of bytes, one after the other in a block, become elements: each is interleaved with the one half of all
/// streams on, again and again.
///
///     x y z w    xzxz.. ywyw..    xyzwxyzw..
template <size_t kSize>
[[gnu::always_inline]] inline void join(Block<kSize>& block) {
#pragma GCC unroll 16
  for (size_t streams = kSize; streams > 1; streams /= 2) {
    Block<kSize> next;
#pragma GCC unroll 16
    for (size_t i = 0; i < kSize / 2; ++i) {
      next[2 * i] = interleaved<0>(block[i], block[i + kSize / 2]);
      next[2 * i + 1] = interleaved<8>(block[i], block[i + kSize / 2]);
    }
    block = next;
  }
}

/// The way back.
template <size_t kSize>
[[gnu::always_inline]] inline void part(Block<kSize>& block) {
#pragma GCC unroll 16
  for (size_t streams = 1; streams < kSize; streams *= 2) {
    Block<kSize> next;
#pragma GCC unroll 16
    for (size_t i = 0; i < kSize / 2; ++i) {
      next[i] = every_second<0>(block[2 * i], block[2 * i + 1]);
      next[i + kSize / 2] = every_second<1>(block[2 * i], block[2 * i + 1]);
    }
    block = next;
  }
}

// Compilers make nothing of the plain loop: it takes six times as long, a quarter of the time of reading gzip.
template <bool kPart, size_t kSize>
void regroup(const char* in, char* out, size_t count) {
  constexpr size_t kLanes = sizeof(Lanes);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Block<kSize> block;
    for (size_t k = 0; k < kSize; ++k)
      std::memcpy(&block[k], kPart ? in + i * kSize + k * kLanes : in + k * count + i, kLanes);
    kPart ? part<kSize>(block) : join<kSize>(block);
    for (size_t k = 0; k < kSize; ++k)
      std::memcpy(kPart ? out + k * count + i : out + i * kSize + k * kLanes, &block[k], kLanes);
  }
  for (; i < count; ++i) {
    for (size_t byte = 0; byte < kSize; ++byte) copy_byte<kPart>(in, out, i, byte, kSize, count);
  }
}

/// False where elements are the same taken apart and together.
bool regroups(size_t bytes, size_t element_size) { return element_size > 1 && bytes / element_size > 1; }

/// Takes elements apart, or puts them together again.
template <bool kPart>
void regroup(const ChunkBuffer& from, char* out, size_t element_size) {
  const size_t count = from.size / element_size;
  const char* in = from.bytes.get();
  switch (element_size) {
    case 2:
      regroup<kPart, 2>(in, out, count);
      break;
    case 4:
      regroup<kPart, 4>(in, out, count);
      break;
    case 8:
      regroup<kPart, 8>(in, out, count);
      break;
    case 16:
      regroup<kPart, 16>(in, out, count);
      break;
    default:
      for (size_t byte = 0; byte < element_size; ++byte) {
        for (size_t i = 0; i < count; ++i) copy_byte<kPart>(in, out, i, byte, element_size, count);
      }
  }
  const size_t whole = count * element_size;
  std::memcpy(out + whole, in + whole, from.size - whole);
}

template <typename Word>
void swap_words(char* data, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
    if constexpr (sizeof(Word) == 2) word = __builtin_bswap16(word);
    if constexpr (sizeof(Word) == 4) word = __builtin_bswap32(word);
    if constexpr (sizeof(Word) == 8) word = __builtin_bswap64(word);
    std::memcpy(data + i * sizeof(Word), &word, sizeof(Word));
  }
}

}  // namespace

bool decodable(const std::vector<Codec>& codecs) {
  return std::count_if(codecs.begin(), codecs.end(), compresses) <= 1;
}

bool encodable(const std::vector<Codec>& codecs) {
  return decodable(codecs) && std::all_of(codecs.begin(), codecs.end(), is_of_hdf5);
}

char* ChunkBuffer::resize(size_t required) {
  size = required;
  if (capacity < required || !bytes) {
    capacity = required;
    bytes.reset(new char[required + kLzfSlack]);  // not zeroed
  }
  return bytes.get();
}

ChunkDecoder::ChunkDecoder() : decompressor_(std::make_unique<Decompressor>()) {}
ChunkDecoder::~ChunkDecoder() = default;

char* ChunkDecoder::stored(size_t bytes) { return data_.resize(bytes); }

std::string ChunkDecoder::decode(const std::vector<Codec>& codecs, uint32_t skipped, size_t bytes, char* target) {
  const auto done = [&](size_t i) { return (skipped >> i & 1) == 0; };
  for (size_t i = codecs.size(); i-- > 0;) {
    if (!done(i)) continue;
    size_t before = bytes;  // the size that this codec was given, which is known before the one that compresses
    for (size_t j = 0; j < i; ++j) {
      if (done(j)) before = size_after(codecs[j], before);
    }
    bool first = true;
    for (size_t j = 0; j < i; ++j) first = first && !done(j);
    char* const out = first ? target : nullptr;  // what this codec leaves is the chunk
    std::string damage;
    if (adds_sum(codecs[i])) {
      damage = check_sum(codecs[i]);
    } else if (changes_numbers(codecs[i])) {
      damage = number_filter(codecs[i]);
    } else if (codecs[i].kind == Codec::Kind::kShuffle) {
      if (out && data_.size == bytes && regroups(bytes, codecs[i].element_size)) {
        regroup<false>(data_, out, codecs[i].element_size);
        return "";
      }
      unshuffle(codecs[i].element_size);
    } else {
      // These may write a little further.
      const bool exact = codecs[i].kind != Codec::Kind::kLzf && codecs[i].kind != Codec::Kind::kBlosc;
      damage = expand(codecs[i].kind, before, exact ? out : nullptr);
      if (damage.empty() && exact && out) return "";
    }
    if (!damage.empty()) return damage;
  }
  if (data_.size != bytes)
    return "its " + std::to_string(data_.size) + " stored bytes are all there is, not " + std::to_string(bytes);
  if (target) std::memcpy(target, data_.bytes.get(), bytes);
  return "";
}

std::string ChunkDecoder::expand(Codec::Kind kind, size_t bytes, char* target) {
  if (target) return decompressor_->expand(kind, data_.bytes.get(), data_.size, target, bytes);
  std::string damage = decompressor_->expand(kind, data_.bytes.get(), data_.size, other_.resize(bytes), bytes);
  if (damage.empty()) std::swap(data_, other_);
  return damage;
}

std::string ChunkDecoder::check_sum(const Codec& codec) {
  using Kind = Codec::Kind;
  if (data_.size < kSumBytes) return "its " + std::to_string(data_.size) + " stored bytes are too few for a checksum";
  data_.size -= kSumBytes;
  char* const bytes = data_.bytes.get();
  uint32_t kept = 0;
  for (size_t i = 0; i < kSumBytes; ++i)
    kept |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[(codec.in_front ? 0 : data_.size) + i])) << (8 * i);
  if (codec.in_front) std::memmove(bytes, bytes + kSumBytes, data_.size);
  const auto answer = [&](bool same, const char* name) {
    return same ? std::string() : std::string("its ") + name + " checksum does not match its bytes";
  };
  if (codec.kind == Kind::kCrc32c) return answer(kept == crc32c(bytes, data_.size), "CRC-32C");
  if (codec.kind == Kind::kCrc32) return answer(kept == crc32(bytes, data_.size), "CRC-32");
  if (codec.kind == Kind::kAdler32) return answer(kept == libdeflate_adler32(1, bytes, data_.size), "Adler-32");
  const uint32_t sum = fletcher32(bytes, data_.size);
  // HDF5 before 1.6.3 kept the bytes of each half the other way round.
  const uint32_t swapped = (sum & 0x00ff00ff) << 8 | (sum >> 8 & 0x00ff00ff);
  return answer(kept == sum || kept == swapped, "Fletcher32");
}

std::string ChunkDecoder::number_filter(const Codec& codec) {
  const size_t count = data_.size / made_bytes(codec);
  if (data_.size % made_bytes(codec) != 0) return "its " + std::to_string(data_.size) + " bytes are not integers";
  undo_numbers(codec, data_.bytes.get(), count, other_.resize(count * given_bytes(codec)));
  std::swap(data_, other_);
  return "";
}

void ChunkDecoder::unshuffle(size_t element_size) {
  if (!regroups(data_.size, element_size)) return;
  regroup<false>(data_, other_.resize(data_.size), element_size);
  std::swap(data_, other_);
}

ChunkEncoder::ChunkEncoder() = default;
ChunkEncoder::~ChunkEncoder() = default;

uint32_t ChunkEncoder::encode(const std::vector<Codec>& codecs) {
  uint32_t skipped = 0;
  for (size_t i = 0; i < codecs.size(); ++i) {
    switch (codecs[i].kind) {
      case Codec::Kind::kDeflate:
        if (!deflate(codecs[i].level)) skipped |= uint32_t{1} << i;
        break;
      case Codec::Kind::kFletcher32:
        add_sum();
        break;
      case Codec::Kind::kShuffle:
        shuffle(codecs[i].element_size);
        break;
      default:
        TORCH_INTERNAL_ASSERT(false, "not encodable");
    }
  }
  return skipped;
}

bool ChunkEncoder::deflate(int level) {
  if (!deflater_ || deflater_->level() != level) deflater_ = std::make_unique<Deflater>(level);
  const size_t got = deflater_->deflate(data_.bytes.get(), data_.size, other_.resize(data_.size), data_.size);
  if (got == 0) return false;
  other_.size = got;
  std::swap(data_, other_);
  return true;
}

void ChunkEncoder::add_sum() {
  const uint32_t sum = fletcher32(data_.bytes.get(), data_.size);
  char* out = other_.resize(data_.size + kSumBytes);
  std::memcpy(out, data_.bytes.get(), data_.size);
  for (size_t i = 0; i < kSumBytes; ++i) out[data_.size + i] = static_cast<char>(sum >> (8 * i));
  std::swap(data_, other_);
}

void ChunkEncoder::shuffle(size_t element_size) {
  if (!regroups(data_.size, element_size)) return;
  regroup<true>(data_, other_.resize(data_.size), element_size);
  std::swap(data_, other_);
}

void swap_bytes(char* data, size_t number_size, size_t count) {
  if (number_size == 2) swap_words<uint16_t>(data, count);
  if (number_size == 4) swap_words<uint32_t>(data, count);
  if (number_size == 8) swap_words<uint64_t>(data, count);
}

}  // namespace moonhalo::io
