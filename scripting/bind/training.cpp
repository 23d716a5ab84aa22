// SPDX-License-Identifier: Apache-2.0
// Data parallelism: batches of ranks, meshes and their slices, stored parameters.
#include "moonhalo/scripting/bind/training.h"

#include <algorithm>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"
#include "moonhalo/engine/training/clip.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "moonhalo/engine/training/local_loss_mesh.h"
#include "moonhalo/engine/training/parameter_unit.h"
#include "moonhalo/engine/training/sample_arguments.h"
#include "moonhalo/engine/training/unit_reducer.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/bind/module_tree.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<ParameterUnit> = "ParameterUnit";

namespace {

/// local_batch(tensor, mesh["dp"]): mh.local_batch without marks (sample_arguments.lua).
int batch_of_ranks(lua_State* lua) {
  push(lua, local_batch(check_tensor(lua, 1), check_object<DeviceMesh>(lua, 2)));
  return 1;
}

/// mh.lift(tensor, mesh, placements) -> Tensor
///   Makes a tensor of a slice of a mesh one of the whole mesh, without communication.
///   tensor      Tensor      a ShardTensor on a slice, such as mesh["domain"]
///   mesh        DeviceMesh  the whole mesh
///   placements  {Placement}   one for each mesh dim that the slice lacks
///   returns     Tensor      the same blocks as a tensor of the mesh
///   collective  over the mesh
///   errors      ValueError: the mesh of the tensor is not a slice of the mesh
///   example
///     local grid = mh.init_device_mesh(mh.device(), {1, mh.world_size()}, {"data", "domain"})
///     local x = mh.distribute_tensor(mh.arange(6), grid["domain"], {mh.Shard(0)})
///     mh.lift(x, grid, {mh.Replicate()}).mesh == grid    --> true
int embed_in(lua_State* lua) {
  push(lua, embed_in_mesh(check_tensor(lua, 1), check_object<DeviceMesh>(lua, 2), check_placements(lua, 3)));
  return 1;
}

/// storage_dim(shape, placements, ranks): the dim along which fully_shard would keep blocks of a parameter that
/// these cut already (a list of placements or of their strings), or nil.
int dim_of_storage(lua_State* lua) {
  const std::vector<int64_t> shape = check_int_list(lua, 1);
  std::vector<bool> is_cut(shape.size(), false);
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(lua, 2)); ++i) {
    lua_rawgeti(lua, 2, i);
    const auto given = to_object<Placement>(lua, -1);
    const Placement one = given ? *given : parse_placement(check_string(lua, -1));
    lua_pop(lua, 1);
    if (one.is_shard()) is_cut.at(one.dim < 0 ? one.dim + shape.size() : one.dim) = true;
  }
  if (const auto dim = storage_dim(shape, is_cut, check_int(lua, 3), FullyShardOptions().min_numel)) {
    push(lua, *dim);
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

GradientSyncOptions check_gradient_options(lua_State* lua, int index) {
  const Options given(lua, index, "fully_shard", {"bucket_bytes", "reduce_dtype"});
  GradientSyncOptions options;
  options.bucket_bytes = given.get_int("bucket_bytes", options.bucket_bytes);
  options.reduce_dtype = given.get_dtype("reduce_dtype");
  return options;
}

/// fully_shard(module, mesh["dp"], {min_numel =, ...}, {bucket_bytes =, reduce_dtype =}): the unit. Collective over the
/// whole mesh.
int shard_module(lua_State* lua) {
  const Options given(
      lua, 3, "fully_shard",
      {"min_numel", "unit_rows", "reshard_after_forward", "reshard_after_backward", "prefetch", "param_dtype"});
  FullyShardOptions options;
  options.min_numel = given.get_int("min_numel", options.min_numel);
  options.unit_rows = given.get_int("unit_rows", options.unit_rows);
  options.reshard_after_forward = given.get_bool("reshard_after_forward", true);
  options.reshard_after_backward = given.get_bool("reshard_after_backward", true);
  options.prefetch = given.get_int("prefetch", 1);
  options.param_dtype = given.get_dtype("param_dtype");
  options.gradients = check_gradient_options(lua, 4);
  push_object(lua, fully_shard(check_module_tree(lua, 1), check_object<DeviceMesh>(lua, 2), options));
  return 1;
}

/// replicate(module, mesh["dp"], {bucket_bytes =, reduce_dtype =}): the unit. Collective over the whole mesh.
int replicate_module(lua_State* lua) {
  push_object(lua,
              replicate(check_module_tree(lua, 1), check_object<DeviceMesh>(lua, 2), check_gradient_options(lua, 3)));
  return 1;
}

/// unit:before_forward(): collective.
int before_forward(lua_State* lua) {
  check_object<ParameterUnit>(lua, 1)->before_forward();
  return 0;
}

/// unit:after_forward(results)
int after_forward(lua_State* lua) {
  check_object<ParameterUnit>(lua, 1)->after_forward(check_tensor_list(lua, 2));
  return 0;
}

/// unit:forward_failed()
int forward_failed(lua_State* lua) {
  check_object<ParameterUnit>(lua, 1)->forward_failed();
  return 0;
}

/// unit:cast_of(parameter): the same object where there is no cast.
int cast_of(lua_State* lua) {
  const at::Tensor& parameter = check_tensor(lua, 2);
  const at::Tensor cast = check_object<ParameterUnit>(lua, 1)->cast_of(parameter);
  if (cast.is_same(parameter)) {
    lua_pushvalue(lua, 2);
  } else {
    push(lua, cast);
  }
  return 1;
}

/// unit:reshard()
int reshard(lua_State* lua) {
  check_object<ParameterUnit>(lua, 1)->reshard();
  return 0;
}

/// finish_grad_sync(parameters): collective over their meshes.
int finish_sync(lua_State* lua) {
  const std::vector<at::Tensor> parameters = check_tensor_list(lua, 1);
  finish_grad_sync(parameters, {.bucket_bytes = bucket_bytes_of(parameters)});
  return 0;
}

/// note_parameter(tensor): it is a parameter of a module.
int parameter_of_module(lua_State* lua) {
  const at::Tensor& parameter = check_tensor(lua, 1);
  note_parameters({parameter});
  forget_trained_values(parameter);
  return 0;
}

/// is_parameter(tensor): whether note_parameter was called with it.
int is_of_module(lua_State* lua) {
  push(lua, meaning_of(check_tensor(lua, 1)).is_parameter);
  return 1;
}

const std::vector<std::string> kSaid = {"nothing", "constant", "own"};  // in the order of Said

/// say(tensor, "nothing" | "constant" | "own")
int say_of_tensor(lua_State* lua) {
  const auto found = std::find(kSaid.begin(), kSaid.end(), check_string(lua, 2));
  meaning_to_change(check_tensor(lua, 1)).said = static_cast<Said>(found - kSaid.begin());
  return 0;
}

/// said(tensor) -> what say has said
int said_of_tensor(lua_State* lua) {
  push(lua, kSaid[static_cast<size_t>(meaning_of(check_tensor(lua, 1)).said)]);
  return 1;
}

/// constant_of_samples(tensor, mesh["dp"])
int constant(lua_State* lua) {
  push(lua, constant_of_samples(check_tensor(lua, 1), check_object<DeviceMesh>(lua, 2)));
  return 1;
}

/// is_slice_of(tensor, mesh["dp"]): whether its mesh is a slice of the whole one, so that samples may be joined.
int is_on_slice(lua_State* lua) {
  const at::Tensor& tensor = check_tensor(lua, 1);
  const MeshPtr mesh = whole_mesh(check_object<DeviceMesh>(lua, 2));
  const bool shard = is_shard_tensor(tensor) && spec(tensor)->mesh() != mesh;
  push(lua, shard && !dims_of_slice(*mesh, *spec(tensor)->mesh()).empty());
  return 1;
}

/// check_samples(tensors, names, mesh["dp"], who): collective over the whole mesh.
int check_arguments(lua_State* lua) {
  const std::vector<at::Tensor> tensors = check_tensor_list(lua, 1);
  std::vector<SampleArgument> arguments;
  for (size_t i = 0; i < tensors.size(); ++i) {
    lua_rawgeti(lua, 2, static_cast<lua_Integer>(i) + 1);
    arguments.push_back({.tensor = tensors[i], .name = check_string(lua, -1)});
    lua_pop(lua, 1);
  }
  push(lua, check_sample_arguments(arguments, check_object<DeviceMesh>(lua, 3), check_string(lua, 4)));
  return 1;
}

/// register_local_loss_mesh(mesh["dp"])
int local_results(lua_State* lua) {
  register_local_loss_mesh(check_object<DeviceMesh>(lua, 1));
  return 0;
}

/// requires_gradient_sync(parameters, sync)
int requires_sync(lua_State* lua) {
  set_requires_gradient_sync(check_tensor_list(lua, 1), check_bool(lua, 2));
  return 0;
}

/// clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite): collective over their mesh.
int clip_parameters(lua_State* lua) {
  push(lua, clip_grad_norm(check_tensor_list(lua, 1), check_number(lua, 2), check_number(lua, 3), check_bool(lua, 4)));
  return 1;
}

const luaL_Reg kTrainingFunctions[] = {{"lift", guard<embed_in>}, {nullptr, nullptr}};
// Functions that only the embedded Lua files call are kept out of `mh`.
const luaL_Reg kTrainingInternals[] = {{"local_batch", guard<batch_of_ranks>},
                                       {"constant_of_samples", guard<constant>},
                                       {"is_slice_of", guard<is_on_slice>},
                                       {"check_samples", guard<check_arguments>},
                                       {"storage_dim", guard<dim_of_storage>},
                                       {"finish_grad_sync", guard<finish_sync>},
                                       {"requires_gradient_sync", guard<requires_sync>},
                                       {"clip_grad_norm", guard<clip_parameters>},
                                       {"register_local_loss_mesh", guard<local_results>},
                                       {"note_parameter", guard<parameter_of_module>},
                                       {"is_parameter", guard<is_of_module>},
                                       {"say", guard<say_of_tensor>},
                                       {"said", guard<said_of_tensor>},
                                       {"fully_shard", guard<shard_module>},
                                       {"replicate", guard<replicate_module>},
                                       {nullptr, nullptr}};
const luaL_Reg kUnitMethods[] = {{"before_forward", guard<before_forward>},
                                 {"after_forward", guard<after_forward>},
                                 {"forward_failed", guard<forward_failed>},
                                 {"cast_of", guard<cast_of>},
                                 {"reshard", guard<reshard>},
                                 {nullptr, nullptr}};

void open_training(lua_State* lua) {
  define_object<ParameterUnit>(lua, kUnitMethods);
  add_functions(lua, kTrainingFunctions);
  lua_newtable(lua);
  add_functions(lua, kTrainingInternals);
  lua_setfield(lua, -2, "_training");
}

const Binding training_binding{"training", open_training};

}  // namespace

void forget_trained_values(const at::Tensor& tensor) {
  if (!makes_fakes() || !tensor.requires_grad() || is_deferred(tensor) || !meaning_of(tensor).is_parameter) return;
  const at::Tensor block = is_shard_tensor(tensor) ? shard_impl(tensor)->local() : tensor;
  if (block.is_cpu() && block.layout() == at::kStrided && !is_fake(block)) forget_values(block);
}
}  // namespace moonhalo::scripting
