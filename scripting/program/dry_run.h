// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "moonhalo/engine/forecast/rank_kinds.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

/// A rank of a dry run failed. What failed was printed; `status` is that of the program.
class DryRunFailed : public std::runtime_error {
 public:
  explicit DryRunFailed(int status) : std::runtime_error("a dry run failed"), status(status) {}
  int status;
};

/// Runs the script of `options` as each of these ranks of options.ranks, without computing, until `steps` training
/// steps have ended. Then `timed` more steps find the time of the host (RankRun::host). Several ranks run at a time.
/// What the script prints is dropped. `done` is called with the number of ranks whenever some have been run. Throws
/// DryRunFailed.
std::vector<RankRun> dry_run(SessionOptions options, const std::vector<int64_t>& ranks, int64_t steps, int64_t timed,
                             const std::function<void(int64_t)>& done);

}  // namespace moonhalo::scripting
