// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <cstdint>
#include <string>

namespace moonhalo::scripting {

inline constexpr const char* kDefaultProfileFolder = "profile";

/// The options of `moonhalo run --profile`.
struct ProfileRequest {
  std::string folder;  ///< empty: nothing
  int64_t first = 3, last = 5;
  bool nvtx = false;  ///< every event is an NVTX range, too
};

/// Does what mh.profile does: nothing in a dry run. Not collective unless it ends another one.
void begin_run_profile(lua_State* lua, const ProfileRequest& request);
/// At the end of a script: saves a profile whose last step was not reached, and warns where no step of it was.
/// Collective if a profile was requested.
void end_run_profile(lua_State* lua);

}  // namespace moonhalo::scripting
