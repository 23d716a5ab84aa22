// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/gzip.h"

#include <c10/util/Exception.h>
#include <libdeflate.h>

#include <memory>

namespace moonhalo::io {

std::string gzip(const std::string& bytes) {
  constexpr int kLevel = 6;
  struct Free {
    void operator()(libdeflate_compressor* compressor) const { libdeflate_free_compressor(compressor); }
  };
  const std::unique_ptr<libdeflate_compressor, Free> compressor(libdeflate_alloc_compressor(kLevel));
  TORCH_CHECK(compressor != nullptr, "gzip: no memory for the compressor");
  std::string out(libdeflate_gzip_compress_bound(compressor.get(), bytes.size()), '\0');
  out.resize(libdeflate_gzip_compress(compressor.get(), bytes.data(), bytes.size(), out.data(), out.size()));
  return out;
}

}  // namespace moonhalo::io
