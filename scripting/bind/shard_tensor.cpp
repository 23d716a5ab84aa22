// SPDX-License-Identifier: Apache-2.0
// Making ShardTensors, moving them, and leaving them.
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/scripting/bind/h5.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/after_calls.h"
#include "moonhalo/scripting/core/argument_counts.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/error_place.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<PendingTensor> = "PendingTensor";

namespace {

const at::Tensor& sharded_self(lua_State* lua, const char* method) {
  const at::Tensor& tensor = check_tensor(lua, 1);
  TORCH_CHECK_TYPE(is_shard_tensor(tensor), method, ": this is a plain tensor of shape ", shape_string(tensor.sizes()),
                   "\n  fix   make a ShardTensor first: mh.distribute_tensor, mh.from_local or mh.scatter_tensor");
  return tensor;
}

/// mh.distribute_tensor(full, mesh, placements, {src = 0}) -> Tensor
///   Distributes a plain tensor over the ranks of a mesh. Only blocks are sent. The result has the sizes and the dtype
///   of the global tensor.
///   full        Tensor?     the global tensor, on mesh rank `src`; other ranks may pass it or nil, which is not read
///   mesh        DeviceMesh  where the blocks will be
///   placements  {Placement}   one for each mesh dim
///   src         integer     mesh rank whose tensor is distributed
///   returns     Tensor      a ShardTensor with the shape and dtype of full. Gradients flow back to full on rank `src`
///     alone
///   collective  over the mesh
///   errors      ValueError: sizes in placements do not add up, or the number of placements is not that of mesh dims
///   example
///     local x = mh.distribute_tensor(mh.arange(6), mesh, {mh.Shard(0)})
///     x.shape, x:sum():item()    --> {6}  15
int distribute(lua_State* lua) {
  const Options options(lua, 4, "distribute_tensor", {"src"});
  push(lua, distribute_tensor(opt_tensor(lua, 1), check_object<DeviceMesh>(lua, 2), check_placements(lua, 3),
                              options.get_int("src", 0)));
  return 1;
}

/// mh.from_local(block, mesh, placements) -> Tensor
///   Makes a ShardTensor of the blocks that the ranks have. Sizes are exchanged, so placements need none. Gradients
///   flow back to the block; a plain parameter from which the blocks were computed gets the sum over the ranks.
///   block       Tensor      this rank's block, a plain tensor; it may be empty
///   mesh        DeviceMesh  the ranks of the blocks
///   placements  {Placement}   one for each mesh dim
///   returns     Tensor      a ShardTensor that shares the memory of the block
///   collective  over the mesh
///   errors      ValueError: blocks differ in dtype or in the size of a dim that is not cut
///   example
///     local x = mh.from_local(mh.ones{mh.rank() + 1, 2}, mesh, {mh.Shard(0)})
///     x.shape[1] == mh.world_size() * (mh.world_size() + 1) // 2    --> true
int from_block(lua_State* lua) {
  push(lua, from_local(check_tensor(lua, 1), check_object<DeviceMesh>(lua, 2), check_placements(lua, 3)));
  return 1;
}

/// mh.scatter_tensor(source, mesh, placements, {src = 0, dtype = nil, decode = false, halo = 0}) -> Tensor
///   Like mh.distribute_tensor, also of a dataset of a file, which is read in parallel: each rank reads its own block.
///   source      Tensor|Dataset|Selection?   a tensor on mesh rank `src`, nil on others; or a dataset on every rank
///   mesh        DeviceMesh  where the blocks will be
///   placements  {Placement}   one for each mesh dim
///   src         integer     mesh rank that has the tensor
///   dtype       string?     converts the elements
///   decode      boolean     of a dataset: applies its scale_factor, add_offset and fill value
///   halo        integer     of a dataset: a second result is this rank's block with up to `halo` more rows on both
///     sides of every cut dim (none beyond the domain), a plain tensor
///   returns     Tensor      a ShardTensor
///   collective  over the mesh
///   errors      ValueError: halo or decode for a tensor; a source that was computed from parameters of modules
///   example
///     local x = mh.scatter_tensor(mh.rank() == 0 and mh.arange(5) or nil, mesh, {mh.Shard(0)}, {dtype = "float64"})
///     x.dtype, x:sum():item()    --> float64  10.0
int scatter(lua_State* lua) {
  const Options options(lua, 4, "scatter_tensor", {"src", "dtype", "decode", "halo"});
  const MeshPtr mesh = check_object<DeviceMesh>(lua, 2);
  const auto placements = check_placements(lua, 3);
  if (const auto selection = to_selection(lua, 1)) {
    const ScatterOptions how{.dtype = options.get_dtype("dtype"),
                             .decode = options.get_bool("decode", false),
                             .halo = options.get_int("halo", 0)};
    if (how.halo == 0) {
      push(lua, scatter_tensor(*selection, mesh, placements, how));
      return 1;
    }
    const ScatteredHalo scattered = scatter_with_halo(*selection, mesh, placements, how);
    push(lua, scattered.tensor);
    push(lua, scattered.padded);
    return 2;
  }
  if (!is_nil(lua, 1) && to_tensor(lua, 1) == nullptr)
    argument_error(lua, 1, "a tensor, a dataset or a selection of one");
  TORCH_CHECK_VALUE(options.get_int("halo", 0) == 0 && !options.get_bool("decode", false),
                    "scatter_tensor: halo and decode are for datasets, the source is a tensor");
  at::Tensor source = opt_tensor(lua, 1);
  if (const auto dtype = options.get_dtype("dtype"); dtype && source.defined()) source = source.to(*dtype);
  push(lua, scatter_tensor(source, mesh, placements, options.get_int("src", 0)));
  return 1;
}

/// x:redistribute(placements, {async_op = false}) -> Tensor
///   The same global tensor under other placements. x:redistribute(mesh, placements) moves it to another mesh of the
///   same ranks. Differentiable.
///   placements  {Placement}   one for each mesh dim
///   async_op    boolean     starts the transfer and returns a PendingTensor, whose wait() returns the tensor
///   returns     Tensor      shape and dtype of x
///   collective  over x.mesh, unless nothing moves
///   errors      TypeError: x is a plain tensor
///   errors      ValueError: the meshes hold different ranks
///   example
///     local x = mh.distribute_tensor(mh.arange(6), mesh, {mh.Shard(0)})
///     x:redistribute{mh.Replicate()}:to_local().shape    --> {6}
int redistribute_method(lua_State* lua) {
  const at::Tensor& tensor = sharded_self(lua, "redistribute");
  const MeshPtr given = to_object<DeviceMesh>(lua, 2);
  const int list = given ? 3 : 2;
  const MeshPtr mesh = given ? given : spec(tensor)->mesh();
  check_argument_count(lua, list + 1, "redistribute");
  const Options options(lua, list + 1, "redistribute", {"async_op"});
  const auto placements = check_placements(lua, list);
  if (options.get_bool("async_op", false)) {
    push_object(lua, std::make_shared<PendingTensor>(redistribute_async(tensor, mesh, placements)));
  } else {
    push(lua, redistribute(tensor, mesh, placements));
  }
  return 1;
}

/// pending:wait() -> Tensor
///   Ends a transfer that x:redistribute(placements, {async_op = true}) started. Later calls return the same tensor.
///   returns     Tensor      the tensor under its new placements
///   collective  no, but every rank that started the transfer must call it
///   errors      ValueError: the tensor was written since the start
///   example
///     local x = mh.distribute_tensor(mh.arange(6), mesh, {mh.Shard(0)})
///     local pending = x:redistribute({mh.Replicate()}, {async_op = true})
///     pending:wait():sum():item()    --> 15
int wait_method(lua_State* lua) {
  push(lua, check_object<PendingTensor>(lua, 1)->wait());
  return 1;
}

/// x:full_tensor() -> Tensor
///   The global tensor as a plain tensor, on every rank. Differentiable.
///   returns     Tensor      plain; x itself if it is plain already
///   collective  over x.mesh
///   example
///     mh.distribute_tensor(mh.arange(4), mesh, {mh.Shard(0)}):full_tensor():tolist()    --> {0, 1, 2, 3}
int full_tensor_method(lua_State* lua) {
  push(lua, is_shard_tensor(check_tensor(lua, 1)) ? full_tensor(check_tensor(lua, 1)) : check_tensor(lua, 1));
  return 1;
}

/// x:to_local() -> Tensor
///   This rank's block as a plain tensor that shares its memory. Of a Partial, this rank's addend. Differentiable: the
///   gradient is that of the block.
///   returns     Tensor      plain; shapes differ between ranks
///   collective  no, except for a view that was copied and whose original was written since
///   errors      TypeError: x is a plain tensor
///   example
///     local x = mh.distribute_tensor(mh.ones{6, 2}, mesh, {mh.Shard(0)})
///     x:to_local().shape[1] == x:shard_sizes(0)[mh.rank() + 1]    --> true
int to_local_method(lua_State* lua) {
  push(lua, to_local(sharded_self(lua, "to_local")));
  return 1;
}

/// x:is_shard_tensor() -> boolean
/// x.is_sharded -> boolean
///   Whether the tensor is distributed over a mesh.
///   returns     boolean     false for a plain tensor
///   collective  no
///   example
///     mh.ones{2}:is_shard_tensor()    --> false
int is_shard_tensor_method(lua_State* lua) {
  push(lua, is_shard_tensor(check_tensor(lua, 1)));
  return 1;
}

int64_t dim_argument(lua_State* lua, const at::Tensor& tensor) {
  const int64_t given = check_int(lua, 2), dim = given < 0 ? given + tensor.dim() : given;
  TORCH_CHECK_VALUE(dim >= 0 && dim < tensor.dim(), "dim ", given, " is out of range for a tensor of shape ",
                    shape_string(tensor.sizes()), "\n  fix   dims count from 0, and from the end from -1");
  return dim;
}

/// x:shard_sizes(dim) -> {integer}
///   Rows of every block along a dim, in the order of the ranks that cut it.
///   dim         integer     dim of the tensor, from 0; a negative dim counts from the end
///   returns     {integer}   they add up to the size of the dim
///   collective  no
///   errors      TypeError: x is a plain tensor
///   errors      ValueError: the tensor has no such dim
///   example
///     local sizes = mh.distribute_tensor(mh.ones{7}, mesh, {mh.Shard(0)}):shard_sizes(0)
///     #sizes == mh.world_size(), mh.tensor(sizes):sum():item()    --> true  7
int shard_sizes(lua_State* lua) {
  const at::Tensor& tensor = sharded_self(lua, "shard_sizes");
  push(lua, spec(tensor)->block_sizes(dim_argument(lua, tensor)));
  return 1;
}

/// x:shard_offset(dim) -> integer
///   The global index of the first row of this rank's block along a dim.
///   dim         integer     dim of the tensor, from 0; a negative dim counts from the end
///   returns     integer     0 on the first rank; differs between ranks
///   collective  no
///   errors      TypeError: x is a plain tensor
///   errors      ValueError: the tensor has no such dim
///   example
///     local x = mh.distribute_tensor(mh.arange(7), mesh, {mh.Shard(0)})
///     x:to_local():min():item() == x:shard_offset(0)    --> true
int shard_offset(lua_State* lua) {
  const at::Tensor& tensor = sharded_self(lua, "shard_offset");
  push(lua, spec(tensor)->offsets()[dim_argument(lua, tensor)]);
  return 1;
}

/// x.mesh -> DeviceMesh?
///   The mesh over which the tensor is distributed; nil for a plain tensor.
///   example
///     mh.distribute_tensor(mh.ones{4}, mesh, {mh.Shard(0)}).mesh == mesh    --> true
int get_mesh(lua_State* lua) {
  push_object(lua, is_shard_tensor(check_tensor(lua, 1)) ? spec(check_tensor(lua, 1))->mesh() : MeshPtr());
  return 1;
}

/// x.placements -> {Placement}?
///   The placement along each mesh dim; nil for a plain tensor.
///   example
///     local x = mh.distribute_tensor(mh.ones{4}, mesh, {mh.Shard(0)})
///     x.placements[1]:is_shard(0)    --> true
int get_placements(lua_State* lua) {
  if (is_shard_tensor(check_tensor(lua, 1))) {
    push_placements(lua, spec(check_tensor(lua, 1))->placements());
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

/// mh.set_fallback(mode) -> string
///   Chooses what an operator without a rule for blocks does on this rank: gather its tensors, with one warning for
///   each operator, or raise an error.
///   mode        "replicate"|"error"   "replicate" is the default
///   returns     "replicate"|"error"   the setting before
///   collective  no, but all ranks must choose the same
///   errors      ValueError: another word
///   example
///     mh.set_fallback("error"), mh.set_fallback("replicate")    --> replicate  error
int set_fallback_function(lua_State* lua) {
  const std::string name = check_string(lua, 1);
  TORCH_CHECK_VALUE(name == "replicate" || name == "error", "set_fallback: '", name,
                    "' is neither \"replicate\" nor \"error\"", did_you_mean(name, {"replicate", "error"}));
  const Fallback before = set_fallback(name == "error" ? Fallback::kError : Fallback::kReplicate);
  push(lua, before == Fallback::kError ? "error" : "replicate");
  return 1;
}

/// {overlap = true|false, exchange = "p2p"|"all_to_all", keep = true|false}
void push_halo(lua_State* lua, const HaloOptions& options) {
  lua_createtable(lua, 0, 3);
  set_field(lua, "overlap", options.overlap);
  set_field(lua, "exchange", name(options.backend));
  set_field(lua, "keep", options.keep);
}

/// mh.set_halo({overlap = true, exchange = "p2p", keep = false}) -> table
///   Chooses how operators with a window exchange the border rows of blocks. What is left out stays as it is; without
///   an argument nothing changes. Results have the same bits in every setting.
///   overlap     boolean     computes the interior while border rows are sent
///   exchange    "p2p"|"all_to_all"   messages between neighbours, or one collective
///   keep        boolean     has no effect; each operator fetches the rows that it reads
///   returns     table       {overlap, exchange, keep}: the setting before
///   collective  over all ranks, which must give the same; without an argument no
///   errors      ValueError: ranks give different settings
///   example
///     local before = mh.set_halo{overlap = false}
///     mh.set_halo().overlap, mh.set_halo(before).overlap    --> false  false
int set_halo_function(lua_State* lua) {
  const Options options(lua, 1, "set_halo", {"overlap", "exchange", "keep"});
  HaloOptions required = halo_options();
  if (lua_gettop(lua) == 0) {
    push_halo(lua, required);
    return 1;
  }
  required.overlap = options.get_bool("overlap", required.overlap);
  required.keep = options.get_bool("keep", required.keep);
  const std::string exchange = options.get_string("exchange", name(required.backend));
  TORCH_CHECK_VALUE(exchange == "p2p" || exchange == "all_to_all", "set_halo: exchange '", exchange,
                    "' is neither \"p2p\" nor \"all_to_all\"", did_you_mean(exchange, {"p2p", "all_to_all"}));
  required.backend = exchange == "p2p" ? HaloBackend::kP2p : HaloBackend::kAllToAll;
  push_halo(lua, set_halo(required, context(lua).world.get()));
  return 1;
}

/// One call as {op, inputs = {"Shard(0, {3, 6}) -> Replicate()", ...}, outputs = {...}, bytes, gathered, halo =
/// {"start", "interior", "finish", "edges"}, halo_seconds, halo_waited, module = "blocks.0.fc1"}.
void push_record(lua_State* lua, const TraceRecord& record, const std::optional<std::string>& module) {
  lua_createtable(lua, 0, 10);
  set_field(lua, "op", record.op);
  set_field(lua, "inputs", record.inputs);
  set_field(lua, "outputs", record.outputs);
  set_field(lua, "bytes", record.bytes);
  set_field(lua, "traffic", to_string(record.traffic));
  set_field(lua, "gathered", record.gathered);
  set_field(lua, "halo", record.halo);
  set_field(lua, "halo_seconds", record.times.under_way);
  set_field(lua, "halo_waited", record.times.waited);
  if (module) {
    set_field(lua, "module", *module);
  }
}

/// mh.op_trace(fn, ...) -> {string}
///   Runs fn(...) and lists the operators that ran on ShardTensors, in order. A second result says for each of them
///   what was chosen: {op, inputs, outputs, bytes, traffic, gathered, halo, halo_seconds, halo_waited, module}. inputs
///   are strings such as "Shard(0, {3, 6}) -> Replicate()", bytes is what this rank sent, traffic why ("halo,
///   all_reduce"), module the path of the module whose forward called it.
///   fn          function    what to run
///   returns     {string}    names of operators
///   collective  as what fn does
///   errors      TypeError: fn is not a function
///   example
///     local x = mh.distribute_tensor(mh.ones{6}, mesh, {mh.Shard(0)})
///     local names, records = mh.op_trace(function() return x:exp() end)
///     names, records[1].bytes    --> {"aten::exp"}  0
int op_trace(lua_State* lua) {
  if (!is_callable(lua, 1)) argument_error(lua, 1, "a function");
  std::vector<TraceRecord> records;
  Dispatch& dispatch = Dispatch::of_this_thread();
  struct Restore {
    Dispatch& dispatch;
    std::vector<TraceRecord>* before;
    ~Restore() { dispatch.trace = before; }
  } restore{dispatch, std::exchange(dispatch.trace, &records)};
  std::vector<std::optional<std::string>> modules;
  {
    const AfterCalls named([&](lua_State* caller) {
      if (modules.size() < records.size()) modules.resize(records.size(), module_path(caller));
    });
    call_traced(lua, lua_gettop(lua) - 1, 0);
  }
  modules.resize(records.size());
  std::vector<std::string> names;
  for (const TraceRecord& record : records) names.push_back(record.op);
  push(lua, names);
  lua_createtable(lua, static_cast<int>(records.size()), 0);
  for (size_t i = 0; i < records.size(); ++i) {
    push_record(lua, records[i], modules[i]);
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
  return 2;
}

const luaL_Reg kShardTensorFunctions[] = {{"distribute_tensor", guard<distribute>},
                                          {"from_local", guard<from_block>},
                                          {"scatter_tensor", guard<scatter>},
                                          {"set_fallback", guard<set_fallback_function>},
                                          {"set_halo", guard<set_halo_function>},
                                          {"op_trace", guard<op_trace>},
                                          {nullptr, nullptr}};
const luaL_Reg kShardTensorMethods[] = {{"redistribute", guard<redistribute_method>},
                                        {"full_tensor", guard<full_tensor_method>},
                                        {"to_local", guard<to_local_method>},
                                        {"is_shard_tensor", guard<is_shard_tensor_method>},
                                        {"shard_sizes", guard<shard_sizes>},
                                        {"shard_offset", guard<shard_offset>},
                                        {nullptr, nullptr}};
const luaL_Reg kGetters[] = {{"mesh", guard<get_mesh>},
                             {"placements", guard<get_placements>},
                             {"is_sharded", guard<is_shard_tensor_method>},
                             {nullptr, nullptr}};

const luaL_Reg kPendingMethods[] = {{"wait", guard<wait_method>}, {nullptr, nullptr}};

void open_shard_tensor(lua_State* lua) {
  define_object<PendingTensor>(lua, kPendingMethods);
  add_functions(lua, kShardTensorFunctions);
  add_tensor_methods(lua, kShardTensorMethods);
  add_tensor_getters(lua, kGetters);
}

const Binding shard_tensor_binding{"shard_tensor", open_shard_tensor};

}  // namespace
}  // namespace moonhalo::scripting
