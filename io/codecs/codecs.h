// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moonhalo::io {

class Decompressor;
class Deflater;

/// One filter that a chunk went through when it was written.
struct Codec {
  /// kDeflate: a zlib stream, kGzip: a gzip file, kLz4: a size and a block, kDelta: numbers less the one before,
  /// kScaled: round((number - offset) * scale).
  enum class Kind : uint8_t {
    kDeflate,
    kShuffle,
    kFletcher32,
    kLzf,
    kGzip,
    kZstd,
    kBlosc,
    kCrc32c,
    kCrc32,
    kAdler32,
    kLz4,
    kDelta,
    kScaled
  };
  Kind kind;
  size_t element_size = 1;  ///< kShuffle: bytes of what was taken apart; kScaled: of the floats that were scaled
  int level = 0;            ///< kDeflate: 1 (fast) to 9 (small), 0 for none
  bool in_front = false;    ///< checksums: they stand before the bytes
  at::ScalarType numbers = at::kByte;  ///< kDelta, kScaled: what they made
  double scale = 1, offset = 0;
};

/// At most one codec compresses, so that the size of the bytes is known on both sides of every codec.
bool decodable(const std::vector<Codec>& codecs);
/// Those that ChunkEncoder supports: those of HDF5 but lzf.
bool encodable(const std::vector<Codec>& codecs);

/// The bytes of a chunk on their way through codecs.
struct ChunkBuffer {
  std::unique_ptr<char[]> bytes;
  size_t size = 0, capacity = 0;
  char* resize(size_t required);
};

/// Undoes the codecs of one chunk after the other. Holds the buffers and the decompressor of one thread.
class ChunkDecoder {
 public:
  ChunkDecoder();
  ~ChunkDecoder();
  /// Memory for the stored bytes of the next chunk.
  char* stored(size_t bytes);

  /// Undoes `codecs`, given in the order of writing, on what is in stored(); a codec whose bit is in `skipped`
  /// was not applied. "" when that left exactly `bytes` bytes, in `target` or without one in data(); else what is
  /// damaged.
  std::string decode(const std::vector<Codec>& codecs, uint32_t skipped, size_t bytes, char* target = nullptr);
  char* data() { return data_.bytes.get(); }

 private:
  std::string expand(Codec::Kind kind, size_t bytes, char* target);
  std::string check_sum(const Codec& codec);
  std::string number_filter(const Codec& codec);
  void unshuffle(size_t element_size);

  ChunkBuffer data_, other_;  // decoded so far, and where the next codec puts its bytes
  std::unique_ptr<Decompressor> decompressor_;
};

/// Applies codecs to one chunk after the other. Holds the buffers and the compressor of one thread.
class ChunkEncoder {
 public:
  ChunkEncoder();
  ~ChunkEncoder();
  /// Memory for the bytes of the next chunk.
  char* chunk(size_t bytes) { return data_.resize(bytes); }

  /// Applies `codecs`, which are encodable, to what is in chunk(). Returns those that it skipped, by bit: gzip
  /// where that saves nothing.
  uint32_t encode(const std::vector<Codec>& codecs);
  std::string encoded() const { return {data_.bytes.get(), data_.size}; }

 private:
  bool deflate(int level);
  void add_sum();
  void shuffle(size_t element_size);

  ChunkBuffer data_, other_;
  std::unique_ptr<Deflater> deflater_;
};

/// Reverses the bytes of `count` numbers of 1, 2, 4 or 8 bytes.
void swap_bytes(char* data, size_t number_size, size_t count);

}  // namespace moonhalo::io
