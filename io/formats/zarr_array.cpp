// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/zarr_array.h"

#include <cstring>
#include <limits>

#include "moonhalo/io/formats/zarr_codecs.h"

namespace moonhalo::io {
namespace {

/// Holds what both versions say of an array.
struct Words {
  ZarrType type;
  std::vector<int64_t> shape, chunk;
  std::string fill;
  ZarrCodecs codecs;
  ZarrChunks::Layout layout;
};

uint64_t bytes_of(const std::vector<int64_t>& shape, size_t element_size, const char* of) {
  uint64_t bytes = element_size;
  bool fits = true;
  for (const int64_t extent : shape)
    fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes);
  if (!fits || bytes >> 60) throw BrokenZarr(std::string(of) + " of more bytes than there can be");
  return bytes;
}

std::string separator(const Json& object, const char* key, const char* otherwise) {
  std::string text = object.contains(key) ? need_text(object, key) : otherwise;
  if (text != "." && text != "/") throw BrokenZarr("numbers of chunks that \"" + text.substr(0, 20) + "\" separates");
  return text;
}

std::shared_ptr<DatasetInfo> bare_info(const std::string& path, const ZarrType& type, const std::vector<int64_t>& shape,
                                       const std::vector<int64_t>& chunk) {
  auto info = std::make_shared<DatasetInfo>();
  info->name = path;
  info->shape = shape;
  info->chunks = chunk;
  info->dtype = type.dtype;
  info->type_name = type.name;
  info->element_size = type.bytes;
  return info;
}

void set_map(DatasetInfo& info, Words words) {
  ArrayMap map;
  map.shape = words.shape;
  map.chunk = words.codecs.shards ? words.codecs.inner : words.chunk;
  map.element_size = words.type.bytes;
  map.swapped = words.codecs.swapped;
  map.codecs = std::move(words.codecs.codecs);
  map.parts = words.type.dtype && c10::isComplexType(*words.type.dtype) ? 2 : 1;
  map.order = std::move(words.codecs.order);
  map.fill = std::move(words.fill);
  words.layout.largest = 2 * bytes_of(map.chunk, map.element_size, "chunks") + (1 << 20);
  words.layout.shards = std::move(words.codecs.shards);
  info.chunks = map.chunk;
  info.filters = std::move(words.codecs.names);
  info.map = std::move(map);
  info.source = std::make_shared<ZarrChunks>(std::move(words.layout));
}

void check_shape(const Words& words) {
  if (words.chunk.size() != words.shape.size()) throw BrokenZarr("chunks of another number of dims than the array");
  bytes_of(words.shape, words.type.bytes, "an array");
  bytes_of(words.chunk, words.type.bytes, "chunks");
}

/// The map of an array whose elements have one size, or why it has none.
template <typename Read>
void add_map(DatasetInfo& info, Words& words, const Read& read_codecs) {
  check_shape(words);
  if (words.type.bytes == 0) {
    info.refusal = "elements of type " + words.type.name + " are not read\n  have  Zarr\n  fix   store it as numbers";
    return;
  }
  try {
    words.codecs = read_codecs();
    set_map(info, std::move(words));
  } catch (const UnknownZarr& error) {
    info.refusal = error.what();
  }
}

std::vector<std::string> dims_of(const Json& names, size_t ndim) {
  std::vector<std::string> dims(ndim);
  if (!names.is_array() || names.size() != ndim) return dims;
  for (size_t dim = 0; dim < ndim; ++dim) {
    if (names[dim].is_string()) dims[dim] = names[dim].get<std::string>();
  }
  return dims;
}

}  // namespace

Catalog::Array read_zarr2_array(const ZarrPlace& place, const Json& array, const Json& attributes) {
  Words words;
  words.type = zarr2_type(need(array, "dtype"));
  words.shape = need_sizes(array, "shape", 0);
  words.chunk = need_sizes(array, "chunks", 1);
  const Json& fill = need(array, "fill_value");
  words.fill = fill_bytes(fill, words.type);
  words.layout.folder = place.folder;
  words.layout.reach = place.reach;
  words.layout.separator = separator(array, "dimension_separator", ".")[0];
  const std::string order = need_text(array, "order");
  if (order != "C" && order != "F") throw BrokenZarr("order \"" + order.substr(0, 20) + "\" of elements");

  const auto info = bare_info(place.path, words.type, words.shape, words.chunk);
  const auto type = words.type;
  const auto fill_stored = words.fill;
  const size_t ndim = words.shape.size();
  add_map(*info, words, [&] {
    ZarrCodecs codecs = zarr2_codecs(array.value("filters", Json()), array.value("compressor", Json()));
    for (size_t dim = ndim; order == "F" && dim-- > 0;) codecs.order.push_back(dim);
    codecs.swapped = type.swapped;
    return codecs;
  });
  Catalog::Array result{info, dims_of(attributes.value("_ARRAY_DIMENSIONS", Json()), ndim), attributes_of(attributes)};
  result.attrs.erase("_ARRAY_DIMENSIONS");
  add_time_attributes(result.attrs, type);
  // A fill_value is the content of chunks without a file, 0 by default, and no sign of a missing value. But xarray,
  // which names dims so, keeps _FillValue there.
  const bool of_xarray = attributes.contains("_ARRAY_DIMENSIONS") && !fill.is_null() && fill != 0;
  const auto missing = of_xarray ? fill_attribute(fill_stored, type) : std::nullopt;
  if (missing && type.bytes > 0) result.attrs.emplace("_FillValue", *missing);
  return result;
}

Catalog::Array read_zarr3_array(const ZarrPlace& place, const Json& node) {
  Words words;
  words.type = zarr3_type(need(node, "data_type"));
  words.shape = need_sizes(node, "shape", 0);
  words.fill = fill_bytes(need(node, "fill_value"), words.type);
  words.layout.folder = place.folder;
  words.layout.reach = place.reach;
  const Json& grid = need(node, "chunk_grid");
  const bool regular = need_text(grid, "name") == "regular";
  words.chunk =
      regular ? need_sizes(need(grid, "configuration"), "chunk_shape", 1) : std::vector<int64_t>(words.shape.size(), 1);
  const Json& keys = need(node, "chunk_key_encoding");
  const std::string encoding = keys.is_string() ? keys.get<std::string>() : need_text(keys, "name");
  const Json settings = keys.is_object() ? keys.value("configuration", Json::object()) : Json::object();
  const std::string between = separator(settings, "separator", encoding == "v2" ? "." : "/");
  words.layout.separator = between[0];
  if (encoding != "v2") words.layout.prefix = "c" + between;

  const auto info = bare_info(place.path, words.type, words.shape, words.chunk);
  const auto type = words.type;
  const size_t ndim = words.shape.size();
  add_map(*info, words, [&] {
    const char* const fix = "write it again with zarr-python's defaults";
    if (!regular)
      throw UnknownZarr("its chunks differ in shape", "chunk grid \"" + need_text(grid, "name") + "\"", fix);
    if (encoding != "default" && encoding != "v2")
      throw UnknownZarr("names of its chunks are not known here", "\"" + encoding + "\"", fix);
    if (node.contains("storage_transformers") && !node["storage_transformers"].empty())
      throw UnknownZarr("it has storage transformers", "which are not known here", fix);
    return zarr3_codecs(need(node, "codecs"), type, words.chunk);
  });
  const Json attributes = node.value("attributes", Json::object());
  if (!attributes.is_object()) throw BrokenZarr("attributes that are not a object");
  Catalog::Array result{info, dims_of(node.value("dimension_names", Json()), ndim), attributes_of(attributes)};
  add_time_attributes(result.attrs, type);
  // xarray writes floats among them as base64 of a double.
  const auto missing = result.attrs.find("_FillValue");
  if (missing == result.attrs.end() || !type.dtype || !at::isFloatingType(*type.dtype)) return result;
  if (const auto* text = std::get_if<std::string>(&missing->second.value)) {
    const std::string bytes = from_base64(*text);
    double number = 0;
    if (bytes.size() != sizeof(number)) throw BrokenZarr("attribute _FillValue \"" + text->substr(0, 40) + "\"");
    std::memcpy(&number, bytes.data(), sizeof(number));
    missing->second = {number, sizeof(number)};
  }
  return result;
}

}  // namespace moonhalo::io
