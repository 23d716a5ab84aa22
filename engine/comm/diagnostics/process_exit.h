// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

class Communicator;

/// Processes that lost another rank end so: exit status of the program, and of what waits for others outside of any
/// verb.
inline constexpr int kRankLostStatus = 3;

/// world.abort(reason); processes then end with `status`, or with that of a rank that has left before with a status
/// other than 0.
void abort_with_status(Communicator& world, const std::string& reason, int status);

class AbortsWithStatus {
 public:
  virtual ~AbortsWithStatus() = default;
  virtual void abort(const std::string& reason, int status) = 0;
};

}  // namespace moonhalo
