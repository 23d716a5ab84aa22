// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/deferred/factory_capture.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<ParallelPlan> = "ParallelPlan";

/// The table at `index`, placements by the names of factories, or true for Replicate.
FactoryPlan check_factory_plan(lua_State* lua, int index, const DeviceMesh& mesh);

}  // namespace moonhalo::scripting
