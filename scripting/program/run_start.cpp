// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/run_start.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <ctime>
#include <random>

#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/local_rank.h"
#include "moonhalo/scripting/core/lua_random.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

/// A first reading within this time after the run began counts as the head of a script.
constexpr std::chrono::minutes kHead{1};

int64_t ticks() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// os.time() of several ranks: seconds since the first reading, on top of one start for all. A rank that comes later to
/// the head of the script so reads the same there, and a seed taken from it is the same on all ranks, wherever the
/// clock's second ends. Upvalues: the start, this rank's clock at its beginning, os.time, whether it was read.
int shared_time(lua_State* lua) {
  if (!lua_isnoneornil(lua, 1)) {
    lua_pushvalue(lua, lua_upvalueindex(3));
    lua_insert(lua, 1);
    lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
    return lua_gettop(lua);
  }
  using Clock = std::chrono::steady_clock::duration;
  const bool first = lua_toboolean(lua, lua_upvalueindex(4)) == 0;
  Clock elapsed(ticks() - lua_tointeger(lua, lua_upvalueindex(2)));
  if (first && elapsed < kHead) {
    push(lua, ticks());
    lua_replace(lua, lua_upvalueindex(2));
    elapsed = Clock(0);
  }
  push(lua, true);
  lua_replace(lua, lua_upvalueindex(4));
  push(lua,
       lua_tointeger(lua, lua_upvalueindex(1)) + std::chrono::duration_cast<std::chrono::seconds>(elapsed).count());
  return 1;
}

/// os.date([format[, time]]), of the time that os.time() tells. Upvalues: os.date, os.time.
int shared_date(lua_State* lua) {
  if (lua_isnoneornil(lua, 2)) {
    lua_settop(lua, 1);
    if (lua_isnil(lua, 1)) {
      push(lua, "%c");
      lua_replace(lua, 1);
    }
    lua_pushvalue(lua, lua_upvalueindex(2));
    lua_call(lua, 0, 1);
  }
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
  return lua_gettop(lua);
}

void share_time(lua_State* lua, int64_t start) {
  lua_getglobal(lua, "os");
  const int os = lua_gettop(lua);
  push(lua, start);
  push(lua, ticks());
  lua_getfield(lua, os, "time");
  push(lua, false);
  lua_pushcclosure(lua, guard<shared_time>, 4);
  lua_getfield(lua, os, "date");
  lua_pushvalue(lua, -2);
  lua_pushcclosure(lua, guard<shared_date>, 2);
  lua_setfield(lua, os, "date");
  lua_setfield(lua, os, "time");
  lua_settop(lua, os - 1);
}

}  // namespace

RunStart RunStart::draw() {
  std::random_device device;
  return {static_cast<int64_t>(uint64_t{device()} << 32 | device()), std::time(nullptr)};
}

RunStart RunStart::agreed(Communicator& world) const {
  at::Tensor numbers = at::empty({3}, at::kLong);
  auto* data = numbers.mutable_data_ptr<int64_t>();
  data[0] = entropy;
  data[1] = time;
  data[2] = log_error;
  world.broadcast(numbers, 0);
  return {data[0], data[1], data[2]};
}

void RunStart::enter(lua_State* lua, int ranks) const {
  set_lua_entropy(lua, static_cast<uint64_t>(entropy));
  local_rank(lua);  // now, so that a script may ask on one rank alone
  if (ranks > 1) share_time(lua, time);
}

}  // namespace moonhalo::scripting
