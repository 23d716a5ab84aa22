// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <cstdint>

namespace moonhalo::scripting {

/// Finds the number of this rank among those of its host, for mh.local_rank(). Collective for
/// ranks that are processes; threads are all on one host.
void find_local_rank(lua_State* lua);
/// That number. Where find_local_rank has not been called the first call is collective.
int64_t local_rank(lua_State* lua);

}  // namespace moonhalo::scripting
