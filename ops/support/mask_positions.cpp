// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/mask_positions.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

int64_t front_dim(const ShardSpec& spec, int64_t first, int64_t last) {
  for (int64_t d = first; d < last; ++d) {
    if (spec.global_shape()[d] > 1) return d;
  }
  return first;
}

const Cut kUncut;

}  // namespace

SpecPtr cut_in_front(const SpecPtr& spec, int64_t first, int64_t last) {
  if (first == last) return spec;
  const int64_t front = front_dim(*spec, first, last);
  std::vector<int64_t> mesh_dims;
  bool elsewhere = false;
  for (int64_t d = first; d < last; ++d) {
    const auto& dims = spec->cut(d).mesh_dims;
    mesh_dims.insert(mesh_dims.end(), dims.begin(), dims.end());
    elsewhere |= d != front && spec->is_cut(d);
  }
  if (!elsewhere) return spec;
  std::sort(mesh_dims.begin(), mesh_dims.end());
  int64_t blocks = 1;
  for (const int64_t m : mesh_dims) blocks *= spec->mesh()->size(m);
  Layout layout = spec->layout();
  for (int64_t d = first; d < last; ++d) layout.cuts[d] = {};
  layout.cuts[front] = {std::move(mesh_dims), balanced_sizes(spec->global_shape()[front], blocks)};
  return intern(std::move(layout));
}

const Cut& front_cut(const ShardSpec& spec, int64_t first, int64_t last) {
  return first == last ? kUncut : spec.cut(front_dim(spec, first, last));
}

int64_t block_of(const DeviceMesh& mesh, const Cut& cut, int64_t rank) {
  int64_t block = 0;
  for (const int64_t m : cut.mesh_dims) block = block * mesh.size(m) + mesh.coordinate(rank, m);
  return block;
}

std::vector<int64_t> counts_of_blocks(const ShardSpec& spec, const Cut& cut, int64_t mine, at::Device device) {
  const DeviceMesh& mesh = *spec.mesh();
  const TrafficScope moving(Traffic::kDataDependent);
  at::Tensor counts = at::zeros({static_cast<int64_t>(cut.sizes.size())}, at::dtype(at::kLong).device(device));
  counts[block_of(mesh, cut, mesh.rank())] = mine;
  for (const int64_t m : cut.mesh_dims) mesh.group(m).all_reduce(counts);
  counts = counts.cpu();
  const int64_t* data = counts.const_data_ptr<int64_t>();
  return {data, data + counts.numel()};
}

// From the last dim to the first: `rows` counts the true elements of each row of what remains; before an element stand
// those of its own row so far, of the rows before it in the block, and of the blocks before it.
TruePlaces true_places(const at::Tensor& mask, const ShardSpec& spec) {
  const DeviceMesh& mesh = *spec.mesh();
  const TrafficScope moving(Traffic::kDataDependent);
  at::Tensor rows = mask.to(at::kLong), places = at::zeros_like(rows);
  for (int64_t d = spec.ndim() - 1; d >= 0; --d) {
    at::Tensor before = rows.cumsum(d) - rows;
    rows = rows.sum(d);
    if (const Cut& cut = spec.cut(d)) {
      std::vector<int64_t> shape = rows.sizes().vec();
      shape.insert(shape.begin(), static_cast<int64_t>(cut.sizes.size()));
      at::Tensor blocks = at::zeros(shape, rows.options());
      const int64_t mine = block_of(mesh, cut, mesh.rank());
      blocks.select(0, mine).copy_(rows);
      for (const int64_t m : cut.mesh_dims) mesh.group(m).all_reduce(blocks);
      before = before + blocks.narrow(0, 0, mine).sum(0).unsqueeze(d);
      rows = blocks.sum(0);
    }
    while (before.dim() < places.dim()) before = before.unsqueeze(-1);
    places = places + before;
  }
  return {std::move(places), rows.item<int64_t>()};
}

}  // namespace moonhalo
