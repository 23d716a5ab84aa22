// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <cstdint>

namespace moonhalo::scripting {

/// Restarts the state's math.random. The same seed gives the same numbers on all ranks. Called when a state opens and
/// by mh.manual_seed; scripts have math.randomseed(n).
void seed_lua_random(lua_State* lua, uint64_t seed);

/// Gives math.randomseed() without an argument its seeds: one number for all ranks of a run, another for every
/// run. Zero, the default, makes the same seeds in every run.
void set_lua_entropy(lua_State* lua, uint64_t entropy);

}  // namespace moonhalo::scripting
