// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/operator_call.h"
#include "moonhalo/engine/forecast/step_calls.h"

namespace moonhalo {

/// The way in which operators run on a host: some ranks compute at the same time, each with some threads of LibTorch.
struct HostShare {
  int64_t copies = 1, threads = 1;

  /// The share of each of `ranks` ranks on a host of `cores` cores; more ranks than cores take turns.
  static HostShare of(int64_t ranks, int64_t cores);
  auto operator<=>(const HostShare&) const = default;
};

/// Measured times of single operators on this host, kept in a file beside that of the machine. It belongs to the
/// processor's model, the number of cores and the version of LibTorch: of others it is begun again. Nothing of it is
/// collective.
class OperatorTimes {
 public:
  /// The findings of measure().
  struct Report {
    int64_t measured = 0, known = 0;
    bool stable = true;               ///< repeated times agreed within 3 %
    std::vector<std::string> failed;  ///< "KEY: why it has no time"
  };

  /// Reads `path`, if it is there. `cores`: of the host, of which a launcher may have left this process a part. Throws
  /// ValueError for a file that cannot be read or is not one of these.
  explicit OperatorTimes(std::string path, int64_t cores = usable_core_count());
  /// "machine.json" -> "machine.operators.json"
  static std::string path_beside(const std::string& machine);

  /// The host of the file's times if it is another one, so that they are begun again; else "".
  const std::string& other_host() const { return other_host_; }
  /// The number of calls that have no time yet for this share and that measure() would measure. Runs each of them.
  int64_t measurable(const std::vector<OperatorCall>& calls, HostShare share) const;
  /// Measures the calls that have no time yet for this share, each for about `seconds`, and at least five times.
  /// Operators whose arguments and results take more than an eighth of the host's memory are left out.
  Report measure(const std::vector<OperatorCall>& calls, HostShare share, double seconds);
  /// The same, but `calls` are timed as `step` calls them one after another (step_replay.h), which takes the memory of
  /// a step on each rank of the share. Where that is more than a quarter of the host's, or `step` has no events, the
  /// calls are measured alone.
  Report measure_step(const std::vector<OperatorCall>& calls, const StepCalls& step, HostShare share, double seconds);
  /// The number of calls whose time was measured while the machine was not quiet: repeated times did not agree.
  int64_t unsteady(const std::vector<OperatorCall>& calls, HostShare share) const;
  /// From now on measure() takes no time of the file: it measures each call again, once for this object. Times of the
  /// file stay in it until theirs are measured.
  void measure_again();
  /// Gives `machine` the times of this share; those of other shares are taken out.
  void give_to(Machine& machine, HostShare share) const;
  /// Writes the file. Throws ValueError if it cannot be written.
  void save() const;

 private:
  void take(HostShare share, const std::string& key, double seconds, bool is_stable);
  std::vector<const OperatorCall*> without_time(const std::vector<OperatorCall>& calls, HostShare share) const;

  std::string path_, other_host_;
  int64_t cores_;
  using Times = std::map<HostShare, std::map<std::string, double>>;
  Times times_;
  Times older_;  ///< those that measure_again has left out
  std::map<HostShare, std::set<std::string>> unsteady_;
};

}  // namespace moonhalo
