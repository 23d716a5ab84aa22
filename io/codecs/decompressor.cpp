// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/decompressor.h"

#include <blosc.h>
#include <libdeflate.h>
#include <lz4.h>
#include <zstd.h>

#include <climits>
#include <cstring>

#include "moonhalo/io/codecs/lzf.h"

namespace moonhalo::io {
namespace {

std::string sizes(size_t stored, const char* verb, const std::string& got, size_t required) {
  return "its " + std::to_string(stored) + " stored bytes " + verb + " " + got + ", not " + std::to_string(required);
}

std::string no_stream(size_t size, const std::string& of) {
  return "its " + std::to_string(size) + " stored bytes are not a whole " + of + " stream";
}

std::string inflate_problem(libdeflate_result result, size_t size, size_t got, size_t bytes) {
  if (result == LIBDEFLATE_INSUFFICIENT_SPACE) return sizes(size, "inflate to", "more", bytes);
  if (result != LIBDEFLATE_SUCCESS) return no_stream(size, "gzip");
  return got == bytes ? "" : sizes(size, "inflate to", std::to_string(got), bytes);
}

std::string expand_blosc(const char* stored, size_t size, char* out, size_t bytes) {
  size_t held = 0;
  if (blosc_cbuffer_validate(stored, size, &held) != 0) return no_stream(size, "blosc");
  if (held != bytes) return sizes(size, "hold", std::to_string(held), bytes);
  const int got = blosc_decompress_ctx(stored, out, bytes, 1);
  if (got >= 0 && static_cast<size_t>(got) == bytes) return "";
  const char* compressor = blosc_cbuffer_complib(stored);
  return no_stream(size, std::string("blosc (") + (compressor ? compressor : "of an unknown compressor") + ")");
}

/// The size comes first, in four bytes. The library takes sizes as int, and makes no larger blocks.
std::string expand_lz4(const char* stored, size_t size, char* out, size_t bytes) {
  uint32_t held = 0;
  if (size < sizeof(held)) return no_stream(size, "lz4");
  std::memcpy(&held, stored, sizeof(held));
  if (held != bytes) return sizes(size, "hold", std::to_string(held), bytes);
  if (size > INT_MAX || bytes > INT_MAX)
    return "its " + std::to_string(bytes) + " bytes are more than a block of lz4 can have";
  const int got =
      LZ4_decompress_safe(stored + sizeof(held), out, static_cast<int>(size - sizeof(held)), static_cast<int>(bytes));
  return got >= 0 && static_cast<size_t>(got) == bytes ? "" : no_stream(size, "lz4");
}

}  // namespace

void Decompressor::Closer::operator()(libdeflate_decompressor* decompressor) const {
  libdeflate_free_decompressor(decompressor);
}

void Decompressor::Closer::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

libdeflate_decompressor* Decompressor::inflater() {
  if (!inflater_) inflater_.reset(libdeflate_alloc_decompressor());
  return inflater_.get();
}

std::string Decompressor::expand(Codec::Kind kind, const char* stored, size_t size, char* out, size_t bytes) {
  switch (kind) {
    case Codec::Kind::kDeflate: {
      size_t got = 0;
      const auto result = libdeflate_zlib_decompress(inflater(), stored, size, out, bytes, &got);
      return inflate_problem(result, size, got, bytes);
    }
    case Codec::Kind::kGzip:
      return expand_gzip(stored, size, out, bytes);
    case Codec::Kind::kZstd:
      return expand_zstd(stored, size, out, bytes);
    case Codec::Kind::kBlosc:
      return expand_blosc(stored, size, out, bytes);
    case Codec::Kind::kLz4:
      return expand_lz4(stored, size, out, bytes);
    default:
      break;
  }
  if (lzf_decode(stored, size, out, bytes) == bytes) return "";
  return "its " + std::to_string(size) + " stored bytes are not an lzf stream of " + std::to_string(bytes);
}

/// Some writers put several streams one after the other.
std::string Decompressor::expand_gzip(const char* stored, size_t size, char* out, size_t bytes) {
  size_t used = 0, done = 0;
  do {
    size_t in = 0, got = 0;
    const auto result =
        libdeflate_gzip_decompress_ex(inflater(), stored + used, size - used, out + done, bytes - done, &in, &got);
    if (result != LIBDEFLATE_SUCCESS) return inflate_problem(result, size, 0, bytes);
    used += in;
    done += got;
  } while (used < size);
  return inflate_problem(LIBDEFLATE_SUCCESS, size, done, bytes);
}

std::string Decompressor::expand_zstd(const char* stored, size_t size, char* out, size_t bytes) {
  if (!zstd_) zstd_.reset(ZSTD_createDCtx());
  const size_t got = ZSTD_decompressDCtx(zstd_.get(), out, bytes, stored, size);
  if (ZSTD_isError(got))
    return no_stream(size, "zstd") + " of " + std::to_string(bytes) + ": " + ZSTD_getErrorName(got);
  return got == bytes ? "" : sizes(size, "hold", std::to_string(got), bytes);
}

}  // namespace moonhalo::io
