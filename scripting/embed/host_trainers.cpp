// SPDX-License-Identifier: Apache-2.0
// Sessions whose last ranks train: what mh.host.trainers (lua/internal/trainers.lua) is made of.
#include <c10/util/Exception.h>

#include <numeric>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/embed/host_session.h"
#include "moonhalo/scripting/embed/trainer_link.h"

namespace moonhalo::scripting {

void HostSession::divide(lua_State* lua, int trainers) {
  TORCH_CHECK_VALUE(
      context(lua).world == world_ && link_ == nullptr && meshes_.empty() && fields_.empty() && boxes_.empty(),
      "host.trainers: the ranks cannot be divided any more\n  have  a session that is open, or divided "
      "before\n  fix   call mh.host.trainers once, while the script runs, outside of its functions");
  TORCH_CHECK_VALUE(
      trainers >= 1 && trainers < world_->size(), "host.trainers: ", trainers, " of ", world_->size(),
      " ranks cannot train\n  fix   open the session on more ranks than train, with one that trains at least");
  const bool trains = world_->rank() >= world_->size() - trainers;
  link_ = std::make_unique<TrainerLink>(control_->split(0, control_->rank()), trainers);
  part_ = world_->split(trains ? 1 : 0, world_->rank());
  control_group_ = control_->split(trains ? 1 : 0, control_->rank());
  context(lua).world = part_;
}

TrainerLink& HostSession::link() const {
  TORCH_INTERNAL_ASSERT(link_ != nullptr, "host.trainers was not called");
  return *link_;
}

std::optional<std::vector<double>> HostSession::next_snapshot(const std::vector<std::string>& names) {
  const std::optional<TrainerLink::Request> request = link().next(names.size());
  if (!request) return std::nullopt;
  BoxGrid grid{{}, {std::vector<int64_t>(world_->size(), 1)}, std::vector<int64_t>(world_->size())};
  std::iota(grid.place.begin(), grid.place.end(), int64_t{0});
  const MeshPtr mesh = mesh_for(grid);
  for (size_t i = 0; i < names.size(); ++i) {
    const at::Tensor& slab = request->slabs[i];
    std::vector<int64_t> shape = slab.sizes().vec();
    shape[0] = std::accumulate(request->sizes[i].begin(), request->sizes[i].end(), int64_t{0});
    const Placement cut = world_->size() == 1 ? replicate() : shard(0, request->sizes[i]);
    set_field(names[i], from_local(slab, make_spec(mesh, shape, {cut})));
  }
  return request->numbers;
}

namespace {

HostSession& session_of(lua_State* lua) { return *static_cast<HostSession*>(lua_touserdata(lua, lua_upvalueindex(1))); }

std::vector<at::Tensor> check_weights(lua_State* lua, int index) {
  const std::vector<at::Tensor> weights = check_tensor_list(lua, index);
  for (const at::Tensor& weight : weights) {
    TORCH_CHECK_VALUE(!is_shard_tensor(weight), "host.trainers: a weight is cut over ranks\n  have  ",
                      spec(weight)->to_string(),
                      "\n  fix   give plain tensors: solvers and trainers have no mesh in common");
  }
  return weights;
}

/// divide(ranks): whether this rank trains.
int divide(lua_State* lua) {
  HostSession& session = session_of(lua);
  session.divide(lua, static_cast<int>(check_int(lua, 1)));
  push(lua, session.link().trains());
  return 1;
}

int under_way(lua_State* lua) {
  push(lua, session_of(lua).link().under_way());
  return 1;
}

/// request(fields, numbers, weights)
int request(lua_State* lua) {
  HostSession& session = session_of(lua);
  session.link().request(*session.world(), check_tensor_list(lua, 1), check_number_list(lua, 2), check_weights(lua, 3));
  return 0;
}

/// take(weights): whether there were new ones.
int take(lua_State* lua) {
  HostSession& session = session_of(lua);
  push(lua, session.link().take(*session.world(), check_weights(lua, 1)));
  return 1;
}

int finish(lua_State* lua) {
  HostSession& session = session_of(lua);
  push(lua, session.link().finish(*session.world(), check_weights(lua, 1)));
  return 1;
}

/// next(names): the numbers of a snapshot, or nil.
int next(lua_State* lua) {
  const auto numbers = session_of(lua).next_snapshot(check_string_list(lua, 1));
  if (numbers) {
    push(lua, *numbers);
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

int reply(lua_State* lua) {
  session_of(lua).link().reply(check_weights(lua, 1));
  return 0;
}

/// fail(weights, text)
int fail(lua_State* lua) {
  session_of(lua).link().fail(check_weights(lua, 1), check_string(lua, 2), context(lua).rank_was_lost);
  return 0;
}

const luaL_Reg kFunctions[] = {{"divide", guard<divide>}, {"under_way", guard<under_way>}, {"request", guard<request>},
                               {"take", guard<take>},     {"finish", guard<finish>},       {"next", guard<next>},
                               {"reply", guard<reply>},   {"fail", guard<fail>},           {nullptr, nullptr}};

}  // namespace

void HostSession::push_trainer_functions(lua_State* lua, HostSession* session) {
  luaL_newlibtable(lua, kFunctions);
  lua_pushlightuserdata(lua, session);
  luaL_setfuncs(lua, kFunctions, 1);
}

}  // namespace moonhalo::scripting
