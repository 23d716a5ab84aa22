// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

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

/// MOONHALO_CHECK_CALLS: "0" or "1"; nothing if it is not set. ValueError for other texts.
std::optional<bool> check_calls_from_environment();

struct Message;
struct VerbCall;
/// ValueError on every rank alike unless all ranks of `group` make this call: verb, sizes, dtype, operator, and in an
/// exchange or all_to_all the bytes that go from each rank to each. Collective over `group`.
void compare_calls(Communicator& group, const VerbCall& call, const std::vector<Message>& sends,
                   const std::vector<Message>& receives);

/// Communicators that compare calls only when asked to.
class ChecksCalls {
 public:
  virtual ~ChecksCalls() = default;
  virtual bool set_check_calls(bool on) = 0;
  /// True if all ranks of this group call it in a CallScope with the same tag: a barrier, and one message of a few
  /// bytes. Nothing where calls are not compared. Collective.
  virtual std::optional<bool> same_scope() { return std::nullopt; }
};

}  // namespace moonhalo
