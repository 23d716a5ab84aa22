// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<Placement> = "Placement";
template <>
inline constexpr const char* kObjectName<DeviceMesh> = "DeviceMesh";

/// A list of placements, or one placement for a mesh of one dimension.
std::vector<Placement> check_placements(lua_State* lua, int index);
void push_placements(lua_State* lua, const std::vector<Placement>& placements);

}  // namespace moonhalo::scripting
