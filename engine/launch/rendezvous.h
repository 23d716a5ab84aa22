// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "moonhalo/engine/comm/tcp/transport.h"
#include "moonhalo/engine/launch/launch.h"

namespace moonhalo {

/// Where the processes of one launch connect: a store that torchrun, or else rank 0, serves.
struct MeetingPlace {
  std::string host;
  uint16_t port = 0;
  bool serves = false;      ///< this process does, for the others
  std::string run;          ///< tells runs apart that use one store
  std::string job = {};     ///< what the machine calls the job, for ranks that have come to the wrong place
  std::string key = {};     ///< that all ranks have, and strangers do not (job_key.h); "": anybody may come
  std::string no_mpi = {};  ///< why this rank does without the MPI that its launcher has; others may have taken it
};

/// From MASTER_ADDR and MASTER_PORT, or for a step of Slurm from its first node and its number, or for a job of Open
/// MPI on one machine its loopback; nothing where none is known. ValueError for a port or a job key that is none.
std::optional<MeetingPlace> meeting_place(const Launch& launch, const std::function<const char*(const char*)>& getenv);

/// A warning for ranks that connect without a key where other machines may come; "" otherwise.
std::string open_meeting(const MeetingPlace& place);

/// Connects the processes of a launch to each other by TCP. Collective over them. CommError, which names the ranks
/// that did not come, when that takes longer than `limit`, and at once on all ranks where two say that they are the
/// same, or belong to different jobs. What is waited for is reported on stderr after `note_after`.
TransportPtr join_ranks(const Launch& launch, const MeetingPlace& place, std::chrono::milliseconds limit,
                        std::chrono::milliseconds note_after = std::chrono::seconds(10));

}  // namespace moonhalo
