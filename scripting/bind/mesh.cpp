// SPDX-License-Identifier: Apache-2.0
// Device meshes and placements.
#include "moonhalo/scripting/bind/mesh.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/comm/rank_device.h"
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
    placements.push_back(*check_object<Placement>(lua, -1));
    lua_pop(lua, 1);
  }
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

std::shared_ptr<Placement> this_placement(lua_State* lua) { return check_object<Placement>(lua, 1); }

/// mh.Shard(dim[, sizes])
int make_shard(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(
                       shard(check_int(lua, 1), is_nil(lua, 2) ? std::vector<int64_t>{} : check_int_list(lua, 2))));
  return 1;
}

/// mh.Stored(dim[, sizes]): a cut to save memory alone. Operators that need the whole tensor bring it together rather
/// than move any other.
int make_stored(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(
                       stored(check_int(lua, 1), is_nil(lua, 2) ? std::vector<int64_t>{} : check_int_list(lua, 2))));
  return 1;
}

int make_replicate(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(replicate()));
  return 1;
}

/// mh.Partial([op])
int make_partial(lua_State* lua) {
  push_object(lua, std::make_shared<Placement>(
                       partial(is_nil(lua, 1) ? ReduceOp::kSum : parse_reduce_op(check_string(lua, 1)))));
  return 1;
}

int is_shard(lua_State* lua) {
  const auto placement = this_placement(lua);
  const bool same_dim = is_nil(lua, 2) || placement->dim == check_int(lua, 2);
  push(lua, placement->is_shard() && same_dim);
  return 1;
}

int is_stored(lua_State* lua) {
  push(lua, this_placement(lua)->stored);
  return 1;
}

int is_replicate(lua_State* lua) {
  push(lua, this_placement(lua)->is_replicate());
  return 1;
}

int is_partial(lua_State* lua) {
  push(lua, this_placement(lua)->is_partial());
  return 1;
}

int placement_dim(lua_State* lua) {
  if (this_placement(lua)->is_shard()) {
    push(lua, this_placement(lua)->dim);
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

int placement_sizes(lua_State* lua) {
  if (this_placement(lua)->sizes.empty()) {
    lua_pushnil(lua);
  } else {
    push(lua, this_placement(lua)->sizes);
  }
  return 1;
}

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
  TORCH_CHECK_VALUE(dim >= 0 && dim < mesh(lua)->ndim(), mesh(lua)->to_string(), ": no mesh dimension ", dim, "\n  have  ",
                    mesh(lua)->ndim(), " dimensions\n  fix   name one, or give a number from 0 to ", mesh(lua)->ndim() - 1);
  return dim;
}

/// mh.init_device_mesh(device, shape[, names]): collective over all ranks. Without a device, or with mh.device(), on
/// those of the run.
int make_mesh(lua_State* lua) {
  Communicator& world = *context(lua).world;
  const c10::Device own = context(lua).device;
  std::string device = is_nil(lua, 1) ? own.str() : check_string(lua, 1);
  if (!own.is_cpu()) device = shared_device_name(world, own, std::move(device));
  push_object(lua, init_device_mesh(world, device, check_int_list(lua, 2),
                                    is_nil(lua, 3) ? std::vector<std::string>{} : check_string_list(lua, 3)));
  return 1;
}

/// mesh:size([dim])
int mesh_size(lua_State* lua) {
  const auto dim = mesh_dim(lua, 2);
  push(lua, dim ? mesh(lua)->size(*dim) : mesh(lua)->size());
  return 1;
}

/// mesh:coordinate(dim)
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

/// mesh:slice(name, ...)
int mesh_slice(lua_State* lua) {
  std::vector<std::string> names;
  for (int i = 2; i <= lua_gettop(lua); ++i) names.push_back(check_string(lua, i));
  push_object(lua, mesh(lua)->slice(names));
  return 1;
}

/// mesh:set_macs_per_byte(n): multiplications that a rank makes while it sends a byte. Products on this mesh, and
/// slices taken from it later, are then divided where bytes alone would have every rank repeat them; math.huge, the
/// default, counts bytes alone. Before tensors live on the mesh; alike on all ranks.
int mesh_set_macs_per_byte(lua_State* lua) {
  set_macs_per_byte(check_object<DeviceMesh>(lua, 1), check_number(lua, 2));
  return 0;
}

/// mesh:barrier()
int mesh_barrier(lua_State* lua) {
  mesh(lua)->group().barrier();
  return 0;
}

int mesh_shape(lua_State* lua) {
  push(lua, mesh(lua)->shape());
  return 1;
}

int mesh_names(lua_State* lua) {
  push(lua, mesh(lua)->names());
  return 1;
}

int mesh_ndim(lua_State* lua) {
  push(lua, mesh(lua)->ndim());
  return 1;
}

int mesh_rank(lua_State* lua) {
  push(lua, mesh(lua)->rank());
  return 1;
}

int mesh_device_type(lua_State* lua) {
  push(lua, mesh(lua)->device_type());
  return 1;
}

/// mesh.device: where this rank's blocks lie.
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

int rank(lua_State* lua) {
  push(lua, context(lua).rank());
  return 1;
}

/// mh.local_rank(): the number of this rank among those of its host, 0 on the first.
int own_local_rank(lua_State* lua) {
  push(lua, local_rank(lua));
  return 1;
}

int world_size(lua_State* lua) {
  push(lua, context(lua).world_size());
  return 1;
}

/// mh.backend(): "threads", "mpi", "tcp", "transport", or "fake": no other rank is there, and what others would send is
/// made up.
int backend(lua_State* lua) {
  push(lua, context(lua).world->backend());
  return 1;
}

/// mh.device(): where this run computes, as the command line or the launcher said.
int device(lua_State* lua) {
  push(lua, context(lua).device);
  return 1;
}

/// mh.barrier(): collective over all ranks.
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

/// mh.comm_stats([{reset = false}]): {calls, messages, bytes, by_kind = {all_reduce = {...}, ...}, by_operator =
/// {["aten::mm"] = {calls, bytes, gathered}}, halo = {exchanges, seconds, waited, hidden}} of this rank so far: seconds
/// that exchanges were under way, how much of it was spent waiting, and the share that was hidden behind computing (0
/// on devices, which the host's clock tells nothing of). Bytes of a script's own redistribute, and of gradients that
/// return to their leaves, belong to no operator.
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
  if (options.get_bool("reset", false)) {
    world.reset_stats();
    Dispatch::of_this_thread().reset_operator_counts();
    halo_times() = {};
  }
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
                                   {nullptr, nullptr}};

void open_mesh(lua_State* lua) {
  define_object<Placement>(lua, kPlacementMethods, kPlacementGetters, kPlacementMeta);
  define_object<DeviceMesh>(lua, kMeshMethods, kMeshGetters, kMeshMeta);
  add_functions(lua, kMeshFunctions);
}

const Binding mesh_binding{"mesh", open_mesh};

}  // namespace
}  // namespace moonhalo::scripting
