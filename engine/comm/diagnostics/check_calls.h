// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace moonhalo {

class Communicator;

/// Sets whether `world` and the groups split from it compare each call between the ranks before data moves: the kind of
/// collective, sizes, dtype, and the operator with its specs, its numbers and the origin of its tensors
/// (engine/comm/diagnostics/call_fingerprint.h). Rank threads always compare. Under MPI this is on unless
/// MOONHALO_CHECK_CALLS=0 is set on any rank. Returns the previous setting. Collective over `world`.
bool set_check_calls(Communicator& world, bool on);

/// Sets the function that returns the current source position of this thread's program, such as "train.lua:12". Errors
/// for ranks that make different calls show it. Lua states set it for their thread; a program without Lua may set its
/// own. Only the same `owner` can clear it. Not collective.
void set_program_position(const void* owner, std::function<std::string()> position);
void clear_program_position(const void* owner);

/// Returns the value of MOONHALO_CHECK_CALLS ("0" or "1"), or nullopt if it is not set. Throws ValueError for other
/// values. Not collective.
std::optional<bool> check_calls_from_environment();

struct Message;
struct CollectiveCall;
/// Throws the same ValueError on every rank of `group` unless all ranks make this call: the kind of collective, sizes,
/// dtype, operator, and for exchange and all_to_all the bytes that each rank sends to each other rank. Collective over
/// `group`.
void compare_calls(Communicator& group, const CollectiveCall& call, const std::vector<Message>& sends,
                   const std::vector<Message>& receives);

}  // namespace moonhalo
