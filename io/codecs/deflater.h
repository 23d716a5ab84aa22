// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

struct libdeflate_compressor;

namespace moonhalo::io {

/// Makes zlib streams, for one thread.
///
///     low bytes of the floats of a chunk, after the shuffle  | high bytes
///     noise, in which no search finds anything: stored       | libdeflate
///
/// Measured floats are noise in half of their bytes, which took half of the time.
class Deflater {
 public:
  /// 1 (fast) to 9 (small), 0 for none.
  explicit Deflater(int level);
  int level() const { return level_; }
  /// Writes the stream of `bytes` bytes into `out` and returns its size; 0 where that is more than `capacity`.
  size_t deflate(const char* in, size_t bytes, char* out, size_t capacity);

 private:
  struct Closer {
    void operator()(libdeflate_compressor* compressor) const;
  };
  int level_;
  std::unique_ptr<libdeflate_compressor, Closer> compressor_;
};

}  // namespace moonhalo::io
