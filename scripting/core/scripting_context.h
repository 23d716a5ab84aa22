// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/scripting/core/after_calls.h"

struct lua_State;

namespace moonhalo::scripting {

struct OwnOrder;

/// One rank's state of scripts.
struct ScriptingContext {
  const AfterCalls::Seen* after_calls = nullptr;  ///< after_calls.h
  /// The module of the exported program whose operator has just run, for module_path (error_place.h); else null.
  const std::string* program_module = nullptr;
  lua_State* recorded_state = nullptr;      ///< calls.h; null where nothing records lines
  std::vector<const OwnOrder*> own_orders;  ///< loops whose order ranks do not share (bind/pairs.cpp)
  /// mh.set_printoptions (operators/print_tensor.cpp)
  struct PrintOptions {
    int64_t precision = 4;     // digits behind the point
    int64_t threshold = 1000;  // elements of a tensor that is printed in full
    int64_t edgeitems = 3;     // at both ends of each dim of a larger one
    int64_t linewidth = 80;
    std::optional<bool> sci_mode;  // as the numbers need it
  } print_options;
};
inline const RankLocal<ScriptingContext> scripting_context;

}  // namespace moonhalo::scripting
