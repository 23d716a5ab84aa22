// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <cstdint>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::scripting {

/// The state that all ranks of a run share and other runs do not.
struct RunStart {
  int64_t entropy = 0;    ///< for math.randomseed()
  int64_t time = 0;       ///< seconds, for os.time() and os.date()
  int64_t log_error = 0;  ///< errno of opening the log file, which rank 0 writes

  static RunStart draw();
  /// Rank 0's. Collective.
  RunStart agreed(Communicator& world) const;
  /// Gives math.randomseed() its entropy, mh.local_rank() its number and, to several ranks, one clock. Collective.
  void enter(lua_State* lua, int ranks) const;
};

}  // namespace moonhalo::scripting
