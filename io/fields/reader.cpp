// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/reader.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/base/memory.h"
#include "moonhalo/io/codecs/lzf.h"
#include "moonhalo/io/fields/chunk_reader.h"

namespace moonhalo::io {
namespace {

constexpr size_t kConversionBytes = size_t{1} << 20;  // of HDF5's own buffer
constexpr size_t kChunkCacheLimit = size_t{64} << 20;

constexpr int64_t kReversedBytes = int64_t{1} << 20;  // of an array that is with its first dim innermost, at once

/// Any byte may be in a file.
void make_truths(char* flags, size_t count) {
  for (size_t i = 0; i < count; ++i) flags[i] = flags[i] != 0;
}

int64_t element_count(const std::vector<Slice>& slices) {
  int64_t count = 1;
  for (const auto& slice : slices) count *= slice.count;
  return count;
}

/// Bytes of all chunks that a selection touches; 0 for datasets without chunks.
size_t touched_bytes(const DatasetInfo& info, const std::vector<Slice>& slices) {
  if (info.chunks.empty()) return 0;
  size_t bytes = info.element_size;
  for (size_t dim = 0; dim < slices.size(); ++dim) {
    const Slice& slice = slices[dim];
    if (slice.count == 0) return 0;
    const int64_t chunk = info.chunks[dim];
    const int64_t last = slice.begin + (slice.count - 1) * slice.step;
    bytes *= static_cast<size_t>((last / chunk - slice.begin / chunk + 1) * chunk);
  }
  return bytes;
}

std::vector<std::string> filter_names(hid_t list, const h5::Where& where) {
  std::vector<std::string> names;
  const int count = h5::checked(where, "read its filters", [&] { return H5Pget_nfilters(list); });
  for (int i = 0; i < count; ++i) {
    std::array<unsigned, 16> values{};
    std::array<char, 64> text{};
    size_t value_count = values.size();
    unsigned flags = 0;
    const H5Z_filter_t id = h5::checked(where, "read its filters", [&] {
      return H5Pget_filter2(list, static_cast<unsigned>(i), &flags, &value_count, values.data(), text.size(),
                            text.data(), nullptr);
    });
    std::string name = id == H5Z_FILTER_DEFLATE      ? "gzip " + std::to_string(values[0])
                       : id == H5Z_FILTER_SHUFFLE    ? "shuffle"
                       : id == H5Z_FILTER_FLETCHER32 ? "fletcher32"
                       : id == H5Z_FILTER_SZIP       ? "szip"
                       : id == kLzfFilter            ? "lzf"
                       : text[0] != 0                ? std::string(text.data())
                                                     : "filter";
    const h5::Scope scope;
    if (H5Zfilter_avail(id) <= 0) name += " (" + std::to_string(id) + ", not available)";
    names.push_back(std::move(name));
  }
  return names;
}

/// HDF5 1.10 believes what the file says of the size of chunks and of what is in one run.
std::string damage_of(const DatasetInfo& info, hid_t dataset, hid_t space, hid_t list, H5D_layout_t layout,
                      const h5::Where& where) {
  if (layout == H5D_CHUNKED) {
    std::vector<hsize_t> most(info.shape.size());
    h5::checked(where, "read its shape", [&] { return H5Sget_simple_extent_dims(space, nullptr, most.data()); });
    for (size_t dim = 0; dim < most.size(); ++dim) {
      if (info.shape[dim] != 0 && most[dim] != H5S_UNLIMITED && most[dim] < static_cast<hsize_t>(info.chunks[dim]))
        return "chunks of " + shape_string(info.chunks) + " are larger than its shape " + shape_string(info.shape);
    }
    if (!info.filters.empty()) return "";  // chunks of any size; and asking for their sum reads their whole index
    const h5::Scope scope;
    uint64_t chunk = info.element_size;
    for (const int64_t extent : info.chunks) chunk *= static_cast<uint64_t>(extent);
    const hsize_t stored = H5Dget_storage_size(dataset);
    if (chunk > 0 && stored % chunk != 0)
      return "it has " + std::to_string(stored) + " bytes, not a number of chunks of " + std::to_string(chunk);
  } else if (layout == H5D_COMPACT || (layout == H5D_CONTIGUOUS && H5Pget_external_count(list) == 0)) {
    const h5::Scope scope;
    const hsize_t stored = H5Dget_storage_size(dataset);  // 0 until something was written, unless compact
    const bool written = stored != 0 || layout == H5D_COMPACT;
    uint64_t required = info.element_size;
    bool fits = true;
    for (const int64_t extent : info.shape) {
      fits = fits && !__builtin_mul_overflow(required, static_cast<uint64_t>(extent), &required);
    }
    if (written && (!fits || stored < required))
      return "it has " + std::to_string(stored) + " bytes, too few for shape " + shape_string(info.shape) + " of " +
             info.type_name;
  }
  return "";
}

}  // namespace

DatasetInfo read_info(hid_t file, hid_t dataset, const std::string& name, const h5::Where& where) {
  const h5::Scope scope;
  DatasetInfo info;
  info.name = name;
  const h5::Handle type = h5::type_of(dataset, where);
  const h5::Handle space = h5::space_of(dataset, where);
  const h5::Handle list = h5::creation_list_of(dataset, where);

  for (const hsize_t extent : h5::extent(space.get(), where)) {
    info.shape.push_back(static_cast<int64_t>(extent));
  }
  const auto kind = h5::checked(where, "read its shape", [&] { return H5Sget_simple_extent_type(space.get()); });
  if (kind == H5S_NULL) info.shape = {0};
  info.type_name = h5::type_name(type.get(), where);
  info.dtype = h5::scalar_type(type.get(), where);
  if (!info.dtype) info.members = h5::member_names(type.get(), where);
  info.element_size = H5Tget_size(type.get());
  info.enumeration = H5Tget_class(type.get()) == H5T_ENUM;
  if (info.dtype) {
    const h5::Handle memory = h5::memory_type(type.get(), *info.dtype, where);
    info.native = h5::checked(where, "compare types", [&] { return H5Tequal(type.get(), memory.get()); }) > 0;
  }
  const auto layout = h5::checked(where, "read its layout", [&] { return H5Pget_layout(list.get()); });
  if (layout == H5D_CHUNKED) {
    std::vector<hsize_t> chunks(info.shape.size());
    h5::checked(where, "read its chunks",
                [&] { return H5Pget_chunk(list.get(), static_cast<int>(chunks.size()), chunks.data()); });
    info.chunks.assign(chunks.begin(), chunks.end());
    info.filters = filter_names(list.get(), where);
  }
  info.damage = damage_of(info, dataset, space.get(), list.get(), layout, where);
  if (layout == H5D_CHUNKED && info.dtype && h5::is_in_file(file, dataset, where)) {
    const h5::Handle memory = h5::memory_type(type.get(), *info.dtype, where);
    info.map = read_map(dataset, list.get(), memory.get(), where);
  }
  if (layout == H5D_CONTIGUOUS && H5Pget_external_count(list.get()) == 0 && h5::is_in_file(file, dataset, where)) {
    const haddr_t offset = H5Dget_offset(dataset);  // undefined until something was written
    if (offset != HADDR_UNDEF) info.offset = offset;
  }
  return info;
}

DatasetInfo member_info(hid_t dataset, const DatasetInfo& info, const std::string& member, const h5::Where& where) {
  const std::string all = c10::Join(", ", info.members);
  const bool known = std::find(info.members.begin(), info.members.end(), member) != info.members.end();
  TORCH_CHECK_VALUE(
      known, where.to_string(), ": no member \"", member, "\"", did_you_mean(member, info.members), "\n  have  ",
      info.members.empty() ? info.type_name + ", which has no members" : "a compound of " + all, "\n  fix   ",
      info.members.empty() ? "select rows, as \"0:100, ::2\"" : "name one of these members");
  DatasetInfo found;
  found.name = info.name;
  found.shape = info.shape;
  found.chunks = info.chunks;
  found.filters = info.filters;
  found.damage = info.damage;
  found.element_size = info.element_size;  // what is read of the file
  found.member = info.member;
  found.member.push_back(member);
  const h5::Handle whole = h5::type_of(dataset, where);
  const h5::Handle type = h5::member_type(whole.get(), found.member, where);
  found.type_name = h5::type_name(type.get(), where);
  found.dtype = h5::scalar_type(type.get(), where);
  found.enumeration = H5Tget_class(type.get()) == H5T_ENUM;
  if (!found.dtype) found.members = h5::member_names(type.get(), where);
  const bool text = found.type_name == "string";
  TORCH_CHECK_TYPE(found.dtype || !found.members.empty(), where.to_string(), ": member \"", member, "\" holds ",
                   text ? "text" : "no numbers", "\n  have  a compound of ", all, "; \"", member, "\" is a ",
                   found.type_name, "\n  fix   choose a member of numbers, or store ", text ? "strings" : "it",
                   " as a dataset of its own");
  return found;
}

Reader::Reader(FileState& file, const DatasetInfo& info, const std::vector<Slice>& slices, const h5::Where& where)
    : file_(file), info_(info), where_(where), access_(file.read(where)) {
  TORCH_CHECK_VALUE(info.damage.empty(), where.to_string(), ": damaged, cannot be read\n  have  ", info.damage,
                    "\n  fix   take another copy of the file, or write it again");
  TORCH_CHECK_NOT_IMPLEMENTED(info.refusal.empty(), where.to_string(), ": ", info.refusal);
  const size_t touched = touched_bytes(info, slices);
  if (touched <= kChunkCacheLimit) cache_bytes_ = std::max(touched, size_t{1} << 20);
  if (info.chunks.empty()) cache_bytes_ = 0;
}

std::shared_ptr<h5::Handle> Reader::dataset(size_t cache_bytes) {
  return file_.dataset(access_.id, info_.name, where_, cache_bytes);
}

bool Reader::is_plain(const FileState& file, const DatasetInfo& info, const std::vector<Slice>& slices) {
  if (file.has_catalog()) return !info.source && info.offset;
  return file.descriptor() >= 0 && info.offset && info.native &&
         (slices.empty() || slices.back().step == 1 || slices.back().count <= 1);
}

PlainArray Reader::plain_array(const FileState& file, const DatasetInfo& info) {
  return {file.descriptor(), *info.offset, info.element_size, info.shape, info.strides, info.reversed};
}

void Reader::read(const std::vector<Slice>& slices, at::ScalarType dtype, void* out) {
  read_for_all(slices, dtype, out);
  io_stats().asked += element_count(slices) * static_cast<int64_t>(info_.element_size);
}

void Reader::read_for_all(const std::vector<Slice>& slices, at::ScalarType dtype, void* out) {
  const int64_t count = element_count(slices);
  if (count == 0) return;
  if (file_.has_catalog()) {
    TORCH_INTERNAL_ASSERT(dtype == info_.dtype, "conversions of elements that HDF5 does not read");
    return read_elements(slices, out);
  }
  if (dtype == info_.dtype && is_plain(file_, info_, slices)) {
    read_plain(slices, static_cast<char*>(out));
  } else if (dtype == info_.dtype && decodes(file_, info_)) {
    const ChunkGrid grid = chunk_grid(*info_.map, slices);
    read_cells(grid, all_cells(grid), out);
  } else {
    read_library(slices, dtype, out);
    io_stats().library += count * static_cast<int64_t>(info_.element_size);
  }
}

void Reader::read_stored(const std::vector<Slice>& slices, void* out) {
  read_elements(slices, out);
  io_stats().asked += element_count(slices) * static_cast<int64_t>(info_.element_size);
}

void Reader::read_elements(const std::vector<Slice>& slices, void* out) {
  if (info_.source) {
    const ChunkGrid grid = chunk_grid(*info_.map, slices);
    read_cells(grid, all_cells(grid), out);
  } else {
    read_plain(slices, static_cast<char*>(out));
  }
}

void Reader::read_cells(const ChunkGrid& grid, const Box& cells, void* out) {
  if (info_.source) {
    ChunkReader(*info_.map, *info_.source, where_).read(grid, cells, static_cast<char*>(out));
    if (info_.dtype != at::kBool) return;
    make_truths(static_cast<char*>(out), static_cast<size_t>(rows_of(grid, cells).numel()));
    return;
  }
  const auto handle = dataset(0);  // no chunk passes through HDF5's cache
  const H5Chunks source(*info_.map, handle->get(), file_.descriptor(), where_);
  ChunkReader(*info_.map, source, where_).read(grid, cells, static_cast<char*>(out));
}

void Reader::read_plain(const std::vector<Slice>& slices, char* out) const {
  info_.reversed ? read_reversed(slices, out) : io::read_plain(plain_array(file_, info_), slices, out, where_);
  const auto count = static_cast<size_t>(element_count(slices));
  const size_t parts = info_.dtype && c10::isComplexType(*info_.dtype) ? 2 : 1;
  if (info_.swapped) swap_bytes(out, info_.element_size / parts, parts * count);
  if (file_.has_catalog() && info_.dtype == at::kBool) make_truths(out, count);
}

/// A piece of the last dim at a time, which is the outermost in the file.
void Reader::read_reversed(const std::vector<Slice>& slices, char* out) const {
  std::vector<int64_t> shape, turned;
  for (size_t dim = 0; dim < slices.size(); ++dim) {
    shape.push_back(slices[dim].count);
    turned.push_back(static_cast<int64_t>(slices.size() - 1 - dim));
  }
  const auto element_size = static_cast<int64_t>(info_.element_size);
  const int64_t rows = shape.back(), row_bytes = element_count(slices) / rows * element_size;
  const int64_t at_once = std::clamp<int64_t>(kReversedBytes / std::max<int64_t>(row_bytes, 1), 1, rows);
  const at::Tensor target = at::from_blob(out, shape, moved_as(info_.element_size)).permute(turned);
  std::vector<int64_t> piece_shape(shape.rbegin(), shape.rend());
  piece_shape[0] = at_once;
  const at::Tensor room = at::empty(piece_shape, target.options());
  for (int64_t row = 0; row < rows; row += at_once) {
    std::vector<Slice> piece = slices;
    piece.back().begin += row * piece.back().step;
    piece.back().count = std::min(at_once, rows - row);
    const at::Tensor read = room.narrow(0, 0, piece.back().count);
    io::read_plain(plain_array(file_, info_), piece, static_cast<char*>(read.mutable_data_ptr()), where_);
    target.narrow(0, row, piece.back().count).copy_(read);
  }
}

Selected Reader::select(const std::vector<Slice>& slices) {
  Selected selected{dataset(cache_bytes_), {}, {}};
  selected.file = h5::space_of(selected.dataset->get(), where_);
  std::vector<hsize_t> begin, step, count;
  for (const auto& slice : slices) {
    begin.push_back(static_cast<hsize_t>(slice.begin));
    step.push_back(static_cast<hsize_t>(slice.step));
    count.push_back(static_cast<hsize_t>(slice.count));
  }
  if (!slices.empty()) {
    h5::checked(where_, "select a part of it", [&] {
      return H5Sselect_hyperslab(selected.file.get(), H5S_SELECT_SET, begin.data(), step.data(), count.data(), nullptr);
    });
  }
  selected.memory = h5::simple_space(count, where_);
  return selected;
}

void Reader::read_library(const std::vector<Slice>& slices, at::ScalarType dtype, void* out) {
  const Selected selected = select(slices);
  const hid_t id = selected.dataset->get();
  const h5::Handle file_type = h5::type_of(id, where_);
  const h5::Handle stored = h5::member_type(file_type.get(), info_.member, where_);
  const h5::Handle memory = h5::alone_in_compounds(h5::memory_type(stored.get(), dtype, where_), info_.member, where_);
  const bool checks = at::isIntegralType(dtype, false) && dtype != info_.dtype;
  const h5::Handle transfer = checks ? h5::unclipped_transfer(where_) : h5::property_list(H5P_DATASET_XFER, where_);
  const h5::Scope scope;
  // HDF5 fills the whole buffer of a conversion with zeros first, a MiB for the shortest list of coordinates.
  const size_t converted = static_cast<size_t>(element_count(slices)) *
                           std::max({H5Tget_size(file_type.get()), H5Tget_size(memory.get()), size_t{8}});
  if (converted < kConversionBytes) H5Pset_buffer(transfer.get(), converted, nullptr, nullptr);
  const herr_t status = H5Dread(id, memory.get(), selected.memory.get(), selected.file.get(), transfer.get(), out);
  if (status >= 0) return;
  if (checks) h5::refuse_clipped(dtype, info_.type_name, where_);
  for (const auto& filter : info_.filters) {
    TORCH_CHECK_NOT_IMPLEMENTED(filter.find("not available") == std::string::npos, where_.to_string(),
                                ": compressed with ", filter, "\n  have  chunks of ", shape_string(info_.chunks),
                                ", an HDF5 library without that filter\n  fix   write it again with gzip (h5py: "
                                "compression=\"gzip\"), or set HDF5_PLUGIN_PATH to a folder with its plugin");
  }
  h5::fail(where_, "read it");
}

}  // namespace moonhalo::io
