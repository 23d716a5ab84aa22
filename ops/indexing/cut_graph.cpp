// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/indexing/cut_graph.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/size_text.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {

GraphCut cut_graph(const at::Tensor& edges, const std::vector<int64_t>& sizes) {
  TORCH_CHECK_VALUE(!is_shard_tensor(edges), "cut_graph: the edges are a ShardTensor\n  have  ",
                    spec(edges)->to_string(),
                    "\n  fix   give the whole list of edges, the same on every rank (full_tensor)");
  TORCH_CHECK_VALUE(edges.dim() == 2 && edges.size(0) == 2 && edges.scalar_type() == at::kLong,
                    "cut_graph: edges of shape ", shape_string(edges.sizes()), " and type ", edges.scalar_type(),
                    "\n  have  ", shape_string(edges.sizes()),
                    "\n  fix   give int64 numbers of nodes [2, E]: sources, targets");
  TORCH_CHECK_VALUE(!sizes.empty() && *std::min_element(sizes.begin(), sizes.end()) >= 0, "cut_graph: blocks of ",
                    sizes_text(sizes), " nodes\n  fix   give the rows of each block, none below 0");
  std::vector<int64_t> ends(sizes.size());
  std::partial_sum(sizes.begin(), sizes.end(), ends.begin());
  if (edges.numel() > 0) {
    const int64_t low = edges.min().item<int64_t>(), high = edges.max().item<int64_t>();
    TORCH_CHECK_INDEX(low >= 0 && high < ends.back(), "cut_graph: an edge names node ", low < 0 ? low : high, " of ",
                      ends.back(), "\n  have  blocks of ", sizes_text(sizes),
                      " nodes\n  fix   give numbers of nodes from 0 on");
  }
  const at::Tensor block =
      at::searchsorted(at::tensor(ends, edges.options()), edges.select(0, 1).contiguous(), /*out_int32=*/false, true);
  const at::Tensor counts = at::bincount(block, {}, static_cast<int64_t>(sizes.size())).cpu();
  return {at::argsort(block, /*stable=*/true, 0, /*descending=*/false),
          {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()}};
}

}  // namespace moonhalo
