// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/share_blocks.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo::io {

Box held_box(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return {{0, 1}};
  if (is_shard_tensor(tensor)) return block_box(*spec(tensor), spec(tensor)->mesh()->rank());
  Box whole;
  for (const int64_t size : tensor.sizes()) whole.push_back({0, size});
  return whole;
}

void fill_from_blocks(const MeshPtr& mesh, const at::Tensor& target, const std::vector<Box>& owned,
                      const at::Tensor& block) {
  const std::vector<int64_t> shape = target.dim() == 0 ? std::vector<int64_t>{1} : target.sizes().vec();
  const Box own = held_box(target);
  std::vector<int64_t> edges;
  for (const Interval& rows : own) edges.insert(edges.end(), {rows.begin, rows.end});
  const auto width = static_cast<int64_t>(edges.size());
  const at::Tensor all = mesh->group().facts_of_all(at::tensor(edges, at::kLong));
  const auto* edge = all.const_data_ptr<int64_t>();
  const auto required = [&](int64_t rank) {
    Box box;
    for (int64_t i = rank * width; i < (rank + 1) * width; i += 2) box.push_back({edge[i], edge[i + 1]});
    return requests_for(box);
  };
  const IntervalMap map(
      Ownership{mesh, shape, [&](int64_t rank) { return owned[rank]; }, [](int64_t, int64_t) { return true; }},
      required);
  const at::NoGradGuard no_grad;
  HaloExchange exchange;
  exchange.add_gather(map, block.dim() == 0 ? block.reshape({1}) : block);
  exchange.start();
  exchange.wait();
  const at::Tensor held = is_shard_tensor(target) ? to_local(target) : target;
  held.copy_(exchange.gathered(0).reshape(held.sizes()));
  if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();
  if (is_shard_tensor(target)) block_was_written(shard_impl(target)->local());
}

}  // namespace moonhalo::io
