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

/// Whole rows of the innermost dims, as many as are read at once.
ChunkGrid grid_of_runs(const PlainArray& array, const std::vector<Slice>& slices) {
  std::vector<int64_t> chunk(slices.size(), 1);
  auto left = kRunBytes / static_cast<int64_t>(array.element_size);
  for (size_t dim = slices.size(); dim-- > 0 && left > 1; left /= chunk[dim])
    chunk[dim] = std::clamp<int64_t>(left, 1, std::max<int64_t>(array.shape[dim], 1));
  ChunkGrid grid;
  for (size_t dim = 0; dim < slices.size(); ++dim) grid.emplace_back(slices[dim], chunk[dim]);
  return grid;
}

}  // namespace

std::optional<IoPlan> plan_runs(const PlainArray& array, const std::vector<Slice>& slices, const SpecPtr& spec,
                                const BlockHalo& halo) {
  const int64_t ranks = spec->mesh()->size();
  if (ranks == 1) return std::nullopt;
  double direct = 0, shared = kMessages * static_cast<double>(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<Slice> part = rows_in(slices, *spec, halo, rank);
    double bytes = static_cast<double>(array.element_size);
    for (const Slice& slice : part) bytes *= static_cast<double>(slice.count);
    if (bytes == 0) continue;
    direct += plain_read_cost(array, part);
    shared += kCopies * bytes;
  }
  if (direct < kWorthIt * shared) return std::nullopt;
  return IoPlan(grid_of_runs(array, slices), array.element_size, spec, halo, IoPlan::Use::kReadRuns);
}

}  // namespace moonhalo::io
