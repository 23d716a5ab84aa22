// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/box_grid.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace moonhalo {
namespace {

using Range = std::pair<int64_t, int64_t>;  // begin, end
constexpr const char* kFix =
    "\n  fix   give one box for each rank, so that the boxes form a grid: `begin` counts owned rows from 0, without "
    "ghosts";

Range interval_of(const OwnedBox& box, size_t dim) { return {box.begin[dim], box.begin[dim] + box.extent[dim]}; }

std::string rows_text(const Range& rows) {
  return "rows " + std::to_string(rows.first) + " to " + std::to_string(rows.second);
}

bool share_rows(const OwnedBox& a, const OwnedBox& b) {
  for (size_t d = 0; d < a.begin.size(); ++d) {
    const Range one = interval_of(a, d), other = interval_of(b, d);
    if (std::max(one.first, other.first) >= std::min(one.second, other.second)) return false;
  }
  return true;
}

void check_no_overlap(const std::vector<OwnedBox>& boxes) {
  for (size_t a = 0; a < boxes.size(); ++a) {
    for (size_t b = a + 1; b < boxes.size(); ++b) {
      if (!share_rows(boxes[a], boxes[b])) continue;
      std::string both[2];
      for (size_t d = 0; d < boxes[a].begin.size(); ++d) {
        const char* between = d == 0 ? "" : ", ";
        both[0] += between + rows_text(interval_of(boxes[a], d));
        both[1] += between + rows_text(interval_of(boxes[b], d));
      }
      TORCH_CHECK_VALUE(false, "boxes: ranks ", a, " and ", b, " own the same elements\n  have  rank ", a, ": ",
                        both[0], "; rank ", b, ": ", both[1], kFix);
    }
  }
}

/// The intervals that occur along one dim, in order, with the ranks that own each.
using Slabs = std::map<Range, std::vector<size_t>>;

/// Checks that the intervals follow each other from 0 to `global`.
void check_chain(const Slabs& slabs, size_t dim, int64_t global) {
  int64_t begin = 0, end = 0;
  size_t before = 0;
  for (const auto& [rows, ranks] : slabs) {
    TORCH_CHECK_VALUE(rows.first <= end, "boxes: no rank owns ", rows_text({end, rows.first}), " of dim ", dim,
                      "\n  have  rank ", ranks[0], ": ", rows_text(rows), kFix);
    TORCH_CHECK_VALUE(rows.first > begin || begin == end, "boxes: the boxes form no grid along dim ", dim, ": ranks ",
                      before, " and ", ranks[0], " begin at one row with different extents\n  have  rank ", before,
                      ": ", rows_text({begin, end}), "; rank ", ranks[0], ": ", rows_text(rows), kFix);
    TORCH_CHECK_VALUE(rows.first == end, "boxes: the boxes form no grid along dim ", dim, "\n  have  rank ", ranks[0],
                      ": ", rows_text(rows), "; rank ", before, " ends at ", end, kFix);
    std::tie(begin, end) = rows;
    before = ranks[0];
  }
  TORCH_CHECK_VALUE(end >= global, "boxes: no rank owns ", rows_text({end, global}), " of dim ", dim,
                    "\n  have  the last box, rank ", before, "'s, ends at ", end, "; global is ", global, kFix);
  TORCH_CHECK_VALUE(end == global, "boxes: the box of rank ", before, " reaches beyond the field along dim ", dim,
                    "\n  have  it ends at ", end, "; global is ", global, kFix);
}

/// The number of ranks that own each block of the dim, along all others. Blocks of the same empty interval are in
/// one slab.
size_t ranks_per_block(const Slabs& slabs, size_t dim) {
  size_t count = 0, owner = 0;
  for (const auto& [rows, ranks] : slabs) {
    if (rows.first == rows.second) continue;
    TORCH_CHECK_VALUE(count == 0 || ranks.size() == count, "boxes: the boxes form no grid along dim ", dim,
                      "\n  have  ", count, " ranks own the rows of rank ", owner, ", ", ranks.size(), " those of rank ",
                      ranks[0], kFix);
    count = ranks.size();
    owner = ranks[0];
  }
  return count == 0 ? slabs.begin()->second.size() : count;
}

struct Dim {
  std::vector<int64_t> sizes;
  std::map<Range, std::pair<int64_t, int64_t>> blocks;  // first block and number of blocks of an interval
};

/// By the boxes of `ranks`.
Dim divide(const std::vector<OwnedBox>& boxes, const std::vector<size_t>& ranks, size_t dim, int64_t global) {
  Slabs slabs;
  for (const size_t rank : ranks) slabs[interval_of(boxes[rank], dim)].push_back(rank);
  check_chain(slabs, dim, global);
  const size_t each = ranks_per_block(slabs, dim);
  Dim result;
  for (const auto& [rows, ranks] : slabs) {
    TORCH_CHECK_VALUE(ranks.size() % each == 0, "boxes: the boxes form no grid along dim ", dim, "\n  have  ",
                      ranks.size(), " empty boxes at row ", rows.first, ", where ", each, " ranks own each block",
                      kFix);
    const auto count = static_cast<int64_t>(ranks.size() / each);
    result.blocks[rows] = {static_cast<int64_t>(result.sizes.size()), count};
    result.sizes.insert(result.sizes.end(), count, rows.second - rows.first);
  }
  return result;
}

/// Places of the ranks. Those with the same (empty) box take theirs in the order of ranks.
std::vector<int64_t> places(const std::vector<OwnedBox>& boxes, const std::vector<Dim>& dims) {
  std::map<std::vector<Range>, int64_t> taken;
  std::vector<int64_t> result;
  for (const OwnedBox& box : boxes) {
    std::vector<Range> key;
    for (size_t d = 0; d < dims.size(); ++d) key.push_back(interval_of(box, d));
    int64_t turn = taken[key]++, place = 0, stride = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      const auto [first, count] = dims[d].blocks.at(key[d]);
      place += (first + turn % count) * stride;
      turn /= count;
      stride *= static_cast<int64_t>(dims[d].sizes.size());
    }
    result.push_back(place);
  }
  return result;
}

int64_t extent_of(const std::vector<OwnedBox>& boxes, const std::vector<size_t>& ranks, size_t dim) {
  int64_t end = 0;
  for (const size_t rank : ranks) end = std::max(end, interval_of(boxes[rank], dim).second);
  return end;
}

bool is_empty(const OwnedBox& box) { return std::find(box.extent.begin(), box.extent.end(), 0) != box.extent.end(); }

/// Moves the boxes without elements to where they make a grid of those that have some: they become further blocks, of
/// no rows, of one dim that is cut if possible. In a line of blocks each stands behind that of the rank before it.
std::vector<OwnedBox> with_empty_moved(std::vector<OwnedBox> boxes, const std::vector<size_t>& full,
                                       const std::vector<int64_t>& global) {
  const size_t ndim = global.size();
  std::vector<Dim> dims;
  for (size_t d = 0; d < ndim; ++d) dims.push_back(divide(boxes, full, d, global[d]));
  const auto blocks_of = [&](size_t d) { return dims[d].sizes.size(); };
  std::vector<size_t> order(ndim);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks_of(a) > 1 && blocks_of(b) == 1; });
  const auto fits = [&](size_t d) { return boxes.size() % (full.size() / blocks_of(d)) == 0; };
  const auto found = std::find_if(order.begin(), order.end(), fits);
  TORCH_CHECK_VALUE(
      found != order.end(), "boxes: ", boxes.size(), " ranks form no grid around ", full.size(),
      " boxes that have elements\n  have  ", boxes.size() - full.size(),
      " ranks without any\n  fix   give the boxes to mh_boxes, or let the number of ranks be a multiple of those "
      "along one dim");
  const size_t dim = *found;
  size_t turn = 0;
  int64_t end_before = 0;
  for (OwnedBox& box : boxes) {
    if (!is_empty(box)) {
      end_before = interval_of(box, dim).second;
      continue;
    }
    box.extent[dim] = 0;
    box.begin[dim] = full.size() == blocks_of(dim) ? end_before : global[dim];
    size_t number = turn++;
    for (size_t d = ndim; d-- > 0;) {
      if (d == dim) continue;
      const size_t block = number % blocks_of(d);
      number /= blocks_of(d);
      box.begin[d] =
          std::accumulate(dims[d].sizes.begin(), dims[d].sizes.begin() + static_cast<int64_t>(block), int64_t{0});
      box.extent[d] = dims[d].sizes[block];
    }
  }
  return boxes;
}

void check_complete(const std::vector<int64_t>& place, const std::vector<Dim>& dims) {
  int64_t blocks = 1;
  for (const Dim& dim : dims) blocks *= static_cast<int64_t>(dim.sizes.size());
  std::vector<int64_t> sorted = place;
  std::sort(sorted.begin(), sorted.end());
  const bool each_once = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  TORCH_CHECK_VALUE(blocks == static_cast<int64_t>(place.size()) && each_once,
                    "boxes: the boxes form no grid\n  have  ", place.size(), " boxes, which divide the dims into ",
                    blocks, " blocks", kFix);
}

std::vector<int64_t> whole_of(const std::vector<OwnedBox>& boxes, const std::vector<size_t>& ranks,
                              const std::vector<int64_t>& global) {
  std::vector<int64_t> whole = global;
  if (global.empty()) {
    for (size_t d = 0; d < boxes[0].begin.size(); ++d) whole.push_back(extent_of(boxes, ranks, d));
  }
  return whole;
}

BoxGrid divide_all(const std::vector<OwnedBox>& boxes, const std::vector<size_t>& ranks,
                   const std::vector<int64_t>& global) {
  BoxGrid grid{global, {}, {}};
  std::vector<Dim> dims;
  for (size_t d = 0; d < global.size(); ++d) {
    dims.push_back(divide(boxes, ranks, d, global[d]));
    grid.sizes.push_back(dims.back().sizes);
  }
  grid.place = places(boxes, dims);
  check_complete(grid.place, dims);
  return grid;
}

/// A field of no rows along `cut`.
BoxGrid without_elements(int64_t ranks, const std::vector<int64_t>& global, int64_t cut) {
  BoxGrid grid{global, {}, std::vector<int64_t>(ranks)};
  std::iota(grid.place.begin(), grid.place.end(), int64_t{0});
  for (const int64_t extent : global) grid.sizes.push_back({extent});
  grid.sizes[cut].assign(ranks, 0);
  return grid;
}

}  // namespace

std::vector<int64_t> BoxGrid::mesh_shape() const {
  std::vector<int64_t> shape;
  for (const auto& blocks : sizes) {
    if (blocks.size() > 1) shape.push_back(static_cast<int64_t>(blocks.size()));
  }
  return shape.empty() ? std::vector<int64_t>{1} : shape;
}

SpecPtr BoxGrid::spec_on(const MeshPtr& mesh) const {
  std::vector<Placement> placements;
  size_t dim = 0;
  bool fits = mesh->size() == static_cast<int64_t>(place.size()) && std::is_sorted(place.begin(), place.end());
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (mesh->size(m) == 1) {
      placements.push_back(replicate());
      continue;
    }
    while (dim < sizes.size() && sizes[dim].size() == 1) ++dim;
    if (dim == sizes.size() || static_cast<int64_t>(sizes[dim].size()) != mesh->size(m)) {
      fits = false;
      break;
    }
    placements.push_back(shard(static_cast<int64_t>(dim), sizes[dim]));
    ++dim;
  }
  const auto cut_later = [](const auto& blocks) { return blocks.size() > 1; };
  fits = fits && std::none_of(sizes.begin() + static_cast<int64_t>(dim), sizes.end(), cut_later);
  if (!fits) {
    TORCH_CHECK_VALUE(false, "boxes: they are not the blocks of ", mesh->to_string(), "\n  have  ",
                      c10::Join(" x ", mesh_shape()), " boxes; by rank, in row-major order, number ",
                      c10::Join(", ", place),
                      "\n  fix   make the mesh of that shape, of ranks in that order: world.split(0, number)");
  }
  return make_spec(mesh, global, placements);
}

BoxGrid grid_of(const std::vector<OwnedBox>& boxes, const std::vector<int64_t>& global) {
  TORCH_CHECK_VALUE(!boxes.empty(), "boxes: there are none");
  const size_t ndim = boxes[0].begin.size();
  for (size_t rank = 0; rank < boxes.size(); ++rank) {
    const OwnedBox& box = boxes[rank];
    TORCH_CHECK_VALUE(box.begin.size() == ndim && box.extent.size() == ndim, "boxes: ranks 0 and ", rank,
                      " have boxes of different numbers of dims\n  have  ", ndim, " and ", box.begin.size(), kFix);
    for (size_t d = 0; d < ndim; ++d) {
      TORCH_CHECK_VALUE(box.begin[d] >= 0 && box.extent[d] >= 0, "boxes: negative numbers in the box of rank ", rank,
                        "\n  have  begin ", box.begin[d], ", extent ", box.extent[d], " along dim ", d, kFix);
    }
  }
  check_no_overlap(boxes);
  std::vector<size_t> all(boxes.size()), full;
  std::iota(all.begin(), all.end(), size_t{0});
  std::copy_if(all.begin(), all.end(), std::back_inserter(full), [&](size_t rank) { return !is_empty(boxes[rank]); });
  const auto as_given = [&] { return divide_all(boxes, all, whole_of(boxes, all, global)); };
  const auto in_order = [](const BoxGrid& grid) { return std::is_sorted(grid.place.begin(), grid.place.end()); };
  if (full.size() == all.size()) return as_given();
  // A rank without elements need not say where it is.
  if (full.empty()) {
    const std::vector<int64_t> whole = whole_of(boxes, all, global);
    const auto empty = std::find(whole.begin(), whole.end(), 0);
    if (empty == whole.end()) return as_given();
    return without_elements(static_cast<int64_t>(all.size()), whole, empty - whole.begin());
  }
  std::optional<BoxGrid> given;
  try {
    given = as_given();
    if (in_order(*given)) return *given;
  } catch (const c10::ValueError&) {
    const std::vector<int64_t> whole = whole_of(boxes, full, global);
    return divide_all(with_empty_moved(boxes, full, whole), all, whole);
  }
  // In the order of ranks, if the same grid can be had so.
  try {
    BoxGrid moved = divide_all(with_empty_moved(boxes, full, given->global), all, given->global);
    if (in_order(moved) && moved.mesh_shape() == given->mesh_shape()) return moved;
  } catch (const c10::ValueError&) {  // then they are where they say
  }
  return *given;
}

}  // namespace moonhalo
