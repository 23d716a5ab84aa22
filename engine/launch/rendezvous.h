// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "moonhalo/engine/comm/transport.h"
#include "moonhalo/engine/launch/launch.h"

namespace moonhalo {

/// Where the processes of one launch meet: a store that torchrun, or else rank 0, serves.
struct MeetingPlace {
  std::string host;
  uint16_t port = 0;
  bool serves = false;  ///< this process does, for the others
  std::string run;      ///< tells runs apart that use one store
};

/// From MASTER_ADDR and MASTER_PORT, or for a step of Slurm from its first node and its number; nothing where neither
/// is known. ValueError for a port that is none.
std::optional<MeetingPlace> meeting_place(const Launch& launch, const std::function<const char*(const char*)>& getenv);

/// Connects the processes of a launch to each other by TCP. Collective over them. CommError, which names the ranks that
/// did not come, when that takes longer than `limit`.
TransportPtr meet(const Launch& launch, const MeetingPlace& place, std::chrono::milliseconds limit);

}  // namespace moonhalo
