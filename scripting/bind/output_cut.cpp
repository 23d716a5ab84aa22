// SPDX-License-Identifier: Apache-2.0
// Sets where window operators put their outputs, and makes blocks equal again.
#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.set_output_cut(policy = nil) -> string
///   Which rank gets an output row of a convolution, pooling or nn.Unfold. "geometry": the rank that has the centre of
///   its window; "keep": at stride 1 blocks keep their numbers of rows; "rebalance": blocks are balanced. Padding, cat
///   and the gradients of slices, diagonals and x:unfold obey it, too: at the start only a block that new rows would
///   make far longer than the others makes the blocks balanced, with "keep" none. Slices and x:unfold themselves leave
///   rows where they are. Without an argument nothing changes.
///   policy      "geometry"|"keep"|"rebalance"?   "geometry" at the start
///   returns     "geometry"|"keep"|"rebalance"   the setting before
///   collective  over all ranks, which must give the same; without an argument no
///   errors      ValueError: another word
///   example
///     mh.set_output_cut("keep"), mh.set_output_cut("geometry")    --> geometry  keep
int set_output_cut_function(lua_State* lua) {
  if (lua_gettop(lua) == 0) {
    push(lua, std::string(name(output_cut())));
    return 1;
  }
  const OutputCut required = parse_output_cut(check_string(lua, 1));
  push(lua, std::string(name(set_output_cut(required, context(lua).world.get()))));
  return 1;
}

/// x:rebalance(dim = nil) -> Tensor
/// mh.rebalance(x, dim = nil) -> Tensor
///   The same tensor with blocks whose sizes differ by at most one row, along one cut dim or along all. A plain tensor
///   is returned as it is.
///   x           Tensor      what is balanced
///   dim         integer?    dim of the tensor, from 0
///   returns     Tensor      shape and dtype of x
///   collective  over x.mesh
///   errors      IndexError: the tensor has no such dim
///   example
///     local rows = mh.rank() == 0 and 6 or 0
///     local x = mh.from_local(mh.ones{rows, 2}, mesh, {mh.Shard(0)}):rebalance()
///     mh.tensor(x:shard_sizes(0)):max():item() == 6 // mh.world_size()    --> true
int rebalance_method(lua_State* lua) {
  std::optional<int64_t> dim;
  if (!is_nil(lua, 2)) dim = check_int(lua, 2);
  const at::Tensor& tensor = check_tensor(lua, 1);
  TORCH_CHECK_INDEX(!dim || (*dim >= -tensor.dim() && *dim < tensor.dim()), "rebalance: dim ", dim.value_or(0),
                    " of a tensor of ", tensor.dim(), " dims\n  have  ", describe(tensor));
  push(lua, rebalance(tensor, dim));
  return 1;
}

const luaL_Reg kOutputCutFunctions[] = {
    {"set_output_cut", guard<set_output_cut_function>}, {"rebalance", guard<rebalance_method>}, {nullptr, nullptr}};
const luaL_Reg kRebalanceMethods[] = {{"rebalance", guard<rebalance_method>}, {nullptr, nullptr}};

void open_output_cut(lua_State* lua) {
  add_functions(lua, kOutputCutFunctions);
  add_tensor_methods(lua, kRebalanceMethods);
}

const Binding output_cut_binding{"output_cut", open_output_cut};

}  // namespace
}  // namespace moonhalo::scripting
