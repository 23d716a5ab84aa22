// SPDX-License-Identifier: Apache-2.0
// Says which edges of a graph go with which nodes.
#include "moonhalo/ops/indexing/cut_graph.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.cut_graph(edges, cut) -> Tensor
///   Orders the edges of a graph so that each block of edges has those whose targets are in the same block of nodes.
///   edges       Tensor      int64 [2, E], plain, the same on all ranks: sources, then targets
///   cut         {integer}|Tensor   rows of each block of nodes, or a ShardTensor whose dim 0 is cut as the nodes are
///   returns     Tensor      int64 [E], the numbers of the edges in their new order; a second result is the list of
///     edges of each block, for mh.Shard(0, sizes)
///   collective  no
///   errors      ValueError: a target is not a node, or the nodes are not cut
///   example
///     local edges = mh.tensor{{0, 1, 2, 3}, {3, 0, 1, 2}}
///     local order, sizes = mh.cut_graph(edges, {2, 2})
///     order:tolist(), sizes    --> {1, 2, 0, 3}  {2, 2}
int cut_graph_function(lua_State* lua) {
  const at::Tensor& edges = check_tensor(lua, 1);
  const at::Tensor* nodes = to_tensor(lua, 2);
  if (nodes != nullptr) {
    TORCH_CHECK_VALUE(is_shard_tensor(*nodes) && nodes->dim() > 0, "cut_graph: the nodes are not cut\n  have  ",
                      describe(*nodes), "\n  fix   give a ShardTensor of the nodes, or the rows of each block");
  }
  const GraphCut cut = cut_graph(edges, nodes != nullptr ? spec(*nodes)->block_sizes(0) : check_int_list(lua, 2));
  push(lua, cut.order);
  push(lua, cut.sizes);
  return 2;
}

const luaL_Reg kGraphFunctions[] = {{"cut_graph", guard<cut_graph_function>}, {nullptr, nullptr}};

void open_cut_graph(lua_State* lua) { add_functions(lua, kGraphFunctions); }

const Binding cut_graph_binding{"cut_graph", open_cut_graph};

}  // namespace
}  // namespace moonhalo::scripting
