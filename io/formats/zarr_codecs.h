// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/zarr_chunks.h"
#include "moonhalo/io/formats/zarr_types.h"

namespace moonhalo::io {

/// A codec, or another part of the metadata, that this version does not know. Says what, have and fix.
struct UnknownZarr : std::runtime_error {
  explicit UnknownZarr(const std::string& what, const std::string& have, const std::string& fix)
      : std::runtime_error(what + "\n  have  " + have + "\n  fix   " + fix) {}
};

/// Says what the codecs of an array do to its chunks.
struct ZarrCodecs {
  std::vector<Codec> codecs;
  std::vector<std::string> names;  ///< for people: "blosc lz4 5", "zstd 3", ...
  std::vector<size_t> order;       ///< as ArrayMap
  bool swapped = false;
  std::optional<ZarrChunks::Shards> shards;
  std::vector<int64_t> inner;  ///< shape of a chunk of a shard
};

/// `filters` and `compressor` of version 2; null where there are none.
ZarrCodecs zarr2_codecs(const Json& filters, const Json& compressor);
/// `codecs` of version 3, of chunks (or shards) of that shape.
ZarrCodecs zarr3_codecs(const Json& codecs, const ZarrType& type, const std::vector<int64_t>& chunk);

}  // namespace moonhalo::io
