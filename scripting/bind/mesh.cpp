// SPDX-License-Identifier: Apache-2.0
// Device meshes and placements.
#include "moonhalo/scripting/bind/mesh.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/dispatch/divided_work.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/scripting/core/local_rank.h"

namespace moonhalo::scripting {

std::vector<Placement> check_placements(lua_State* lua, int index) {
  if (const auto one = to_object<Placement>(lua, index)) return {*one};
  if (!lua_istable(lua, index)) argument_error(lua, index, "a list of placements, as {mh.Shard(0), mh.Replicate()}");
  const int table = lua_absindex(lua, index);
  std::vector<Placement> placements;
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, table));
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, table, i);
    const auto one = to_object<Placement>(lua, -1);
    const std::string got = one ? "" : describe(lua, -1);
    lua_pop(lua, 1);
    if (!one)
      argument_error(lua, table,
                     "a list of placements, one for each mesh dim, as {mh.Shard(0)} (element " + std::to_string(i) +
                         " is " + got + ")");
    placements.push_back(*one);
  }
  check_no_names(lua, table, "a list of placements, whose options are a table of their own behind it");
  if (count == 0) check_empty_list(lua, table, "a list of placements, as {mh.Shard(0)}");
  return placements;
}

void push_placements(lua_State* lua, const std::vector<Placement>& placements) {
  lua_createtable(lua, static_cast<int>(placements.size()), 0);
  for (size_t i = 0; i < placements.size(); ++i) {
    push_object(lua, std::make_shared<Placement>(placements[i]));
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
}

namespace {

/// Rows of the blocks of a cut, at `index`, or nothing. One number would be the block of one rank alone.
std::vector<int64_t> check_rows(lua_State* lua, int index) {
  if (is_nil(lua, index)) return {};
  if (!lua_istable(lua, index)) argument_error(lua, index, "a list of the rows of each rank's block");
  return check_int_list(lua, index);
}

std::shared_ptr<Placement> this_placement(lua_State* lua) { return check_object<Placement>(lua, 1); }

/// mh.Shard(dim, sizes = nil) -> Placement
///   The placement that cuts dim `dim` into one block for each rank of the mesh dim. Without sizes the first blocks
///   have one row more where the rows do not divide evenly.
///   dim         integer     dim of the tensor, from 0; a negative dim counts from the end
///   sizes       {integer}?  rows of the block of each rank, 0 for an empty block
///   returns     Placement   for a list of placements, one for each mesh dim
///   collective  no
///   example
///     local x = mh.distribute_tensor(mh.arange(7), mesh, {mh.Shard(0)})
///     x.placements[1].dim, x.shape    --> 0  {7}
int make_shard(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(shard(check_int(lua, 1), check_rows(lua, 2))));
  return 1;
}

/// mh.Stored(dim, sizes = nil) -> Placement
///   A cut that only saves memory: like mh.Shard, but operators that need the whole tensor gather this one and leave
///   the others where they are.
///   dim         integer     dim of the tensor, from 0
///   sizes       {integer}?  rows of the block of each rank
///   returns     Placement   one for which is_shard() and is_stored() are true
///   collective  no
///   example
///     mh.Stored(0):is_stored()    --> true
int make_stored(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(stored(check_int(lua, 1), check_rows(lua, 2))));
  return 1;
}

/// mh.Replicate() -> Placement
///   The placement that gives every rank of the mesh dim the whole tensor.
///   returns     Placement   for a list of placements, one for each mesh dim
///   collective  no
///   example
///     local x = mh.distribute_tensor(mh.ones{2, 3}, mesh, {mh.Replicate()})
///     x:to_local().shape    --> {2, 3}
int make_replicate(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(replicate()));
  return 1;
}

/// mh.Partial(op = "sum") -> Placement
///   The placement of a tensor whose value is a reduction of the tensors that the ranks have. Operators that need the
///   value reduce it.
///   op          "sum"|"avg"|"min"|"max"|"product"   the reduction
///   returns     Placement   for a list of placements, one for each mesh dim
///   collective  no
///   errors      ValueError: another name of a reduction
///   example
///     local x = mh.from_local(mh.ones{2}, mesh, {mh.Partial()})
///     x:full_tensor():sum():item() == 2 * mh.world_size()    --> true
int make_partial(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(
                       partial(is_nil(lua, 1) ? ReduceOp::kSum : parse_reduce_op(check_string(lua, 1)))));
  return 1;
}

/// placement:is_shard(dim = nil) -> boolean
///   Whether the placement cuts a dim: any, or the one that is given.
///   dim         integer?    dim of the tensor, from 0
///   returns     boolean     also true for mh.Stored
///   collective  no
///   example
///     mh.Shard(1):is_shard(), mh.Shard(1):is_shard(0)    --> true  false
int is_shard(lua_State* lua) {
  const auto placement = this_placement(lua);
  const bool same_dim = is_nil(lua, 2) || placement->dim == check_int(lua, 2);
  push(lua, placement->is_shard() && same_dim);
  return 1;
}

/// placement:is_stored() -> boolean
///   Whether the placement is a cut that only saves memory (mh.Stored).
///   returns     boolean     true for mh.Stored alone
///   collective  no
///   example
///     mh.Stored(0):is_stored(), mh.Shard(0):is_stored()    --> true  false
int is_stored(lua_State* lua) {
  push(lua, this_placement(lua)->stored);
  return 1;
}

/// placement:is_replicate() -> boolean
///   Whether the placement gives every rank the whole tensor.
///   returns     boolean     true for mh.Replicate
///   collective  no
///   example
///     mh.Replicate():is_replicate()    --> true
int is_replicate(lua_State* lua) {
  push(lua, this_placement(lua)->is_replicate());
  return 1;
}

/// placement:is_partial() -> boolean
///   Whether the tensor's value is a reduction over the ranks.
///   returns     boolean     true for mh.Partial
///   collective  no
///   example
///     mh.Partial("max"):is_partial()    --> true
int is_partial(lua_State* lua) {
  push(lua, this_placement(lua)->is_partial());
  return 1;
}

/// placement.dim -> integer?
///   The dim that the placement cuts, from 0; nil where it cuts none.
///   example
///     mh.Shard(2).dim, mh.Replicate().dim    --> 2  nil
int placement_dim(lua_State* lua) {
  if (this_placement(lua)->is_shard()) {
    push(lua, this_placement(lua)->dim);
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

/// placement.sizes -> {integer}?
///   Rows of the block of each rank, where the placement names them; else nil.
///   example
///     mh.Shard(0, {4, 0, 3}).sizes    --> {4, 0, 3}
int placement_sizes(lua_State* lua) {
  if (this_placement(lua)->sizes.empty()) {
    lua_pushnil(lua);
  } else {
    push(lua, this_placement(lua)->sizes);
  }
  return 1;
}

/// placement.op -> string?
///   The reduction of a Partial; nil for other placements.
///   example
///     mh.Partial().op    --> sum
int placement_op(lua_State* lua) {
  if (this_placement(lua)->is_partial()) {
    push(lua, name(this_placement(lua)->op));
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

int placement_string(lua_State* lua) {
  push(lua, this_placement(lua)->to_string());
  return 1;
}

int placement_equal(lua_State* lua) {
  // Either may be another object: Lua asks the one that has __eq.
  const auto one = to_object<Placement>(lua, 1), other = to_object<Placement>(lua, 2);
  push(lua, one && other && *one == *other);
  return 1;
}

MeshPtr mesh(lua_State* lua) { return check_object<DeviceMesh>(lua, 1); }

/// A mesh dimension by name or number; all of them when absent.
std::optional<int64_t> mesh_dim(lua_State* lua, int index) {
  if (is_nil(lua, index)) return std::nullopt;
  if (lua_type(lua, index) == LUA_TSTRING) return mesh(lua)->mesh_dim(check_string(lua, index));
  const int64_t dim = check_int(lua, index);
  TORCH_CHECK_VALUE(dim >= 0 && dim < mesh(lua)->ndim(), mesh(lua)->to_string(), ": no mesh dimension ", dim,
                    "\n  have  ", mesh(lua)->ndim(), " dimensions\n  fix   name one, or give a number from 0 to ",
                    mesh(lua)->ndim() - 1);
  return dim;
}

/// mh.init_device_mesh(device, shape, names = nil) -> DeviceMesh
///   Arranges all ranks of the run as a grid, in row-major order, so that placements can cut tensors along its dims.
///   device      string?     "cpu" or "cuda"; nil for the device of the run (mh.device())
///   shape       {integer}   ranks along each mesh dim; their product is mh.world_size()
///   names       {string}?   a name for each mesh dim; "dim_0", "dim_1", ... if left out
///   returns     DeviceMesh  the mesh
///   collective  over all ranks
///   errors      ValueError: the product of the shape is not the number of ranks, or a name occurs twice
///   errors      ValueError: ranks ask for different meshes
///   example
///     local grid = mh.init_device_mesh(mh.device(), {1, mh.world_size()}, {"data", "domain"})
///     grid.names, grid.ndim    --> {"data", "domain"}  2
int make_mesh(lua_State* lua) {
  Communicator& world = *context(lua).world;
  const c10::Device own = context(lua).device;
  std::string device = is_nil(lua, 1) ? own.str() : check_string(lua, 1);
  if (!own.is_cpu()) device = shared_device_name(world, own, std::move(device));
  push_object(lua, init_device_mesh(world, device, check_int_list(lua, 2),
                                    is_nil(lua, 3) ? std::vector<std::string>{} : check_string_list(lua, 3)));
  return 1;
}

/// mesh:size(dim = nil) -> integer
///   The number of ranks of the mesh, or along one mesh dim.
///   dim         integer|string?   number from 0, or name of a mesh dim
///   returns     integer     the number of ranks
///   collective  no
///   errors      ValueError: the mesh has no such dim
///   example
///     mesh:size() == mh.world_size(), mesh:size("domain") == mesh:size(0)    --> true  true
int mesh_size(lua_State* lua) {
  const auto dim = mesh_dim(lua, 2);
  push(lua, dim ? mesh(lua)->size(*dim) : mesh(lua)->size());
  return 1;
}

/// mesh:coordinate(dim = nil) -> integer
///   The coordinate of this rank along a mesh dim, from 0. Without a dim, a list with the coordinate along every mesh
///   dim.
///   dim         integer|string?   number from 0, or name of a mesh dim
///   returns     integer|{integer}   differs between ranks
///   collective  no
///   errors      ValueError: the mesh has no such dim
///   example
///     mesh:coordinate("domain") == mh.rank()    --> true
int mesh_coordinate(lua_State* lua) {
  const auto dim = mesh_dim(lua, 2);
  if (dim) {
    push(lua, mesh(lua)->coordinate(*dim));
    return 1;
  }
  std::vector<int64_t> all;
  for (int64_t d = 0; d < mesh(lua)->ndim(); ++d) all.push_back(mesh(lua)->coordinate(d));
  push(lua, all);
  return 1;
}

/// mesh:slice(...) -> DeviceMesh
///   The sub-mesh along the named dims that contains this rank: mesh:slice("domain") is mesh["domain"]. Repeated calls
///   return the same mesh.
///   returns     DeviceMesh  a mesh with its own communicator
///   collective  over the mesh at the first call with several names, else not
///   errors      ValueError: the mesh has no dim of that name
///   example
///     local grid = mh.init_device_mesh(mh.device(), {1, mh.world_size()}, {"data", "domain"})
///     grid:slice("domain").names, grid["domain"] == grid:slice("domain")    --> {"domain"}  true
int mesh_slice(lua_State* lua) {
  std::vector<std::string> names;
  for (int i = 2; i <= lua_gettop(lua); ++i) names.push_back(check_string(lua, i));
  push_object(lua, mesh(lua)->slice(names));
  return 1;
}

/// mesh:set_macs_per_byte(macs) -> nothing
///   Sets how many multiplications a rank makes while it sends a byte. Matrix products on this mesh, and on slices made
///   later, are then divided where a count of bytes alone would have every rank repeat them. Call it before tensors are
///   on the mesh.
///   macs        number      math.huge, the default, counts bytes alone; the same on all ranks
///   returns     nothing
///   collective  no, but all ranks must make the same call
///   example
///     local grid = mh.init_device_mesh(mh.device(), {mh.world_size()})
///     grid:set_macs_per_byte(100)
///     mh.distribute_tensor(mh.ones{6, 4}, grid, {mh.Shard(0)}):matmul(mh.ones{4, 2}):sum():item()    --> 48.0
int mesh_set_macs_per_byte(lua_State* lua) {
  set_macs_per_byte(check_object<DeviceMesh>(lua, 1), check_number(lua, 2));
  return 0;
}

/// mesh:barrier() -> nothing
///   Waits until every rank of the mesh is here.
///   returns     nothing
///   collective  over the mesh
///   errors      CommError: a rank is lost, or makes another call
///   example
///     mesh:barrier()
///     mesh.ndim    --> 1
int mesh_barrier(lua_State* lua) {
  mesh(lua)->group().barrier();
  return 0;
}

/// mesh.shape -> {integer}
///   Ranks along each mesh dim.
///   example
///     #mesh.shape    --> 1
int mesh_shape(lua_State* lua) {
  push(lua, mesh(lua)->shape());
  return 1;
}

/// mesh.names -> {string}
///   The names of the mesh dims.
///   example
///     mesh.names    --> {"domain"}
int mesh_names(lua_State* lua) {
  push(lua, mesh(lua)->names());
  return 1;
}

/// mesh.ndim -> integer
///   The number of mesh dims.
///   example
///     mesh.ndim    --> 1
int mesh_ndim(lua_State* lua) {
  push(lua, mesh(lua)->ndim());
  return 1;
}

/// mesh.rank -> integer
///   The index of this rank in the mesh, from 0.
///   example
///     mesh.rank == mh.rank()    --> true
int mesh_rank(lua_State* lua) {
  push(lua, mesh(lua)->rank());
  return 1;
}

/// mesh.device_type -> string
///   "cpu" or "cuda".
///   example
///     mesh.device_type    --> cpu
int mesh_device_type(lua_State* lua) {
  push(lua, mesh(lua)->device_type());
  return 1;
}

/// mesh.device -> string
///   The device that has this rank's blocks, such as "cpu" or "cuda:1".
///   example
///     mesh.device    --> cpu
int mesh_device(lua_State* lua) {
  push(lua, device_of(*mesh(lua)));
  return 1;
}

int mesh_string(lua_State* lua) {
  push(lua, mesh(lua)->to_string());
  return 1;
}

int mesh_equal(lua_State* lua) {
  const auto one = to_object<DeviceMesh>(lua, 1), other = to_object<DeviceMesh>(lua, 2);
  push(lua, one && other && one == other);
  return 1;
}

/// mesh["domain"], mesh[{"data", "domain"}]
int mesh_index(lua_State* lua) {
  push_object(lua, mesh(lua)->slice(check_string_list(lua, 2)));
  return 1;
}

/// mh.rank() -> integer
///   The number of this rank among all ranks of the run, from 0.
///   returns     integer     from 0 to mh.world_size() - 1
///   collective  no
///   example
///     mh.rank() >= 0 and mh.rank() < mh.world_size()    --> true
int rank(lua_State* lua) {
  push(lua, context(lua).rank());
  return 1;
}

/// mh.local_rank() -> integer
///   The number of this rank among the ranks of its host, from 0.
///   returns     integer     0 on the first rank of a host
///   collective  over all ranks at the first call of processes without a launcher that says it
///   example
///     mh.local_rank() == mh.rank()    --> true
int own_local_rank(lua_State* lua) {
  push(lua, local_rank(lua));
  return 1;
}

/// mh.world_size() -> integer
///   The number of ranks of the run.
///   returns     integer     1 or more
///   collective  no
///   example
///     mh.world_size() >= 1    --> true
int world_size(lua_State* lua) {
  push(lua, context(lua).world_size());
  return 1;
}

/// mh.backend() -> string
///   How ranks communicate.
///   returns     "threads"|"mpi"|"tcp"|"transport"|"fake"   with "fake" there is no other rank, and what others would
///     send is made up
///   collective  no
///   example
///     mh.backend()    --> threads
int backend(lua_State* lua) {
  push(lua, context(lua).world->backend());
  return 1;
}

/// mh.device() -> string
///   The device on which the run computes, as the command line or the launcher chose it.
///   returns     string      "cpu", or "cuda:N"
///   collective  no
///   example
///     mh.device()    --> cpu
int device(lua_State* lua) {
  push(lua, context(lua).device);
  return 1;
}

/// mh.barrier() -> nothing
///   Waits until every rank of the run is here.
///   returns     nothing
///   collective  over all ranks
///   errors      CommError: a rank is lost, or makes another call
///   example
///     mh.barrier()
///     mh.rank() < mh.world_size()    --> true
int barrier(lua_State* lua) {
  context(lua).world->barrier();
  return 0;
}

void set_count(lua_State* lua, const char* name, int64_t count) { set_field(lua, name, count); }

void push_counts(lua_State* lua, const CommStats::Count& count) {
  lua_createtable(lua, 0, 3);
  set_count(lua, "calls", count.calls);
  set_count(lua, "messages", count.messages);
  set_count(lua, "bytes", count.bytes);
}

/// {["aten::sum.dim_IntList"] = {calls, bytes, gathered}}: every operator that ran on ShardTensors.
void push_operator_counts(lua_State* lua) {
  lua_newtable(lua);
  for (const auto& [name, counts] : Dispatch::of_this_thread().operator_counts()) {
    lua_createtable(lua, 0, 3);
    set_count(lua, "calls", counts.calls);
    set_count(lua, "bytes", counts.bytes);
    set_count(lua, "gathered", counts.gathered);
    lua_setfield(lua, -2, name.c_str());
  }
}

void push_halo_times(lua_State* lua, const HaloTimes& times) {
  lua_createtable(lua, 0, 4);
  set_count(lua, "exchanges", times.exchanges);
  set_field(lua, "seconds", times.under_way);
  set_field(lua, "waited", times.waited);
  set_field(lua, "hidden", times.hidden());
}

/// mh.comm_stats({reset = false}) -> table
///   What this rank has sent so far. The bytes of a script's own redistribute, and of gradients that return to their
///   leaves, belong to no operator.
///   reset       boolean     also sets all numbers to 0
///   returns     table       {calls, messages, bytes, waited, by_kind, by_operator, halo}: waited is the seconds that
///     this rank spent in collectives and exchanges of all kinds, waiting for others and moving data (NCCL: the host's
///     share); by_kind.all_reduce is {calls, messages, bytes}, by_operator["aten::mm"] is {calls, bytes, gathered},
///     halo is {exchanges, seconds, waited, hidden}: seconds that exchanges took, how many of them this rank waited,
///     and the share that was hidden behind computing (0 on CUDA devices)
///   collective  no
///   example
///     mh.comm_stats{reset = true}
///     mh.comm_stats().bytes    --> 0
int comm_stats(lua_State* lua) {
  const Options options(lua, 1, "comm_stats", {"reset"});
  Communicator& world = *context(lua).world;
  const CommStats stats = world.stats();
  push_counts(lua, stats.total());
  lua_createtable(lua, 0, CommStats::kKinds);
  for (int kind = 0; kind < CommStats::kKinds; ++kind) {
    push_counts(lua, stats.by_kind[kind]);
    lua_setfield(lua, -2, CommStats::name(static_cast<CommStats::Kind>(kind)));
  }
  lua_setfield(lua, -2, "by_kind");
  push_operator_counts(lua);
  lua_setfield(lua, -2, "by_operator");
  push_halo_times(lua, halo_times());
  lua_setfield(lua, -2, "halo");
  set_field(lua, "waited", stats.waited);
  if (options.get_bool("reset", false)) {
    world.reset_stats();
    Dispatch::of_this_thread().reset_operator_counts();
    halo_times() = {};
  }
  return 1;
}

/// _waited(): comm_stats().waited, without tables.
int seconds_waited(lua_State* lua) {
  push(lua, context(lua).world->stats().waited);
  return 1;
}

const luaL_Reg kPlacementMethods[] = {{"is_shard", guard<is_shard>},
                                      {"is_stored", guard<is_stored>},
                                      {"is_replicate", guard<is_replicate>},
                                      {"is_partial", guard<is_partial>},
                                      {nullptr, nullptr}};
const luaL_Reg kPlacementGetters[] = {
    {"dim", guard<placement_dim>}, {"sizes", guard<placement_sizes>}, {"op", guard<placement_op>}, {nullptr, nullptr}};
const luaL_Reg kPlacementMeta[] = {
    {"__tostring", guard<placement_string>}, {"__eq", guard<placement_equal>}, {nullptr, nullptr}};

const luaL_Reg kMeshMethods[] = {{"size", guard<mesh_size>},
                                 {"set_macs_per_byte", guard<mesh_set_macs_per_byte>},
                                 {"coordinate", guard<mesh_coordinate>},
                                 {"slice", guard<mesh_slice>},
                                 {"barrier", guard<mesh_barrier>},
                                 {nullptr, nullptr}};
const luaL_Reg kMeshGetters[] = {{"shape", guard<mesh_shape>},
                                 {"names", guard<mesh_names>},
                                 {"ndim", guard<mesh_ndim>},
                                 {"rank", guard<mesh_rank>},
                                 {"device_type", guard<mesh_device_type>},
                                 {"device", guard<mesh_device>},
                                 {nullptr, nullptr}};
const luaL_Reg kMeshMeta[] = {{"__index", guard<mesh_index>},
                              {"__tostring", guard<mesh_string>},
                              {"__eq", guard<mesh_equal>},
                              {nullptr, nullptr}};

const luaL_Reg kMeshFunctions[] = {{"init_device_mesh", guard<make_mesh>},
                                   {"Shard", guard<make_shard>},
                                   {"Stored", guard<make_stored>},
                                   {"Replicate", guard<make_replicate>},
                                   {"Partial", guard<make_partial>},
                                   {"rank", guard<rank>},
                                   {"local_rank", guard<own_local_rank>},
                                   {"world_size", guard<world_size>},
                                   {"device", guard<device>},
                                   {"backend", guard<backend>},
                                   {"barrier", guard<barrier>},
                                   {"comm_stats", guard<comm_stats>},
                                   {"_waited", guard<seconds_waited>},
                                   {nullptr, nullptr}};

void open_mesh(lua_State* lua) {
  define_object<Placement>(lua, kPlacementMethods, kPlacementGetters, kPlacementMeta);
  define_object<DeviceMesh>(lua, kMeshMethods, kMeshGetters, kMeshMeta);
  add_functions(lua, kMeshFunctions);
}

const Binding mesh_binding{"mesh", open_mesh};

}  // namespace
}  // namespace moonhalo::scripting
