// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/run_plan.h"

#include <algorithm>

namespace moonhalo::io {
namespace {

constexpr int64_t kRunBytes = int64_t{1} << 20;  // read at once
// The price of shared plans, in bytes that are copied in a row.
constexpr double kCopies = 2;  // each byte is read, and then brought to its place
constexpr double kMessages = 512 << 10;
constexpr double kWorthIt = 1.2;
// Ranks that read neighbours of what they need, whose bytes a slow disk or network brings: no more than this many
// times.
constexpr double kMostRead = 1.5;
constexpr int64_t kRunsOfRank = 4;  // at least, so that all ranks read about as much of what is small

std::vector<Slice> rows_in(const std::vector<Slice>& slices, const ShardSpec& spec, const BlockHalo& halo,
                           int64_t rank) {
  std::vector<Slice> part = slices;
  int64_t dim = 0;
  for (Slice& slice : part) {
    if (slice.dropped) continue;
    Interval rows = spec.block_range(dim, rank);
    if (spec.is_cut(dim)) rows = with_halo(halo, dim, rows, spec.global_shape()[dim]);
    slice.begin += rows.begin * slice.step;
    slice.count = rows.size();
    ++dim;
  }
  return part;
}

/// Whole rows of the innermost dims, as many as are read at once; less of what is small, so that all ranks read
/// about as much. Rows that are so close together that they would be read with what is between are not divided.
ChunkGrid grid_of_runs(const PlainArray& array, const std::vector<Slice>& slices, int64_t ranks) {
  const auto element_size = static_cast<int64_t>(array.element_size);
  std::vector<int64_t> chunk(slices.size(), 1);
  int64_t all = 1, slab = element_size;
  for (const Slice& slice : slices) all *= slice.count;
  int64_t left = std::clamp<int64_t>(all / (kRunsOfRank * ranks), 1, kRunBytes / element_size);
  for (size_t i = slices.size(); i-- > 0;) {
    const size_t dim = array.reversed ? slices.size() - 1 - i : i;
    const int64_t extent = std::max<int64_t>(array.shape[dim], 1);
    slab *= extent;
    chunk[dim] = i > 0 && slab <= static_cast<int64_t>(kReadCost) ? extent : std::min(left, extent);
    left = std::max<int64_t>(1, left / chunk[dim]);
  }
  ChunkGrid grid;
  for (size_t dim = 0; dim < slices.size(); ++dim) grid.emplace_back(slices[dim], chunk[dim]);
  return grid;
}

}  // namespace

std::optional<IoPlan> plan_runs(const PlainArray& array, const std::vector<Slice>& slices, const SpecPtr& spec,
                                const BlockHalo& halo) {
  const int64_t ranks = spec->mesh()->size();
  if (ranks == 1) return std::nullopt;
  double direct = 0, shared = kMessages * static_cast<double>(ranks), read = 0, needed = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<Slice> part = rows_in(slices, *spec, halo, rank);
    double bytes = static_cast<double>(array.element_size);
    for (const Slice& slice : part) bytes *= static_cast<double>(slice.count);
    if (bytes == 0) continue;
    direct += plain_read_cost(array, part);
    shared += kCopies * bytes;
    read += plain_read_bytes(array, part);
    needed += bytes;
  }
  if (needed == 0) return std::nullopt;
  const bool reads_much = read > kMostRead * std::max(needed, plain_read_bytes(array, slices));
  if (!reads_much && direct < kWorthIt * shared) return std::nullopt;
  return IoPlan(grid_of_runs(array, slices, ranks), array.element_size, spec, halo, IoPlan::Use::kReadRuns);
}

}  // namespace moonhalo::io
