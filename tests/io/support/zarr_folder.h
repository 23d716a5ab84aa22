// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <blosc.h>
#include <libdeflate.h>
#include <zstd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace moonhalo::testing {

/// CRC-32C bit by bit.
inline std::string with_crc32c(const std::string& bytes) {
  uint32_t sum = ~0u;
  for (const char c : bytes) {
    sum ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
  }
  sum = ~sum;
  return bytes + std::string(reinterpret_cast<const char*>(&sum), 4);
}

inline std::string with_zstd(const std::string& bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), bytes.data(), bytes.size()));
  ZSTD_freeCCtx(context);
  return out;
}

inline std::string with_gzip(const std::string& bytes) {
  libdeflate_compressor* compressor = libdeflate_alloc_compressor(6);
  std::string out(libdeflate_gzip_compress_bound(compressor, bytes.size()), '\0');
  out.resize(libdeflate_gzip_compress(compressor, bytes.data(), bytes.size(), out.data(), out.size()));
  libdeflate_free_compressor(compressor);
  return out;
}

inline std::string with_blosc(const std::string& bytes) {
  std::string out(bytes.size() + BLOSC_MAX_OVERHEAD, '\0');
  const int size =
      blosc_compress_ctx(5, BLOSC_SHUFFLE, 4, bytes.size(), bytes.data(), out.data(), out.size(), "lz4", 0, 1);
  out.resize(static_cast<size_t>(size));
  return out;
}

inline std::string plain_bytes(const std::string& bytes) { return bytes; }

using Encode = std::function<std::string(const std::string&)>;

/// The bytes of one chunk of a 2-D tensor, filled up with zeros beyond its ends.
inline std::string chunk_bytes(const at::Tensor& full, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  at::Tensor chunk = at::zeros({rows, columns}, full.options());
  const int64_t bottom = std::min(full.size(0), (row + 1) * rows),
                right = std::min(full.size(1), (column + 1) * columns);
  const at::Tensor part = full.slice(0, row * rows, bottom).slice(1, column * columns, right);
  chunk.slice(0, 0, part.size(0)).slice(1, 0, part.size(1)).copy_(part);
  return {static_cast<const char*>(chunk.const_data_ptr()), chunk.nbytes()};
}

/// Files of a Zarr folder by their names, put together by hand.
class ZarrFolder {
 public:
  std::map<std::string, std::string> files;

  /// A 2-D float32 array of version 2. `compressor`: its JSON.
  void add2(const std::string& name, const at::Tensor& full, int64_t rows, int64_t columns,
            const std::string& compressor, const Encode& encode) {
    files[name + "/.zarray"] =
        R"({"zarr_format": 2, "dtype": "<f4", "fill_value": "NaN", "order": "C", "filters": null, "shape": )" +
        pair(full.size(0), full.size(1)) + R"(, "chunks": )" + pair(rows, columns) + R"(, "compressor": )" +
        compressor + "}";
    files[name + "/.zattrs"] = R"({"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"})";
    each(full, rows, columns, [&](int64_t y, int64_t x) {
      files[name + "/" + std::to_string(y) + "." + std::to_string(x)] = encode(chunk_bytes(full, y, x, rows, columns));
    });
  }

  /// Adds one of version 3. `codecs`: JSON of those behind "bytes", with a comma in front.
  void add3(const std::string& name, const at::Tensor& full, int64_t rows, int64_t columns, const std::string& codecs,
            const Encode& encode) {
    files[name + "/zarr.json"] =
        head3(full, rows, columns, R"([{"name": "bytes", "configuration": {"endian": "little"}})" + codecs + "]");
    each(full, rows, columns, [&](int64_t y, int64_t x) {
      files[name + "/c/" + std::to_string(y) + "/" + std::to_string(x)] =
          encode(chunk_bytes(full, y, x, rows, columns));
    });
  }

  /// Shards of 2 by 2 such chunks, whose index has a checksum.
  void add_shards(const std::string& name, const at::Tensor& full, int64_t rows, int64_t columns,
                  const std::string& codecs, const Encode& encode) {
    const std::string bytes = R"({"name": "bytes", "configuration": {"endian": "little"}})";
    files[name + "/zarr.json"] = head3(full, 2 * rows, 2 * columns,
                                       R"([{"name": "sharding_indexed", "configuration": {"chunk_shape": )" +
                                           pair(rows, columns) + R"(, "codecs": [)" + bytes + codecs +
                                           R"(], "index_codecs": [)" + bytes + R"(, {"name": "crc32c"}]}}])");
    each(full, 2 * rows, 2 * columns, [&](int64_t y, int64_t x) {
      std::string shard, index;
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t row = 2 * y + i / 2, column = 2 * x + i % 2;
        const bool inside = row * rows < full.size(0) && column * columns < full.size(1);
        const std::string chunk = inside ? encode(chunk_bytes(full, row, column, rows, columns)) : "";
        const uint64_t place[2] = {inside ? shard.size() : ~uint64_t{0}, inside ? chunk.size() : ~uint64_t{0}};
        index.append(reinterpret_cast<const char*>(place), 16);
        shard += chunk;
      }
      files[name + "/c/" + std::to_string(y) + "/" + std::to_string(x)] = shard + with_crc32c(index);
    });
  }

  void write(const std::string& folder) const {
    for (const auto& [name, bytes] : files) {
      std::filesystem::create_directories(std::filesystem::path(folder + "/" + name).parent_path());
      std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
    }
  }

 private:
  static std::string pair(int64_t a, int64_t b) { return "[" + std::to_string(a) + ", " + std::to_string(b) + "]"; }
  static std::string head3(const at::Tensor& full, int64_t rows, int64_t columns, const std::string& codecs) {
    return R"({"zarr_format": 3, "node_type": "array", "data_type": "float32", "fill_value": "NaN", "shape": )" +
           pair(full.size(0), full.size(1)) +
           R"(, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": )" + pair(rows, columns) +
           R"(}}, "chunk_key_encoding": {"name": "default"}, "codecs": )" + codecs +
           R"(, "dimension_names": ["y", null], "attributes": {"units": "K"}})";
  }
  template <typename Fn>
  static void each(const at::Tensor& full, int64_t rows, int64_t columns, const Fn& fn) {
    for (int64_t y = 0; y * rows < full.size(0); ++y) {
      for (int64_t x = 0; x * columns < full.size(1); ++x) fn(y, x);
    }
  }
};

inline const char* const kBlosc2 = R"({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0})";
inline const char* const kZstd3 = R"(, {"name": "zstd", "configuration": {"level": 3, "checksum": true}})";
inline const char* const kGzip3 = R"(, {"name": "gzip", "configuration": {"level": 6}})";
inline const char* const kCrc3 = R"(, {"name": "crc32c"})";
inline const char* const kGroup3 = R"({"zarr_format": 3, "node_type": "group", "attributes": {"title": "by hand"}})";

}  // namespace moonhalo::testing
