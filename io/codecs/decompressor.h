// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "moonhalo/io/codecs/codecs.h"

struct libdeflate_decompressor;
struct ZSTD_DCtx_s;

namespace moonhalo::io {

/// Undoes codecs that compress. Holds what the libraries need for one thread.
class Decompressor {
 public:
  /// Makes exactly `bytes` bytes in `out` of `size` stored ones; `out` has kLzfSlack more. "", or what is damaged.
  std::string expand(Codec::Kind kind, const char* stored, size_t size, char* out, size_t bytes);

 private:
  struct Closer {
    void operator()(libdeflate_decompressor* decompressor) const;
    void operator()(ZSTD_DCtx_s* context) const;
  };
  libdeflate_decompressor* inflater();
  std::string expand_gzip(const char* stored, size_t size, char* out, size_t bytes);
  std::string expand_zstd(const char* stored, size_t size, char* out, size_t bytes);

  std::unique_ptr<libdeflate_decompressor, Closer> inflater_;
  std::unique_ptr<ZSTD_DCtx_s, Closer> zstd_;
};

}  // namespace moonhalo::io
