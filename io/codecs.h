// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct libdeflate_decompressor;

namespace moonhalo::io {

/// One filter that a chunk went through when it was written.
struct Codec {
  enum class Kind : uint8_t { kDeflate, kShuffle, kFletcher32, kLzf };
  Kind kind;
  size_t element_size = 1;  ///< kShuffle: bytes of what was taken apart
};

/// At most one codec compresses, so that the size of the bytes is known on both sides of every codec.
bool decodable(const std::vector<Codec>& codecs);

/// Undoes the codecs of one chunk after the other. Holds the buffers and the decompressor of one thread.
class ChunkDecoder {
 public:
  /// Room for the stored bytes of the next chunk.
  char* stored(size_t bytes);

  /// Undoes `codecs`, given in the order of writing, on what lies in stored(); a codec whose bit is in `skipped` was
  /// not applied. "" when that left exactly `bytes` bytes, in data(); else what is damaged.
  std::string decode(const std::vector<Codec>& codecs, uint32_t skipped, size_t bytes);
  char* data() { return data_.bytes.get(); }

 private:
  struct Buffer {
    std::unique_ptr<char[]> bytes;
    size_t size = 0, room = 0;
    char* resize(size_t wanted);
  };
  struct Closer {
    void operator()(libdeflate_decompressor* decompressor) const;
  };
  std::string inflate(size_t bytes);
  std::string expand_lzf(size_t bytes);
  std::string check_sum();
  void unshuffle(size_t element_size);

  Buffer data_, other_;  // decoded so far, and where the next codec puts its bytes
  std::unique_ptr<libdeflate_decompressor, Closer> inflater_;
};

/// Reverses the bytes of `count` numbers of 1, 2, 4 or 8 bytes.
void swap_bytes(char* data, size_t number_size, size_t count);

}  // namespace moonhalo::io
