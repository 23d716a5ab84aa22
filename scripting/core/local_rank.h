// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <cstdint>

namespace moonhalo::scripting {

/// The number of this rank among those of its host, for mh.local_rank(). The first call is collective for ranks that
/// are processes; threads are all on one host.
int64_t local_rank(lua_State* lua);

}  // namespace moonhalo::scripting
