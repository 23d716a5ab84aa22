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

/// mh.distribute_tensor(full, mesh, placements[, {src = 0}]): collective over the mesh.
int distribute(lua_State* lua) {
  const Options options(lua, 4, "distribute_tensor", {"src"});
  push(lua, distribute_tensor(opt_tensor(lua, 1), check_object<DeviceMesh>(lua, 2), check_placements(lua, 3),
                              options.get_int("src", 0)));
  return 1;
}

/// mh.from_local(block, mesh, placements): collective over the mesh. A block that was computed from plain parameters of
/// modules gives each rank an addend of their gradients, which backward sums.
int from_block(lua_State* lua) {
  push(lua, from_local(check_tensor(lua, 1), check_object<DeviceMesh>(lua, 2), check_placements(lua, 3)));
  return 1;
}

/// mh.scatter_tensor(source, mesh, placements[, {src, dtype, decode, halo}]): collective over the mesh. `source` is a
/// dataset or a selection, or a tensor that rank src holds. With `halo` a second result: this rank's block with so many
/// rows more on both sides of every cut dim, none beyond the domain; a plain tensor.
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

/// x:redistribute([mesh, ]placements[, {async_op = false}]): collective over the mesh. With async_op a PendingTensor,
/// whose wait() gives the tensor.
int redistribute_method(lua_State* lua) {
  const at::Tensor& tensor = sharded_self(lua, "redistribute");
  const MeshPtr given = to_object<DeviceMesh>(lua, 2);
  const int list = given ? 3 : 2;
  const MeshPtr mesh = given ? given : spec(tensor)->mesh();
  const Options options(lua, list + 1, "redistribute", {"async_op"});
  const auto placements = check_placements(lua, list);
  if (options.get_bool("async_op", false)) {
    push_object(lua, std::make_shared<PendingTensor>(redistribute_async(tensor, mesh, placements)));
  } else {
    push(lua, redistribute(tensor, mesh, placements));
  }
  return 1;
}

/// pending:wait()
int wait_method(lua_State* lua) {
  push(lua, check_object<PendingTensor>(lua, 1)->wait());
  return 1;
}

/// x:full_tensor(): collective over the mesh. A plain tensor is full already.
int full_tensor_method(lua_State* lua) {
  push(lua, is_shard_tensor(check_tensor(lua, 1)) ? full_tensor(check_tensor(lua, 1)) : check_tensor(lua, 1));
  return 1;
}

/// x:to_local()
int to_local_method(lua_State* lua) {
  push(lua, to_local(sharded_self(lua, "to_local")));
  return 1;
}

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

/// x:shard_sizes(dim): rows of every block along a dim.
int shard_sizes(lua_State* lua) {
  const at::Tensor& tensor = sharded_self(lua, "shard_sizes");
  push(lua, spec(tensor)->block_sizes(dim_argument(lua, tensor)));
  return 1;
}

/// x:shard_offset(dim): where this rank's block begins.
int shard_offset(lua_State* lua) {
  const at::Tensor& tensor = sharded_self(lua, "shard_offset");
  push(lua, spec(tensor)->offsets()[dim_argument(lua, tensor)]);
  return 1;
}

int get_mesh(lua_State* lua) {
  push_object(lua, is_shard_tensor(check_tensor(lua, 1)) ? spec(check_tensor(lua, 1))->mesh() : MeshPtr());
  return 1;
}

int get_placements(lua_State* lua) {
  if (is_shard_tensor(check_tensor(lua, 1))) {
    push_placements(lua, spec(check_tensor(lua, 1))->placements());
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

/// mh.set_fallback("replicate" | "error"): returns the setting before.
int set_fallback_function(lua_State* lua) {
  const std::string name = check_string(lua, 1);
  TORCH_CHECK_VALUE(name == "replicate" || name == "error", "set_fallback: '", name, "' is neither \"replicate\" nor \"error\"",
                    did_you_mean(name, {"replicate", "error"}));
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

/// mh.set_halo{overlap = true|false, exchange = "p2p"|"all_to_all", keep = true|false}: whether operators compute their
/// interior while edges travel, how these travel, and whether a tensor's edges are kept for its next reader until it is
/// written (then write to blocks through the ShardTensor alone; what is written through to_local() is found and
/// refused). What is left out stays. The same bits either way. Returns the setting before. Collective over all ranks,
/// which must give the same; without an argument it only tells.
int set_halo_function(lua_State* lua) {
  const Options options(lua, 1, "set_halo", {"overlap", "exchange", "keep"});
  HaloOptions wanted = halo_options();
  if (lua_gettop(lua) == 0) {
    push_halo(lua, wanted);
    return 1;
  }
  wanted.overlap = options.get_bool("overlap", wanted.overlap);
  wanted.keep = options.get_bool("keep", wanted.keep);
  const std::string exchange = options.get_string("exchange", name(wanted.backend));
  TORCH_CHECK_VALUE(exchange == "p2p" || exchange == "all_to_all", "set_halo: exchange '", exchange,
                    "' is neither \"p2p\" nor \"all_to_all\"", did_you_mean(exchange, {"p2p", "all_to_all"}));
  wanted.backend = exchange == "p2p" ? HaloBackend::kP2p : HaloBackend::kAllToAll;
  push_halo(lua, set_halo(wanted, context(lua).world.get()));
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

/// mh.op_trace(fn, ...): runs fn and returns the names of the operators that ran on ShardTensors, in order, and a
/// list of what was chosen for each: the placements that its tensors had and were moved to, those of its results, the
/// bytes that this rank sent and why (`traffic`: "halo, all_reduce"), in which order edges left, the interior was
/// computed and edges arrived, and the path of the module whose forward called it ("" is the one that the script
/// called; nil outside of modules, as in a backward).
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
