// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/testing/draw.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "moonhalo/engine/base/splitmix.h"

namespace moonhalo::testing {
namespace {

Placement draw_cut(SeededNumbers& draw, const at::Tensor& tensor, int64_t blocks, std::vector<bool>& cut) {
  const int64_t dim = draw.below(tensor.dim());
  // Sizes are those of the first cut of a dim; a second one divides each block evenly.
  std::vector<int64_t> sizes;
  if (!cut[dim]) sizes = draw_sizes(draw, tensor.size(dim), blocks);
  cut[dim] = true;
  return shard(dim, std::move(sizes));
}

std::vector<Placement> draw_for(SeededNumbers& draw, const at::Tensor& tensor, const std::vector<int64_t>& mesh_shape,
                                bool must_be_cut) {
  if (tensor.dim() == 0 || (!must_be_cut && draw.percent(20))) return {};
  std::vector<Placement> placements;
  std::vector<bool> cut(tensor.dim());
  for (const int64_t blocks : mesh_shape) {
    const int64_t kind = must_be_cut && placements.empty() ? 0 : draw.below(10);
    if (kind < 6) {
      placements.push_back(draw_cut(draw, tensor, blocks, cut));
    } else if (kind < 8 || !(tensor.is_floating_point() || tensor.is_complex())) {
      placements.push_back(replicate());
    } else {
      placements.push_back(partial());
    }
  }
  return placements;
}

}  // namespace

int64_t SeededNumbers::below(int64_t n) {
  state_ = splitmix64(state_);
  return static_cast<int64_t>(state_ % static_cast<uint64_t>(n));
}

std::vector<int64_t> draw_sizes(SeededNumbers& draw, int64_t extent, int64_t blocks) {
  const int64_t kind = draw.below(10);
  if (kind < 2) return balanced_sizes(extent, blocks);
  std::vector<int64_t> sizes(blocks, 0);
  if (kind < 3) {
    sizes[draw.below(blocks)] = extent;
    return sizes;
  }
  std::vector<int64_t> borders(blocks - 1);
  for (int64_t& border : borders) border = draw.below(extent + 1);
  std::sort(borders.begin(), borders.end());
  borders.push_back(extent);
  std::adjacent_difference(borders.begin(), borders.end(), sizes.begin());
  return sizes;
}

std::vector<std::vector<Placement>> draw_placements(SeededNumbers& draw, const std::vector<at::Tensor>& tensors,
                                                    const std::vector<int64_t>& mesh_shape, size_t first) {
  std::vector<std::vector<Placement>> placements;
  for (size_t i = 0; i < tensors.size(); ++i)
    placements.push_back(draw_for(draw, tensors[i], mesh_shape, /*must_be_cut=*/i == first));
  return placements;
}

static std::string source_of(const Placement& placement, const PlacementNames& names) {
  std::ostringstream out;
  if (placement.is_shard()) {
    out << (placement.stored ? names.stored : names.shard) << "(" << placement.dim;
    for (size_t k = 0; k < placement.sizes.size(); ++k) out << (k > 0 ? ", " : ", {") << placement.sizes[k];
    out << (placement.sizes.empty() ? ")" : "})");
  } else if (placement.is_partial()) {
    const std::string op = placement.op == ReduceOp::kSum ? "" : '"' + std::string(name(placement.op)) + '"';
    out << names.partial << "(" << (op.empty() || names.op.empty() ? op : names.op + "(" + op + ")") << ")";
  } else {
    out << names.replicate << "()";
  }
  return out.str();
}

std::string source_of(const std::vector<std::vector<Placement>>& placements, const PlacementNames& names) {
  std::string text = "{";
  for (size_t i = 0; i < placements.size(); ++i) {
    text += i > 0 ? ", {" : "{";
    for (size_t m = 0; m < placements[i].size(); ++m) text += (m > 0 ? ", " : "") + source_of(placements[i][m], names);
    text += "}";
  }
  return text + "}";
}

}  // namespace moonhalo::testing
