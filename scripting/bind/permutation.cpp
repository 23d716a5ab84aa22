// SPDX-License-Identifier: Apache-2.0
// The order of samples, for scripting/lua/data/. Samplers of Lua are tables; their fields are the state of those of
// C++.
#include "moonhalo/engine/random/permutation.h"

#include <ATen/ATen.h>

#include <optional>
#include <type_traits>

#include "moonhalo/engine/random/sampler.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// _permuted(places, size, key, stream): what stands at these places (int64, 1-D) of a permutation of [0, size).
int permuted(lua_State* lua) {
  const at::Tensor& places = check_tensor(lua, 1);
  const Permutation permutation(check_int(lua, 2), static_cast<uint64_t>(check_int(lua, 3)),
                                static_cast<uint64_t>(check_int(lua, 4)));
  const at::Tensor on_host = places.cpu();  // a script's tensors are on its device
  at::Tensor values = at::empty_like(on_host);
  const auto from = on_host.accessor<int64_t, 1>();
  auto to = values.accessor<int64_t, 1>();
  for (int64_t i = 0; i < from.size(0); ++i) to[i] = permutation(from[i]);
  push(lua, values.to(places.device()));
  return 1;
}

/// Reads a field of the table at index `table`; an absent one leaves `value`.
template <class Value>
void read_sampler_field(lua_State* lua, int table, const char* name, Value& value) {
  if (lua_getfield(lua, table, name) != LUA_TNIL) {
    if constexpr (std::is_same_v<Value, bool>) {
      value = lua_toboolean(lua, -1) != 0;
    } else {
      value = check_int(lua, -1);
    }
  }
  lua_pop(lua, 1);
}

data::SamplerState sampler_state(lua_State* lua, int table) {
  data::SamplerState state;
  state.visit_fields(state, [&](const char* name, auto& field) { read_sampler_field(lua, table, name, field); });
  return state;
}

/// Writes the fields of the sampler at index 1.
void store(lua_State* lua, const data::SamplerState& state) {
  state.visit_fields(state, [lua](const char* name, auto field) {
    push(lua, field);
    lua_setfield(lua, 1, name);
  });
}

/// _sampler_batches(sampler): the number of batches of an epoch; checks the fields.
int sampler_batches(lua_State* lua) {
  const data::SamplerState state = sampler_state(lua, 1);
  state.check();
  push(lua, state.num_batches());
  return 1;
}

/// _sampler_next(sampler): the next batch, or nil at the end of the epoch.
int sampler_next(lua_State* lua) {
  data::SamplerState state = sampler_state(lua, 1);
  const std::optional<at::Tensor> batch = state.next_batch();
  store(lua, state);
  push(lua, batch ? batch->to(context(lua).device) : at::Tensor());
  return 1;
}

/// _sampler_load(sampler, state): SamplerState::load.
int sampler_load(lua_State* lua) {
  data::SamplerState state = sampler_state(lua, 1);
  state.load(sampler_state(lua, 2));
  store(lua, state);
  return 0;
}

data::DistributedSampler distributed_sampler(lua_State* lua) {
  int64_t size = 0, replicas = 0, rank = 0, epoch = 0;
  data::DistributedSamplerOptions options;
  read_sampler_field(lua, 1, "size", size);
  read_sampler_field(lua, 1, "num_replicas", replicas);
  read_sampler_field(lua, 1, "rank", rank);
  read_sampler_field(lua, 1, "epoch", epoch);
  read_sampler_field(lua, 1, "shuffle", options.shuffle);
  read_sampler_field(lua, 1, "seed", options.seed);
  read_sampler_field(lua, 1, "drop_last", options.drop_last);
  data::DistributedSampler sampler(size, replicas, rank, options);
  sampler.set_epoch(epoch);
  return sampler;
}

/// _replica_samples(sampler): the number of samples of this replica; checks the fields.
int replica_samples(lua_State* lua) {
  push(lua, distributed_sampler(lua).num_samples());
  return 1;
}

/// _replica_indices(sampler): the samples of this replica.
int replica_indices(lua_State* lua) {
  push(lua, distributed_sampler(lua).indices().to(context(lua).device));
  return 1;
}

const luaL_Reg kSamplerFunctions[] = {{"_permuted", guard<permuted>},
                                      {"_sampler_batches", guard<sampler_batches>},
                                      {"_sampler_next", guard<sampler_next>},
                                      {"_sampler_load", guard<sampler_load>},
                                      {"_replica_samples", guard<replica_samples>},
                                      {"_replica_indices", guard<replica_indices>},
                                      {nullptr, nullptr}};

const Binding permutation_binding{"permutation", [](lua_State* lua) { add_functions(lua, kSamplerFunctions); }};

}  // namespace

}  // namespace moonhalo::scripting
