// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace moonhalo {

class Communicator;

/// Sets whether `world` and the groups split from it compare every call between ranks before data moves: verb, sizes,
/// dtype, and the operator with its specs, numbers and what made its tensors (engine/comm/call_tag.h). Rank threads
/// always do; under MPI it is on unless the environment says MOONHALO_CHECK_CALLS=0 on any rank. Collective over
/// `world`; returns what was set before.
bool set_check_calls(Communicator& world, bool on);

/// Sets what says where this thread's program is, "train.lua:12", for the errors of ranks that part ways. Lua states
/// set it for their thread; a program without Lua may. `owner` tells who may take it back.
void set_program_position(const void* owner, std::function<std::string()> position);
void clear_program_position(const void* owner);

/// Communicators that compare calls only when asked to.
class ChecksCalls {
 public:
  virtual ~ChecksCalls() = default;
  virtual bool set_check_calls(bool on) = 0;
};

}  // namespace moonhalo
