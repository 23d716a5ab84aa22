// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/halo_split.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/box_text.h"

namespace moonhalo {
namespace {

// The first of `outputs` for which `holds`, which once it does goes on to hold; their end where there is none.
template <typename Holds>
int64_t first_where(Interval outputs, const Holds& holds) {
  while (!outputs.empty()) {
    const int64_t middle = (outputs.begin + outputs.end) / 2;
    if (holds(middle)) {
      outputs.end = middle;
    } else {
      outputs.begin = middle + 1;
    }
  }
  return outputs.begin;
}

// The first of `outputs` from which on none reads a row of the domain before the owned ones. A range of outputs reads
// no less than a part of it, though windows may move back where they are pushed off an end of the domain.
int64_t first_inner(const HaloReach::Dim& dim, const Interval& outputs, const Interval& owned) {
  return first_where(outputs, [&](int64_t output) {
    return std::max<int64_t>(dim.reads({output, outputs.end}).begin, 0) >= owned.begin;
  });
}

// The first of `outputs` that reads a row of the domain beyond the owned ones.
int64_t end_inner(const HaloReach::Dim& dim, const Interval& outputs, const Interval& owned, int64_t extent) {
  return first_where(outputs, [&](int64_t output) {
    return std::min(dim.reads({outputs.begin, output + 1}).end, extent) > owned.end;
  });
}

// The outputs of a block that a box of input rows adds to; of plain windows all.
HaloSplit::Part fed_part(const HaloReach& reach, const Box& block, const Box& rows) {
  HaloSplit::Part part{block, rows};
  for (const auto& [dim, reads, feeds] : reach.cut) {
    if (feeds) part.output[dim] = feeds(rows[dim]).intersect(block[dim]);
  }
  return part;
}

// By plain windows, the outputs of the block that read a fetched box: near one of its edges.
HaloSplit::Part edge_part(const HaloReach& reach, const HaloReach::Dim& across, bool low, HaloSplit::Part block,
                          const Box& halo_rows) {
  const Interval owned = block.input[across.dim];
  Interval& outputs = block.output[across.dim];
  if (halo_rows.empty()) {
    outputs.end = outputs.begin;
  } else if (low) {
    outputs.end = first_inner(across, outputs, owned);
  } else {
    outputs.begin = end_inner(across, outputs, owned, reach.input->global_shape()[across.dim]);
  }
  for (const auto& [dim, reads, feeds] : reach.cut) {
    if (dim >= across.dim) block.input[dim] = reads(block.output[dim]);
  }
  return block;
}

// The rows of one dim in box i of a rank which has the rows `own` and the outputs `block` there.
Interval borrowed_rows(const HaloReach& reach, size_t i, const HaloReach::Dim& one, const Interval& own,
                       const Interval& block) {
  const int64_t across = reach.cut[i / 2].dim;
  const bool low = i % 2 == 0;
  const Interval required = one.reads(block).intersect({0, reach.input->global_shape()[one.dim]});
  Interval rows = one.dim < across ? own.intersect(required) : required;
  if (one.dim == across && low) rows.end = std::min(own.begin, required.end);
  if (one.dim == across && !low) rows.begin = std::max(own.end, required.begin);
  return required.empty() || rows.empty() ? Interval{0, 0} : rows;
}

}  // namespace

HaloReach reach_of(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows) {
  HaloReach reach{input, output, {}};
  const int64_t first = input->ndim() - static_cast<int64_t>(windows.size());
  for (int64_t d = first; d < input->ndim(); ++d) {
    if (!spans_ranks(input, d)) continue;
    const Window window = windows[d - first];
    reach.cut.push_back({d, [window](const Interval& outputs) { return window.input_read(outputs); }, {}});
    if (window.transposed) reach.cut.back().feeds = [window](const Interval& rows) { return window.outputs_fed(rows); };
  }
  return reach;
}

std::string HaloSplit::to_string() const {
  std::string text;
  const auto add = [&](const char* name, const Part& part) {
    text += name + box_string(part.output) + " reads " + box_string(part.input) + "\n";
  };
  if (interior) add("interior ", *interior);
  for (const Part& slab : slabs) add("slab ", slab);
  for (const Box& box : halo_rows) text += "fetched " + box_string(box) + "\n";
  return text;
}

std::vector<Box> halo_boxes(const HaloReach& reach, int64_t rank) {
  const Box owned = block_box(*reach.input, rank), block = block_box(*reach.output, rank);
  std::vector<Box> boxes;
  for (size_t i = 0; i < 2 * reach.cut.size(); ++i) {
    Box box = owned, nothing = owned;
    bool empty = false;
    for (const HaloReach::Dim& one : reach.cut) {
      box[one.dim] = borrowed_rows(reach, i, one, owned[one.dim], block[one.dim]);
      nothing[one.dim] = {0, 0};
      empty |= box[one.dim].empty();
    }
    boxes.push_back(empty ? nothing : box);
  }
  return boxes;
}

HaloMaps halo_maps(const HaloReach& reach, const SpecPtr& spec) {
  const int64_t me = spec->mesh()->rank();
  const std::vector<Box> halo_rows = halo_boxes(reach, me);
  HaloMaps maps;
  for (size_t i = 0; i < halo_rows.size(); ++i) {
    const auto along = [&](int64_t dim, const Interval& owned, const Interval& block) {
      for (const HaloReach::Dim& one : reach.cut) {
        if (one.dim == dim) return HaloRequest{borrowed_rows(reach, i, one, owned, block)};
      }
      return HaloRequest{owned};
    };
    Box none = block_box(*spec, me);
    for (const HaloReach::Dim& one : reach.cut) none[one.dim] = {0, 0};
    maps.push_back(std::make_shared<const IntervalMap>(spec, GridRequests{reach.output, along, none.shape()}));
  }
  const bool any = std::any_of(maps.begin(), maps.end(), [](const auto& map) { return map->exchanges(); });
  return any ? maps : HaloMaps{};
}

HaloSplit split_outputs(const HaloReach& reach, int64_t rank) {
  const Box owned = block_box(*reach.input, rank);
  HaloSplit split;
  split.halo_rows = halo_boxes(reach, rank);
  Box left = block_box(*reach.output, rank);  // the outputs that no slab has taken
  for (const HaloReach::Dim& across : reach.cut) {
    Interval& inner = left[across.dim];
    const Interval all = inner, own = owned[across.dim];
    inner.begin = first_inner(across, all, own);
    inner.end = end_inner(across, inner, own, reach.input->global_shape()[across.dim]);
    for (const Interval& outputs : {Interval{all.begin, inner.begin}, Interval{inner.end, all.end}}) {
      HaloSplit::Part slab{left, owned};
      slab.output[across.dim] = outputs;
      if (slab.output.empty()) continue;
      for (const auto& [dim, reads, feeds] : reach.cut) slab.input[dim] = reads(slab.output[dim]);
      split.slabs.push_back(std::move(slab));
    }
  }
  split.interior = {left, owned};
  return split;
}

HaloSplit split_inputs(const HaloReach& reach, int64_t rank) {
  const Box owned = block_box(*reach.input, rank), block = block_box(*reach.output, rank);
  HaloSplit split{fed_part(reach, block, owned), {}, halo_boxes(reach, rank)};
  for (size_t i = 0; i < split.halo_rows.size(); ++i) {
    const Box& halo_rows = split.halo_rows[i];
    const HaloReach::Dim& across = reach.cut[i / 2];
    split.slabs.push_back(across.feeds ? fed_part(reach, block, halo_rows)
                                       : edge_part(reach, across, i % 2 == 0, {block, owned}, halo_rows));
  }
  return split;
}

HaloSplit undivided(const Box& outputs, const Box& needed) { return {std::nullopt, {{outputs, needed}}, {needed}}; }

at::Tensor part(const Tile& tile, const Box& box) {
  at::Tensor result = tile.data;
  for (int64_t d = 0; d < box.ndim(); ++d) {
    if (box[d].size() == tile.box[d].size()) continue;
    result = result.narrow(d, box[d].empty() ? 0 : box[d].begin - tile.box[d].begin, box[d].size());
  }
  return result;
}

at::Tensor assemble(const Box& box, const std::vector<Tile>& tiles, const at::Scalar& fill) {
  for (const Tile& tile : tiles) {
    if (tile.box.intersect(box) == box) return part(tile, box);
  }
  Tile result{{}, box};
  std::vector<int64_t> shape = tiles[0].data.sizes().vec();
  for (int64_t d = 0; d < box.ndim(); ++d) {
    if (box[d].size() != tiles[0].box[d].size()) shape[d] = box[d].size();
  }
  result.data = at::empty(shape, tiles[0].data.options());
  int64_t known = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const Tile& tile : tiles) {
    const Box both = box.intersect(tile.box);
    if (both.empty()) continue;
    copies.emplace_back(part(result, both), part(tile, both));
    known += both.numel();
  }
  if (known < box.numel()) result.data.fill_(fill);
  for (auto& [to, from] : copies) to.copy_(from);
  return result.data;
}

void add_overlap(const Tile& sum, const Tile& addend) {
  const Box both = sum.box.intersect(addend.box);
  if (!both.empty()) part(sum, both).add_(part(addend, both));
}

}  // namespace moonhalo
