// SPDX-License-Identifier: Apache-2.0
// Says which edges of a graph go with which nodes.
#include "moonhalo/ops/indexing/cut_graph.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.cut_graph(edges, cut): edges [2, E] int64, plain: sources, targets. cut: the rows of each block of nodes, or a
/// ShardTensor whose first dim is cut as the nodes are. Returns the numbers of the edges [E] in an order in which those
/// whose targets are in one block follow one another, and how many each block has, for Shard(0, sizes). Not collective.
int cut_graph_function(lua_State* lua) {
  const at::Tensor& edges = check_tensor(lua, 1);
  const at::Tensor* nodes = to_tensor(lua, 2);
  if (nodes != nullptr) {
    TORCH_CHECK_VALUE(is_shard_tensor(*nodes) && nodes->dim() > 0, "cut_graph: the nodes are not cut\n  have  ", describe(*nodes),
                      "\n  fix   give a ShardTensor of the nodes, or the rows of each block");
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
