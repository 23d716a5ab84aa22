// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/io_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace moonhalo::io {

Interval with_halo(const BlockHalo& halo, int64_t dim, const Interval& owned, int64_t extent) {
  const int64_t lo = halo.lo.empty() ? 0 : std::min(halo.lo.at(dim), owned.begin);
  const int64_t hi = halo.hi.empty() ? 0 : std::min(halo.hi.at(dim), extent - owned.end);
  return {owned.begin - lo, owned.end + hi};
}

IoPlan::IoPlan(ChunkGrid grid, size_t element_size, SpecPtr spec, BlockHalo halo, Use use)
    : grid_(std::move(grid)), spec_(std::move(spec)), halo_(std::move(halo)) {
  int64_t spec_dim = 0;
  for (const ChunkCells& cells : grid_) {
    Dim dim;
    if (!cells.slice().dropped) dim.spec_dim = spec_dim++;
    dim.round_cells = std::max<int64_t>(1, cells.count());
    divide(dim, cells);
    dims_.push_back(std::move(dim));
  }
  TORCH_INTERNAL_ASSERT(spec_dim == spec_->ndim() && !spec_->has_partial(), "a spec of the selection");
  const DeviceMesh& mesh = *spec_->mesh();
  for (int64_t mesh_dim = 0; mesh_dim < mesh.ndim(); ++mesh_dim) {
    if (spec_->layout().uses(mesh_dim)) continue;
    copies_.push_back(mesh_dim);
    direct_cost_ *= static_cast<double>(mesh.size(mesh_dim));
  }
  for (size_t d = 0; d < dims_.size(); ++d) {
    double touched = 0;
    for (const Part& part : dims_[d].parts) touched += static_cast<double>(part.cells.size());
    if (grid_[d].count() > 0) direct_cost_ *= touched / static_cast<double>(grid_[d].count());
  }
  const bool worth_it = use != Use::kRead || (mesh.size() > 1 && direct_cost_ >= kWorthIt);
  shared_ = worth_it && !grid_.empty() && all_cells(grid_).numel() > 0;  // one number is not worth sharing
  choose_rounds(element_size);
}

void IoPlan::divide(Dim& dim, const ChunkCells& cells) const {
  const int64_t extent = cells.slice().count;
  if (dim.spec_dim < 0 || !spec_->is_cut(dim.spec_dim)) {
    dim.parts.push_back({{0, extent}, {0, cells.count()}, {}});
    return;
  }
  std::vector<Interval> owned;
  int64_t begin = 0;
  for (const int64_t size : spec_->block_sizes(dim.spec_dim)) {
    owned.push_back({begin, begin + size});
    const Interval rows = with_halo(halo_, dim.spec_dim, owned.back(), extent);
    dim.parts.push_back({rows, cells.cells(rows), {}});
    begin += size;
  }
  give_cells(dim, cells, owned);
}

/// A cell goes to the block that has most of its rows, the first of several. Only where that burdens the blocks
/// about in the same way do those who need a cell read it.
void IoPlan::give_cells(Dim& dim, const ChunkCells& cells, const std::vector<Interval>& owned) {
  int64_t next = 0, largest = 0;
  for (size_t block = 0; block < owned.size(); ++block) {
    Interval& most = dim.parts[block].most;
    const Interval touched = cells.cells(owned[block]);
    most = {next, next};
    if (!touched.empty()) {
      // Its last cell alone may belong to a later block; what earlier ones did not take is its own.
      const Interval last = cells.rows(touched.end - 1);
      const int64_t mine = last.intersect(owned[block]).size();
      bool has_most = true;
      for (size_t other = block + 1; other < owned.size() && owned[other].begin < last.end; ++other) {
        has_most = has_most && last.intersect(owned[other]).size() <= mine;
      }
      most.end = std::max(next, has_most ? touched.end : touched.end - 1);
    }
    next = most.end;
    largest = std::max(largest, most.size());
  }
  dim.follows = 10 * largest * static_cast<int64_t>(owned.size()) <= 13 * cells.count();
}

const IoPlan::Part& IoPlan::part(const Dim& dim, int64_t rank) const {
  return dim.parts[dim.cut() ? static_cast<size_t>(spec_->block_index(dim.spec_dim, rank)) : 0];
}

/// Counts the ranks that would read the same cells: which one this is, and how many there are.
std::pair<int64_t, int64_t> IoPlan::turn(int64_t rank) const {
  int64_t mine = 0, all = 1;
  for (const Dim& dim : dims_) {
    if (!dim.cut() || dim.follows) continue;
    const auto blocks = static_cast<int64_t>(dim.parts.size());
    mine = mine * blocks + spec_->block_index(dim.spec_dim, rank);
    all *= blocks;
  }
  for (const int64_t mesh_dim : copies_) {
    mine = mine * spec_->mesh()->size(mesh_dim) + spec_->mesh()->coordinate(rank, mesh_dim);
    all *= spec_->mesh()->size(mesh_dim);
  }
  return {mine, all};
}

/// Into how many parts a box of `cells` cells is divided along each dim among the ranks that take turns: the
/// longest dim first.
std::vector<int64_t> IoPlan::shares(const std::vector<int64_t>& cells) const {
  std::vector<size_t> order(cells.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cells[a] > cells[b]; });
  std::vector<int64_t> parts(cells.size(), 1);
  int64_t left = turn(0).second;
  for (const size_t dim : order) {
    parts[dim] = std::clamp<int64_t>(cells[dim], 1, left);
    left /= parts[dim];
  }
  return parts;
}

/// Cells of the rank that reads most in a round.
int64_t IoPlan::largest_share() const {
  std::vector<int64_t> cells;
  for (const Dim& dim : dims_) {
    int64_t largest = dim.round_cells;
    if (dim.follows) {
      largest = 0;
      for (const Part& part : dim.parts) largest = std::max(largest, part.most.size());
    }
    cells.push_back(largest);
  }
  const std::vector<int64_t> parts = shares(cells);
  int64_t share = 1;
  for (size_t d = 0; d < cells.size(); ++d) share *= (cells[d] + parts[d] - 1) / parts[d];
  return share;
}

int64_t IoPlan::round_bytes(size_t element_size) const {
  auto read = static_cast<int64_t>(element_size) * largest_share(), needed = static_cast<int64_t>(element_size);
  for (size_t d = 0; d < dims_.size(); ++d) {
    const ChunkCells& cells = grid_[d];
    const int64_t rows = std::min(cells.slice().count, cells.chunk_extent() / cells.slice().step + 1);
    int64_t largest = 0;
    for (const Part& part : dims_[d].parts) largest = std::max(largest, part.rows.size());
    read *= std::min(rows, cells.chunk_extent());
    needed *= std::min(largest, rows * dims_[d].round_cells);
  }
  return 2 * (read + needed);  // each once as it was read, and once on its way
}

/// Rounds are boxes of whole cells: first along dims that no rank divides, then along the others, until a round fits or
/// a rank reads one chunk.
void IoPlan::choose_rounds(size_t element_size) {
  if (!shared_) return;
  std::vector<Dim*> order;
  for (const bool cut : {false, true}) {
    for (Dim& dim : dims_) {
      if (dim.cut() == cut) order.push_back(&dim);
    }
  }
  for (Dim* dim : order) {
    while (dim->round_cells > 1 && round_bytes(element_size) > kRoundBytes && largest_share() > 1) {
      dim->follows = false;  // in a part of the dim only some ranks would read
      dim->round_cells = (dim->round_cells + 1) / 2;
      // Every rank reads as many, where that does not make it longer.
      const int64_t ranks = turn(0).second;
      if (dim->round_cells > ranks) dim->round_cells -= dim->round_cells % ranks;
    }
  }
  for (size_t d = 0; d < dims_.size(); ++d) {
    rounds_ *= (grid_[d].count() + dims_[d].round_cells - 1) / dims_[d].round_cells;
  }
}

Box IoPlan::cells_of_round(int64_t round) const {
  Box cells = all_cells(grid_);
  for (auto d = static_cast<int64_t>(dims_.size()) - 1; d >= 0; --d) {
    const int64_t size = dims_[static_cast<size_t>(d)].round_cells, all = cells[d].end;
    const int64_t count = std::max<int64_t>(1, (all + size - 1) / size), begin = round % count * size;
    round /= count;
    cells[d] = {begin, std::min(all, begin + size)};
  }
  return cells;
}

Box IoPlan::cells_read(int64_t round, int64_t rank) const {
  Box cells = cells_of_round(round);
  for (size_t d = 0; d < dims_.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (dims_[d].follows) cells[dim] = cells[dim].intersect(part(dims_[d], rank).most);
  }
  const std::vector<int64_t> parts = shares(cells.shape());
  int64_t mine = turn(rank).first;
  for (size_t d = 0; d < dims_.size(); ++d) {
    Interval& range = cells[static_cast<int64_t>(d)];
    const int64_t place = mine % parts[d], size = range.size();
    mine /= parts[d];
    range = {range.begin + size * place / parts[d], range.begin + size * (place + 1) / parts[d]};
  }
  if (mine > 0) cells[0].end = cells[0].begin;  // more ranks than cells
  return cells;
}

Box IoPlan::needs(int64_t rank) const {
  Box rows;
  for (const Dim& dim : dims_) rows.push_back(part(dim, rank).rows);
  return rows;
}

Box IoPlan::needs(int64_t round, int64_t rank) const {
  return needs(rank).intersect(rows_of(grid_, cells_of_round(round)));
}

}  // namespace moonhalo::io
