// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/reader.h"

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/chunk_reader.h"
#include "moonhalo/io/h5_types.h"
#include "moonhalo/io/io_stats.h"
#include "moonhalo/io/lzf.h"

namespace moonhalo::io {
namespace {

constexpr size_t kChunkCacheLimit = size_t{64} << 20;
constexpr size_t kLargestRead = size_t{64} << 20;
// A positioned read costs about as much as copying this many bytes.
constexpr size_t kReadCost = size_t{8} << 10;
constexpr size_t kBounce = size_t{256} << 10;  // stays in a core's cache

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

/// HDF5 1.10 believes what the file says of the size of chunks and of what lies in one run.
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
    uint64_t wanted = info.element_size;
    bool fits = true;
    for (const int64_t extent : info.shape) {
      fits = fits && !__builtin_mul_overflow(wanted, static_cast<uint64_t>(extent), &wanted);
    }
    if (written && (!fits || stored < wanted))
      return "it has " + std::to_string(stored) + " bytes, too few for shape " + shape_string(info.shape) + " of " +
             info.type_name;
  }
  return "";
}

/// Integers that a conversion would clip stop it; everything else converts as HDF5 does.
H5T_conv_ret_t refuse_clipping(H5T_conv_except_t kind, hid_t, hid_t to, void*, void*, void*) {
  const bool lossless_to_float = H5Tget_class(to) == H5T_FLOAT;
  if (lossless_to_float || kind == H5T_CONV_EXCEPT_TRUNCATE || kind == H5T_CONV_EXCEPT_PRECISION) {
    return H5T_CONV_UNHANDLED;
  }
  return H5T_CONV_ABORT;
}

}  // namespace

DatasetInfo read_info(hid_t file, hid_t dataset, const std::string& name, const h5::Where& where) {
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
  if (layout == H5D_CHUNKED && info.dtype && h5::lies_in(file, dataset, where)) {
    const h5::Handle memory = h5::memory_type(type.get(), *info.dtype, where);
    info.map = read_map(dataset, list.get(), memory.get(), where);
  }
  const h5::Scope scope;
  if (layout == H5D_CONTIGUOUS && H5Pget_external_count(list.get()) == 0 && h5::lies_in(file, dataset, where)) {
    const haddr_t offset = H5Dget_offset(dataset);  // undefined until something was written
    if (offset != HADDR_UNDEF) info.offset = offset;
  }
  return info;
}

Reader::Reader(FileState& file, const DatasetInfo& info, const std::vector<Slice>& slices, const h5::Where& where)
    : file_(file), info_(info), where_(where), access_(file.read(where)) {
  TORCH_CHECK_VALUE(info.damage.empty(), where.to_string(), ": damaged, cannot be read\n  have  ", info.damage,
                    "\n  fix   take another copy of the file, or write it again");
  const size_t touched = touched_bytes(info, slices);
  if (touched <= kChunkCacheLimit) cache_bytes_ = std::max(touched, size_t{1} << 20);
  if (info.chunks.empty()) cache_bytes_ = 0;
}

std::shared_ptr<h5::Handle> Reader::dataset(size_t cache_bytes) {
  return file_.dataset(access_.id, "/" + info_.name, cache_bytes, where_);
}

bool Reader::is_plain(const std::vector<Slice>& slices, at::ScalarType dtype) const {
  return file_.descriptor() >= 0 && info_.offset && info_.native && dtype == info_.dtype &&
         (slices.empty() || slices.back().step == 1 || slices.back().count <= 1);
}

void Reader::read(const std::vector<Slice>& slices, at::ScalarType dtype, void* out) {
  const int64_t count = element_count(slices);
  if (count == 0) return;
  if (is_plain(slices, dtype)) {
    read_plain(slices, static_cast<char*>(out));
  } else if (decodes(file_, info_) && dtype == info_.dtype) {
    const ChunkGrid grid = chunk_grid(*info_.map, slices);
    read_cells(grid, all_cells(grid), out);
  } else {
    read_library(slices, dtype, out);
    io_stats().library += count * static_cast<int64_t>(info_.element_size);
  }
  io_stats().asked += count * static_cast<int64_t>(info_.element_size);
}

void Reader::read_cells(const ChunkGrid& grid, const Box& cells, void* out) {
  const auto handle = dataset(0);  // no chunk passes through HDF5's cache
  ChunkReader(*info_.map, handle->get(), file_.descriptor(), where_).read(grid, cells, static_cast<char*>(out));
}

void Reader::read_run(char* out, uint64_t offset, size_t bytes) const {
  io_stats().stored += static_cast<int64_t>(bytes);
  while (bytes > 0) {
    const ssize_t got = pread(file_.descriptor(), out, std::min(bytes, kLargestRead), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, where_.to_string(), ": cannot read it\n  have  ", std::strerror(errno),
                "\n  fix   check the disk, or copy the file again");
    TORCH_CHECK_VALUE(got > 0, where_.to_string(),
                      ": the file is cut short\n  have  it ends at byte ", offset,
                      ", the selection needs ", bytes, " more\n  fix   copy or download it again");
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

void Reader::read_rows(char* out, uint64_t offset, size_t bytes, size_t stride, int64_t count) const {
  // Short rows that lie close together are read together and picked apart.
  if (count <= 1 || stride > kReadCost) {
    for (int64_t row = 0; row < count; ++row) {
      read_run(out, offset, bytes);
      out += bytes;
      offset += stride;
    }
    return;
  }
  const auto at_once = static_cast<int64_t>(kBounce / stride);
  std::vector<char> bounce(static_cast<size_t>(std::min(at_once, count)) * stride);
  while (count > 0) {
    const int64_t rows = std::min(count, at_once);
    read_run(bounce.data(), offset, static_cast<size_t>(rows - 1) * stride + bytes);
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out, bounce.data() + static_cast<size_t>(row) * stride, bytes);
      out += bytes;
    }
    offset += static_cast<uint64_t>(rows) * stride;
    count -= rows;
  }
}

void Reader::read_plain(const std::vector<Slice>& slices, char* out) const {
  // The innermost dims up to and including the first that is not taken whole make one run of bytes.
  size_t bytes = info_.element_size;
  size_t inner = slices.size();
  bool run = true;
  while (inner > 0 && run) {
    const Slice& slice = slices[inner - 1];
    if (slice.step != 1 && slice.count > 1) break;
    --inner;
    bytes *= static_cast<size_t>(slice.count);
    run = slice.count == info_.shape[inner];
  }
  std::vector<size_t> strides(slices.size() + 1, info_.element_size);
  for (size_t dim = slices.size(); dim-- > 0;) {
    strides[dim] = strides[dim + 1] * static_cast<size_t>(info_.shape[dim]);
  }
  uint64_t offset = *info_.offset;
  for (size_t dim = 0; dim < slices.size(); ++dim) {
    offset += static_cast<uint64_t>(slices[dim].begin) * strides[dim + 1];
  }
  if (inner == 0) return read_run(out, offset, bytes);

  const size_t row_dim = inner - 1;
  const size_t row_stride = static_cast<size_t>(slices[row_dim].step) * strides[row_dim + 1];
  std::vector<int64_t> at(row_dim, 0);
  for (;;) {
    read_rows(out, offset, bytes, row_stride, slices[row_dim].count);
    out += bytes * static_cast<size_t>(slices[row_dim].count);
    size_t dim = row_dim;
    for (;;) {
      if (dim == 0) return;
      --dim;
      const uint64_t step = static_cast<uint64_t>(slices[dim].step) * strides[dim + 1];
      offset += step;
      if (++at[dim] < slices[dim].count) break;
      offset -= step * static_cast<uint64_t>(at[dim]);
      at[dim] = 0;
    }
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
  const h5::Handle memory = h5::memory_type(file_type.get(), dtype, where_);
  const h5::Handle transfer = h5::property_list(H5P_DATASET_XFER, where_);
  const bool checks = at::isIntegralType(dtype, false) && dtype != info_.dtype;
  if (checks) {
    h5::checked(where_, "watch the conversion",
                [&] { return H5Pset_type_conv_cb(transfer.get(), refuse_clipping, nullptr); });
  }
  const h5::Scope scope;
  const herr_t status = H5Dread(id, memory.get(), selected.memory.get(), selected.file.get(), transfer.get(), out);
  if (status >= 0) return;
  if (checks) {
    TORCH_CHECK_VALUE(false, where_.to_string(), ": a value does not fit dtype ",
                      h5::dtype_name(dtype), "\n  have  stored ", info_.type_name,
                      "\n  fix   read it as ", info_.type_name, " or a float");
  }
  for (const auto& filter : info_.filters) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        filter.find("not available") == std::string::npos, where_.to_string(),
        ": compressed with ", filter, "\n  have  chunks of ", shape_string(info_.chunks),
        ", an HDF5 library without that filter\n  fix   write it again with gzip (h5py: "
        "compression=\"gzip\"), or set HDF5_PLUGIN_PATH to a folder with its plugin");
  }
  h5::fail(where_, "read it");
}

}  // namespace moonhalo::io
