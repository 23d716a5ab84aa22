// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/local_rank.h"

#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {
int64_t local_rank(lua_State* lua) {
  Context& run = context(lua);
  if (run.local_rank < 0) run.local_rank = run.ranks_are_threads ? run.rank() : moonhalo::local_rank(*run.world);
  return run.local_rank;
}

}  // namespace moonhalo::scripting
