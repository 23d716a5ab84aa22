// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/file_shares.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo::io {
namespace {

constexpr int64_t kFewRuns = 8;  // short ones cost less to write than to gather

std::vector<int64_t> file_shape(const ShardSpec& spec) {
  return spec.ndim() == 0 ? std::vector<int64_t>{1} : spec.global_shape();
}

/// A tensor without dims counts as one row.
Box block_of(const ShardSpec& spec, int64_t rank) { return spec.ndim() == 0 ? Box{{0, 1}} : block_box(spec, rank); }

Box nothing_of(const Box& box) {
  Box none;
  for (const Interval& rows : box) none.push_back({rows.begin, rows.begin});
  return none;
}

/// From which dim on a box is as wide as the tensor: a run is a product over that dim and those behind it.
int64_t first_whole_dim(const std::vector<int64_t>& shape, const Box& box) {
  int64_t dim = box.ndim();
  while (dim > 0 && box[dim - 1].size() == shape[dim - 1]) --dim;
  return dim;
}

int64_t run_elements(const std::vector<int64_t>& shape, const Box& box) {
  const int64_t first = std::max<int64_t>(first_whole_dim(shape, box) - 1, 0);
  int64_t length = 1;
  for (int64_t dim = first; dim < box.ndim(); ++dim) length *= box[dim].size();
  return length;
}

/// The dim along which `parts` ranks share a box: the outermost with rows enough for parts of nearly equal size, or
/// the longest, as long as a part's rows are not short run.
int64_t dim_to_share(const Box& box, int64_t parts, int64_t element_bytes) {
  int64_t longest = 0, row_bytes = box.numel() * element_bytes;
  for (int64_t dim = 0; dim < box.ndim(); ++dim) {
    row_bytes /= std::max<int64_t>(box[dim].size(), 1);
    if (dim > 0 && box[dim].size() / parts * row_bytes < kShortRun) break;
    if (box[dim].size() > box[longest].size()) longest = dim;
    if (box[dim].size() >= 16 * parts) break;
  }
  return longest;
}

/// Gives each of `ranks`, which could all write `box`, its part: the larger ones to those with fewer bytes so far.
void share_box(const Box& box, std::vector<int64_t> ranks, int64_t element_bytes, std::vector<int64_t>& bytes,
               std::vector<Box>& boxes) {
  std::stable_sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) { return bytes[a] < bytes[b]; });
  const bool small = box.numel() * element_bytes <= kSmallBytes;
  const auto parts = small ? 1 : static_cast<int64_t>(ranks.size());
  const int64_t dim = dim_to_share(box, parts, element_bytes);
  const std::vector<int64_t> sizes = balanced_sizes(box[dim].size(), parts);
  int64_t row = box[dim].begin;
  for (size_t i = 0; i < ranks.size(); ++i) {
    Box& part = boxes[ranks[i]] = nothing_of(box);
    if (static_cast<int64_t>(i) >= parts || box.empty()) continue;
    part = box;
    part[dim] = {row, row + sizes[i]};
    row += sizes[i];
    bytes[ranks[i]] += part.numel() * element_bytes;
  }
}

}  // namespace

FileShares share_out(const ShardSpec& spec, int64_t element_bytes, std::vector<int64_t>& bytes, int64_t short_run) {
  const int64_t ranks = spec.mesh()->size();
  FileShares shares{.shape = file_shape(spec), .boxes = std::vector<Box>(ranks)};
  std::map<Box, std::vector<int64_t>> holders;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Box block = block_of(spec, rank);
    holders[block].push_back(rank);
    shares.moves |=
        run_elements(shares.shape, block) * element_bytes < short_run && count_runs(shares.shape, block) > kFewRuns;
  }
  if (shares.moves) {
    Box whole;
    for (const int64_t size : shares.shape) whole.push_back({0, size});
    std::vector<int64_t> all(ranks);
    std::iota(all.begin(), all.end(), int64_t{0});
    holders = {{whole, all}};
  }
  for (const auto& [block, of] : holders) share_box(block, of, element_bytes, bytes, shares.boxes);
  return shares;
}

std::vector<Box> pieces_of(const Box& box, int64_t element_bytes, int64_t limit) {
  if (box.empty()) return {};
  if (box.numel() * element_bytes <= limit) return {box};
  int64_t dim = 0;
  while (dim < box.ndim() && box[dim].size() == 1) ++dim;
  if (dim == box.ndim()) return {box};
  const int64_t row_bytes = box.numel() / box[dim].size() * element_bytes;
  const int64_t rows = std::max<int64_t>(limit / row_bytes, 1);
  std::vector<Box> pieces;
  for (int64_t row = box[dim].begin; row < box[dim].end; row += rows) {
    Box piece = box;
    piece[dim] = {row, std::min(row + rows, box[dim].end)};
    for (const Box& part : pieces_of(piece, element_bytes, limit)) pieces.push_back(part);
  }
  return pieces;
}

int64_t count_runs(const std::vector<int64_t>& shape, const Box& box) {
  return box.empty() ? 0 : box.numel() / run_elements(shape, box);
}

void for_each_run(const std::vector<int64_t>& shape, const Box& box, int64_t element_bytes,
                  const std::function<void(int64_t offset, int64_t length)>& visit) {
  if (box.empty()) return;
  const int64_t inner = std::max<int64_t>(first_whole_dim(shape, box) - 1, 0);
  std::vector<int64_t> stride(shape.size(), element_bytes);
  for (int64_t dim = box.ndim() - 2; dim >= 0; --dim) stride[dim] = stride[dim + 1] * shape[dim + 1];
  const int64_t length = run_elements(shape, box) * element_bytes;
  std::vector<int64_t> at(box.ndim(), 0);  // within the box, of the dims before `inner`
  while (true) {
    int64_t offset = 0;
    for (int64_t dim = 0; dim < box.ndim(); ++dim) offset += (box[dim].begin + at[dim]) * stride[dim];
    visit(offset, length);
    int64_t dim = inner - 1;
    while (dim >= 0 && ++at[dim] == box[dim].size()) at[dim--] = 0;
    if (dim < 0) return;
  }
}

}  // namespace moonhalo::io
