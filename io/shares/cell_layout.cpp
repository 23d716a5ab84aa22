// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/cell_layout.h"

#include <algorithm>
#include <cstring>

#include "moonhalo/engine/base/stream_copy.h"

namespace moonhalo::io {
namespace {

std::vector<int64_t> byte_strides(const std::vector<int64_t>& shape, size_t element_size) {
  std::vector<int64_t> strides(shape.size());
  auto stride = static_cast<int64_t>(element_size);
  for (size_t dim = shape.size(); dim-- > 0; stride *= shape[dim]) strides[dim] = stride;
  return strides;
}

std::vector<int64_t> strides_in_chunk(const ArrayMap& map) {
  if (map.order.empty()) return byte_strides(map.chunk, map.element_size);
  std::vector<int64_t> strides(map.chunk.size());
  auto stride = static_cast<int64_t>(map.element_size);
  for (size_t place = map.order.size(); place-- > 0; stride *= map.chunk[map.order[place]])
    strides[map.order[place]] = stride;
  return strides;
}

}  // namespace

void StridedCopy::drop_dense_dims() {
  const auto dense = [&] {
    return from_strides.back() == static_cast<int64_t>(run) && to_strides.back() == from_strides.back();
  };
  while (!count.empty() && (count.back() == 1 || dense())) {
    run *= static_cast<size_t>(count.back());
    count.pop_back();
    from_strides.pop_back();
    to_strides.pop_back();
  }
}

void StridedCopy::copy(const char* from, char* to, size_t dim) const {
  if (dim == count.size()) {
    std::memcpy(to, from, run);
    return;
  }
  for (int64_t i = 0; i < count[dim]; ++i, from += from_strides[dim], to += to_strides[dim]) copy(from, to, dim + 1);
}

void StridedCopy::stream(const char* from, char* to, size_t dim) const {
  if (dim == count.size()) return stream_copy(to, from, run);
  for (int64_t i = 0; i < count[dim]; ++i, from += from_strides[dim], to += to_strides[dim]) stream(from, to, dim + 1);
}

int64_t DenseBox::offset(const Box& part) const {
  const std::vector<int64_t> strides = byte_strides(box.shape(), element_size);
  int64_t bytes = 0;
  for (int64_t dim = 0; dim < box.ndim(); ++dim)
    bytes += (part[dim].begin - box[dim].begin) * strides[static_cast<size_t>(dim)];
  return bytes;
}

StridedCopy copy_between(const DenseBox& from, const DenseBox& to, const Box& part) {
  StridedCopy copy{part.shape(), byte_strides(from.box.shape(), from.element_size),
                   byte_strides(to.box.shape(), to.element_size), from.element_size};
  copy.drop_dense_dims();
  return copy;
}

CellBox::CellBox(const ArrayMap& map, const ChunkGrid& grid, const Box& cells)
    : map_(map),
      grid_(grid),
      cells_(cells),
      rows_(rows_of(grid, cells)),
      chunk_strides_(strides_in_chunk(map)),
      row_strides_(byte_strides(rows_.shape(), map.element_size)) {}

std::vector<int64_t> CellBox::cell(int64_t i) const {
  std::vector<int64_t> cell(grid_.size());
  for (size_t dim = grid_.size(); dim-- > 0;) {
    const Interval& range = cells_[static_cast<int64_t>(dim)];
    cell[dim] = range.begin + i % range.size();
    i /= range.size();
  }
  return cell;
}

std::vector<int64_t> CellBox::chunk(int64_t i) const {
  std::vector<int64_t> number = cell(i);
  for (size_t dim = 0; dim < grid_.size(); ++dim) number[dim] = grid_[dim].chunk(number[dim]);
  return number;
}

bool CellBox::has_whole_chunk(int64_t i) const {
  const std::vector<int64_t> number = cell(i);
  for (size_t dim = 0; dim < grid_.size(); ++dim) {
    const int64_t corner = grid_[dim].chunk(number[dim]) * map_.chunk[dim];
    const int64_t extent = std::min(map_.chunk[dim], map_.shape[dim] - corner);
    if (grid_[dim].rows(number[dim]).size() != extent) return false;
  }
  return true;
}

CellBox::Place CellBox::place(int64_t i) const {
  const std::vector<int64_t> number = cell(i);
  Place place{{{}, chunk_strides_, row_strides_, map_.element_size}, 0, 0};
  for (size_t dim = 0; dim < grid_.size(); ++dim) {
    const ChunkCells& cells = grid_[dim];
    const Interval rows = cells.rows(number[dim]);
    const int64_t first = cells.slice().begin + rows.begin * cells.slice().step;
    place.in_chunk += (first - cells.chunk(number[dim]) * map_.chunk[dim]) * chunk_strides_[dim];
    place.in_rows += (rows.begin - rows_[static_cast<int64_t>(dim)].begin) * row_strides_[dim];
    place.part.count.push_back(rows.size());
    place.part.from_strides[dim] *= cells.slice().step;
  }
  return place;
}

}  // namespace moonhalo::io
