// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/zarr_codecs.h"

#include <algorithm>

#include "moonhalo/io/codecs/number_codecs.h"

namespace moonhalo::io {
namespace {

const char* const kKnown =
    "blosc, zstd, lz4, gzip, zlib, shuffle, delta, fixedscaleoffset, bitround, quantize, crc32c, crc32, adler32, "
    "fletcher32, bytes, transpose and sharding_indexed are known";

[[noreturn]] void unknown(const std::string& codec) {
  throw UnknownZarr("compressed with \"" + codec + "\", a codec that is not known here", kKnown,
                    "write it again with one of these (zarr-python: compressors=zarr.codecs.ZstdCodec())");
}

std::string described(const std::string& name, const Json& settings) {
  std::string text = name;
  for (const char* key : {"cname", "level", "clevel"}) {
    if (!settings.is_object() || !settings.contains(key)) continue;
    const Json& value = settings[key];
    if (value.is_string()) text += " " + value.get<std::string>().substr(0, 20);
    if (value.is_number_integer()) text += " " + std::to_string(value.get<int64_t>());
  }
  return text;
}

Codec checksum(Codec::Kind kind, const Json& settings, const char* usual) {
  const std::string location = settings.contains("location") ? need_text(settings, "location") : usual;
  if (location != "start" && location != "end")
    throw BrokenZarr("a checksum that is at \"" + location.substr(0, 40) + "\"");
  return {.kind = kind, .in_front = location == "start"};
}

/// The types that a codec of numbers was given, and made.
struct NumberTypes {
  ZarrType given, made;
};

NumberTypes number_types(const std::string& codec, const Json& settings) {
  const auto type_of = [&](const Json& name) {
    const bool numpy = name.is_string() && !name.get_ref<const std::string&>().empty() &&
                       std::string("<>|").find(name.get_ref<const std::string&>()[0]) != std::string::npos;
    return numpy ? zarr2_type(name) : zarr3_type(name);
  };
  NumberTypes types{type_of(need(settings, "dtype")), {}};
  const Json made = settings.value("astype", Json());
  types.made = made.is_null() ? types.given : type_of(made);
  const bool known = types.given.dtype && types.made.dtype && !types.given.swapped && !types.made.swapped;
  if (!known)
    throw UnknownZarr("codec \"" + codec + "\" from " + types.given.name + " to " + types.made.name,
                      "numbers of this machine's byte order", "write it again without that codec");
  return types;
}

double number_of(const Json& settings, const char* key) {
  const Json& value = need(settings, key);
  if (!value.is_number()) throw BrokenZarr(std::string("codec \"fixedscaleoffset\" whose ") + key + " is not a number");
  return value.get<double>();
}

/// A codec that changes numbers, not how they are stored.
std::optional<Codec> codec_of_numbers(const std::string& name, const Json& settings) {
  if (name != "delta" && name != "fixedscaleoffset") return std::nullopt;
  const NumberTypes types = number_types(name, settings);
  Codec codec{.kind = name == "delta" ? Codec::Kind::kDelta : Codec::Kind::kScaled, .numbers = *types.made.dtype};
  bool known = true;
  if (codec.kind == Codec::Kind::kScaled) {
    codec.element_size = types.given.bytes;
    codec.scale = number_of(settings, "scale");
    codec.offset = number_of(settings, "offset");
    known = at::isFloatingType(*types.given.dtype);
  } else {
    known = types.given.dtype == types.made.dtype;
  }
  if (!known || !numbers_known(codec))
    throw UnknownZarr("codec \"" + name + "\" from " + types.given.name + " to " + types.made.name, kKnown,
                      "write it again without that codec");
  return codec;
}

/// Codecs that only round: what is stored is what is read.
bool rounds(const std::string& name, const Json& settings) {
  if (name == "bitround") return true;
  if (name != "quantize") return false;
  const NumberTypes types = number_types(name, settings);
  if (types.given.dtype != types.made.dtype)
    throw UnknownZarr("codec \"quantize\" from " + types.given.name + " to " + types.made.name, kKnown,
                      "write it again without that codec");
  return true;
}

/// A codec of bytes, which both versions have, or nothing.
std::optional<Codec> codec_of_bytes(const std::string& name, const Json& settings) {
  using Kind = Codec::Kind;
  if (name == "zlib") return Codec{.kind = Kind::kDeflate};
  if (name == "gzip") return Codec{.kind = Kind::kGzip};
  if (name == "zstd") return Codec{.kind = Kind::kZstd};
  if (name == "blosc") return Codec{.kind = Kind::kBlosc};
  if (name == "lz4") return Codec{.kind = Kind::kLz4};
  if (name == "crc32c") return checksum(Kind::kCrc32c, settings, "end");
  if (name == "crc32") return checksum(Kind::kCrc32, settings, "start");
  if (name == "adler32") return checksum(Kind::kAdler32, settings, "start");
  if (name == "fletcher32") return Codec{.kind = Kind::kFletcher32};
  if (name != "shuffle") return std::nullopt;
  const Json size = settings.value("elementsize", Json(4));
  if (!size.is_number_unsigned() || size.get<uint64_t>() < 1 || size.get<uint64_t>() > 4096)
    throw BrokenZarr("codec \"shuffle\" of elements of " +
                     size.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40) + " bytes");
  return Codec{.kind = Kind::kShuffle, .element_size = size.get<size_t>()};
}

/// The codecs that may stand at a place: version 3 has those of numbers before the codec "bytes".
enum class Stage : uint8_t { kAny, kNumbers, kBytes };

void add(ZarrCodecs& all, const std::string& name, const Json& settings, Stage stage) {
  std::optional<Codec> codec;
  bool known = false;
  if (stage != Stage::kBytes) {
    known = rounds(name, settings);
    if (!known) codec = codec_of_numbers(name, settings);
  }
  if (!known && !codec && stage != Stage::kNumbers) codec = codec_of_bytes(name, settings);
  if (!known && !codec) unknown(name);
  all.names.push_back(described(name, settings));
  if (!codec) return;
  all.codecs.push_back(*codec);
  if (!decodable(all.codecs))
    throw UnknownZarr("compressed twice", "codecs " + all.names.front() + " to " + all.names.back(),
                      "write it again with one of them");
}

const Json& settings_of(const Json& codec) {
  static const Json none = Json::object();
  const auto found = codec.is_object() ? codec.find("configuration") : codec.end();
  if (!codec.is_object() || found == codec.end()) return none;
  if (!found->is_object()) throw BrokenZarr("a codec whose configuration is not an object");
  return *found;
}

std::string codec_name(const Json& codec) {
  if (codec.is_string()) return codec.get<std::string>();
  const std::string name = need_text(codec, "name");
  const std::string others = "numcodecs.";
  return name.starts_with(others) ? name.substr(others.size()) : name;
}

bool is_big_endian(const Json& settings, size_t number_bytes) {
  if (!settings.contains("endian")) {
    if (number_bytes > 1) throw BrokenZarr("codec \"bytes\" without the order of bytes");
    return false;
  }
  const std::string order = need_text(settings, "endian");
  if (order != "big" && order != "little")
    throw BrokenZarr("codec \"bytes\" of the order \"" + order.substr(0, 40) + "\"");
  return order == "big" && number_bytes > 1;
}

void transpose(ZarrCodecs& all, const Json& settings, size_t ndim) {
  const Json& order = need(settings, "order");
  std::vector<size_t> places;
  for (size_t i = 0; order.is_array() && i < order.size(); ++i) {
    if (order[i].is_number_unsigned() && order[i].get<uint64_t>() < ndim) places.push_back(order[i].get<size_t>());
  }
  std::vector<size_t> sorted = places, all_dims(ndim);
  std::sort(sorted.begin(), sorted.end());
  for (size_t dim = 0; dim < ndim; ++dim) all_dims[dim] = dim;
  if (sorted != all_dims) throw BrokenZarr("codec \"transpose\" whose order is none of the dims");
  const std::vector<size_t> before = all.order.empty() ? all_dims : all.order;
  all.order = places;
  for (size_t& place : all.order) place = before[place];
  all.names.push_back("transpose");
}

ZarrChunks::Shards index_of(const Json& settings) {
  ZarrChunks::Shards shards;
  const std::string location = settings.contains("index_location") ? need_text(settings, "index_location") : "end";
  if (location != "start" && location != "end")
    throw BrokenZarr("shards whose index is at \"" + location.substr(0, 40) + "\"");
  shards.index_at_end = location == "end";
  const Json& codecs = need(settings, "index_codecs");
  bool ordered = false;
  for (size_t i = 0; codecs.is_array() && i < codecs.size(); ++i) {
    const std::string name = codec_name(codecs[i]);
    if (name == "bytes" && i == 0) {
      shards.index_swapped = is_big_endian(settings_of(codecs[i]), sizeof(uint64_t));
      ordered = true;
    } else if (name == "crc32c" && i == 1) {
      shards.index_has_sum = true;
    } else {
      unknown(name + " (of an index of shards)");
    }
  }
  if (!ordered) throw BrokenZarr("shards whose index has no codec \"bytes\"");
  return shards;
}

ZarrCodecs sharded(const Json& settings, const ZarrType& type, const std::vector<int64_t>& shard) {
  const std::vector<int64_t> inner = need_sizes(settings, "chunk_shape", 1);
  if (inner.size() != shard.size()) throw BrokenZarr("shards of another number of dims than their chunks");
  ZarrCodecs all = zarr3_codecs(need(settings, "codecs"), type, inner);
  if (all.shards) throw UnknownZarr("it has shards in shards", kKnown, "write it again with one level of shards");
  all.shards = index_of(settings);
  all.inner = inner;
  std::string name = "sharding";
  uint64_t bytes = 16;
  for (size_t dim = 0; dim < shard.size(); ++dim) {
    if (shard[dim] % inner[dim] != 0) throw BrokenZarr("shards that are not an integer of chunks");
    all.shards->chunks.push_back(shard[dim] / inner[dim]);
    name += (dim == 0 ? " " : "x") + std::to_string(all.shards->chunks.back());
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(all.shards->chunks.back()), &bytes) || bytes >> 48)
      throw BrokenZarr("a shard of too many chunks");
  }
  all.names.insert(all.names.begin(), name);
  return all;
}

}  // namespace

ZarrCodecs zarr2_codecs(const Json& filters, const Json& compressor) {
  ZarrCodecs all;
  if (!filters.is_null() && !filters.is_array()) throw BrokenZarr("filters that are not a list");
  for (const Json& filter : filters) add(all, need_text(filter, "id"), filter, Stage::kAny);
  if (!compressor.is_null()) add(all, need_text(compressor, "id"), compressor, Stage::kAny);
  return all;
}

ZarrCodecs zarr3_codecs(const Json& codecs, const ZarrType& type, const std::vector<int64_t>& chunk) {
  ZarrCodecs all;
  if (!codecs.is_array() || codecs.empty()) throw BrokenZarr("codecs that are not a list");
  const bool complex = type.dtype && c10::isComplexType(*type.dtype);
  bool as_bytes = false;
  for (const Json& codec : codecs) {
    const std::string name = codec_name(codec);
    const Json& settings = settings_of(codec);
    if (all.shards) throw UnknownZarr("codec \"" + name + "\" follows shards", kKnown, "write it again without it");
    if (name == "transpose" && !as_bytes) {
      if (!all.codecs.empty())
        throw UnknownZarr("it is transposed after \"" + all.names.back() + "\"", kKnown, "write it again without that");
      transpose(all, settings, chunk.size());
    } else if (name == "bytes" && !as_bytes) {
      all.swapped = is_big_endian(settings, complex ? type.bytes / 2 : type.bytes);
      if (all.swapped && !all.codecs.empty())
        throw UnknownZarr("numbers of \"" + all.names.back() + "\" in the other byte order", kKnown,
                          "write it again in this machine's byte order");
      as_bytes = true;
    } else if (name == "sharding_indexed" && !as_bytes) {
      if (!all.order.empty()) throw UnknownZarr("its shards are transposed", kKnown, "write it again without that");
      if (!all.codecs.empty())
        throw UnknownZarr("codec \"" + all.names.back() + "\" of whole shards", kKnown, "write it again without that");
      all = sharded(settings, type, chunk);
      as_bytes = true;
    } else if (as_bytes) {
      add(all, name, settings, Stage::kBytes);
    } else {
      add(all, name, settings, Stage::kNumbers);
    }
  }
  if (!as_bytes) throw BrokenZarr("codecs without \"bytes\"");
  return all;
}

}  // namespace moonhalo::io
