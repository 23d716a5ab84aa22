// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/array_map.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "moonhalo/io/codecs/lzf.h"

namespace moonhalo::io {
namespace {

/// Returns nothing where one of the filters is unknown here.
std::optional<std::vector<Codec>> read_codecs(hid_t list, const h5::Where& where) {
  std::vector<Codec> codecs;
  const int count = h5::checked(where, "read its filters", [&] { return H5Pget_nfilters(list); });
  for (int i = 0; i < count; ++i) {
    std::array<unsigned, 8> values{};
    size_t value_count = values.size();
    unsigned flags = 0;
    const H5Z_filter_t id = h5::checked(where, "read its filters", [&] {
      return H5Pget_filter2(list, static_cast<unsigned>(i), &flags, &value_count, values.data(), 0, nullptr, nullptr);
    });
    if (id == H5Z_FILTER_DEFLATE) {
      codecs.push_back({.kind = Codec::Kind::kDeflate, .level = value_count > 0 ? static_cast<int>(values[0]) : 0});
    } else if (id == H5Z_FILTER_SHUFFLE && value_count > 0) {
      codecs.push_back({Codec::Kind::kShuffle, values[0]});
    } else if (id == H5Z_FILTER_FLETCHER32) {
      codecs.push_back({Codec::Kind::kFletcher32});
    } else if (id == kLzfFilter) {
      codecs.push_back({Codec::Kind::kLzf});
    } else {
      return std::nullopt;
    }
  }
  return codecs;
}

/// Chunks at the ends that went through no filter are marked nowhere; with a user block HDF5 1.10 gives addresses from
/// its end, newer ones from the start of the file.
bool is_ordinary(hid_t dataset, hid_t list, const h5::Where& where) {
  unsigned options = 0;
  h5::checked(where, "read its layout", [&] { return H5Pget_chunk_opts(list, &options); });
  const h5::Handle file = h5::make(where, "find its file", H5Fclose, [&] { return H5Iget_file_id(dataset); });
  const h5::Handle creation =
      h5::make(where, "read how its file was made", H5Pclose, [&] { return H5Fget_create_plist(file.get()); });
  hsize_t userblock = 0;
  h5::checked(where, "read its user block", [&] { return H5Pget_userblock(creation.get(), &userblock); });
  return options == 0 && userblock == 0;
}

/// HDF5 finds a chunk of a newer file by walking an array of all chunks. In that of a dataset whose only dim
/// without a limit is not the first, chunks are in the order of dims that has it in front, and HDF5 gives others,
/// or none.
bool finds_chunks(hid_t dataset, hid_t space, size_t ndim, const h5::Where& where) {
  H5D_chunk_index_t kind{};
  h5::checked(where, "read the index of its chunks", [&] { return H5Dget_chunk_index_type(dataset, &kind); });
  if (kind != H5D_CHUNK_IDX_EARRAY) return true;
  std::vector<hsize_t> most(ndim);
  h5::checked(where, "read its shape", [&] { return H5Sget_simple_extent_dims(space, nullptr, most.data()); });
  return most.front() == H5S_UNLIMITED;
}

/// The stored type in this machine's byte order: equal to `memory` where only the order of bytes differs.
bool differs_in_order(hid_t type, hid_t memory, const h5::Where& where) {
  const auto kind = h5::checked(where, "read its type", [&] { return H5Tget_class(type); });
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) return false;
  const h5::Handle turned = h5::make(where, "compare types", H5Tclose, [&] { return H5Tcopy(type); });
  h5::checked(where, "compare types", [&] { return H5Tset_order(turned.get(), H5Tget_order(memory)); });
  return h5::checked(where, "compare types", [&] { return H5Tequal(turned.get(), memory); }) > 0;
}

std::string read_fill(hid_t list, hid_t memory, size_t element_size, const h5::Where& where) {
  std::string fill(element_size, '\0');
  H5D_fill_value_t kind{};
  h5::checked(where, "read its fill value", [&] { return H5Pfill_value_defined(list, &kind); });
  if (kind != H5D_FILL_VALUE_UNDEFINED)
    h5::checked(where, "read its fill value", [&] { return H5Pget_fill_value(list, memory, fill.data()); });
  return fill;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }

}  // namespace

size_t ArrayMap::chunk_bytes() const {
  size_t bytes = element_size;
  for (const int64_t extent : chunk) bytes *= static_cast<size_t>(extent);
  return bytes;
}

std::optional<ArrayMap> read_map(hid_t dataset, hid_t list, hid_t memory, const h5::Where& where) {
  auto codecs = read_codecs(list, where);
  if (!codecs || !decodable(*codecs) || !is_ordinary(dataset, list, where)) return std::nullopt;
  const h5::Handle type = h5::type_of(dataset, where);
  const bool same = h5::checked(where, "compare types", [&] { return H5Tequal(type.get(), memory); }) > 0;
  if (!same && !differs_in_order(type.get(), memory, where)) return std::nullopt;

  ArrayMap map;
  const h5::Handle space = h5::space_of(dataset, where);
  for (const hsize_t extent : h5::extent(space.get(), where)) map.shape.push_back(static_cast<int64_t>(extent));
  std::vector<hsize_t> chunk(map.shape.size());
  h5::checked(where, "read its chunks",
              [&] { return H5Pget_chunk(list, static_cast<int>(chunk.size()), chunk.data()); });
  map.chunk.assign(chunk.begin(), chunk.end());
  if (!finds_chunks(dataset, space.get(), map.shape.size(), where)) return std::nullopt;
  map.element_size = H5Tget_size(memory);
  map.swapped = !same;
  map.codecs = std::move(*codecs);
  map.fill = read_fill(list, memory, map.element_size, where);
  return map;
}

StoredChunk find_chunk(hid_t dataset, const ArrayMap& map, const std::vector<int64_t>& chunk, const h5::Where& where) {
  std::vector<hsize_t> corner(chunk.size());
  for (size_t dim = 0; dim < chunk.size(); ++dim) corner[dim] = static_cast<hsize_t>(chunk[dim] * map.chunk[dim]);
  haddr_t address = HADDR_UNDEF;
  hsize_t bytes = 0;
  unsigned skipped = 0;
  h5::checked(where, "find a chunk of it",
              [&] { return H5Dget_chunk_info_by_coord(dataset, corner.data(), &skipped, &address, &bytes); });
  if (address == HADDR_UNDEF) return {};
  return {address, bytes, skipped};
}

ChunkCells::ChunkCells(const Slice& slice, int64_t chunk) : slice_(slice), chunk_(chunk) {
  if (slice.step > chunk || slice.count == 0) {
    count_ = slice.count;  // every row is in a chunk of its own
  } else {
    count_ = (slice.begin + (slice.count - 1) * slice.step) / chunk - slice.begin / chunk + 1;
  }
}

int64_t ChunkCells::chunk(int64_t cell) const {
  return slice_.step > chunk_ ? (slice_.begin + cell * slice_.step) / chunk_ : slice_.begin / chunk_ + cell;
}

int64_t ChunkCells::first_row(int64_t cell) const {
  if (slice_.step > chunk_) return cell;
  const int64_t corner = chunk(cell) * chunk_;
  return corner <= slice_.begin ? 0 : std::min(slice_.count, ceil_div(corner - slice_.begin, slice_.step));
}

Interval ChunkCells::rows(const Interval& cells) const {
  if (cells.empty()) return {0, 0};
  return {first_row(cells.begin), cells.end == count_ ? slice_.count : first_row(cells.end)};
}

Interval ChunkCells::cells(const Interval& rows) const {
  if (rows.empty()) return {0, 0};
  if (slice_.step > chunk_) return rows;
  const auto cell = [&](int64_t row) { return (slice_.begin + row * slice_.step) / chunk_ - slice_.begin / chunk_; };
  return {cell(rows.begin), cell(rows.end - 1) + 1};
}

ChunkGrid chunk_grid(const ArrayMap& map, const std::vector<Slice>& slices) {
  ChunkGrid grid;
  for (size_t dim = 0; dim < slices.size(); ++dim) grid.emplace_back(slices[dim], map.chunk[dim]);
  return grid;
}

Box rows_of(const ChunkGrid& grid, const Box& cells) {
  Box rows;
  for (size_t dim = 0; dim < grid.size(); ++dim) rows.push_back(grid[dim].rows(cells[static_cast<int64_t>(dim)]));
  return rows;
}

Box cells_of(const ChunkGrid& grid, const Box& rows) {
  Box cells;
  for (size_t dim = 0; dim < grid.size(); ++dim) cells.push_back(grid[dim].cells(rows[static_cast<int64_t>(dim)]));
  return cells;
}

Box all_cells(const ChunkGrid& grid) {
  Box cells;
  for (const ChunkCells& dim : grid) cells.push_back({0, dim.count()});
  return cells;
}

}  // namespace moonhalo::io
