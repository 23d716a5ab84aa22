// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace moonhalo {

class Communicator;

/// ValueError on every rank of `world`, naming two that differ, unless all give the same `setting`: "OP: ranks 0 and 2
/// want different SETTINGS". Collective; in a world of one, or a fake one, no rank is there to differ.
void check_same_on_all_ranks(Communicator& world, const char* op, const char* settings, const std::string& setting);

/// Runs `work` on this rank and throws on every rank when it failed on any: the message of the first failing rank,
/// in its own type, naming the rank unless all failed in the same words. So no rank waits for one whose disk
/// failed. `rank` says which one it is, "R of N"; "" stands for the rank in this group. Collective over `group`;
/// `work` itself must not communicate.
void fail_together(Communicator& group, const std::function<void()>& work, const std::string& rank = "");

/// Returns rank 0's `text` on all ranks, however long rank 0 takes to come. Collective over `group`.
std::string broadcast_string(Communicator& group, std::string text);

/// Runs `work` on rank 0 alone (in a fake world, which may lack rank 0, on this rank) and returns its text on all
/// ranks; its error is thrown on all. Collective over `group`; `work` itself must not communicate.
std::string run_on_first_rank(Communicator& group, const std::function<std::string()>& work);

}  // namespace moonhalo
