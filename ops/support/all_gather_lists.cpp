// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/all_gather_lists.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {

GatheredLists all_gather_lists(const at::Tensor& mine, const MeshPtr& mesh, const std::vector<int64_t>& mesh_dims) {
  int64_t blocks = 1, block = 0;
  for (const int64_t m : mesh_dims) {
    blocks *= mesh->size(m);
    block = block * mesh->size(m) + mesh->coordinate(m);
  }
  if (blocks == 1) return {mine, 0};
  const TrafficScope moving(Traffic::kDataDependent);
  Layout counted(mesh, {blocks});
  counted.cuts[0] = {mesh_dims, std::vector<int64_t>(blocks, 1)};
  at::Tensor counts = at::zeros({blocks}, at::kLong);
  counts[block] = mine.size(0);
  counts = CutGroup(intern(std::move(counted)), 0).all_reduce(counts.to(mine.device())).cpu();
  const std::vector<int64_t> sizes(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + blocks);
  std::vector<int64_t> shape = mine.sizes().vec();
  shape[0] = c10::sum_integers(sizes);
  Layout layout(mesh, shape);
  layout.cuts[0] = {mesh_dims, sizes};
  const SpecPtr from = intern(std::move(layout));
  return {redistribute_local(mine.contiguous(), from, replicated(mesh, shape)), from->offsets()[0]};
}

}  // namespace moonhalo
