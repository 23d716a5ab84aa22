// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// A ring over thousands of ranks takes a step for each of them. In a dry run most steps differ only in their peers
/// from those that came a period before. A recorder can write these down without them. Nothing of this file is
/// collective.

/// Writes down the steps that are left out.
class EqualStepsListener {
 public:
  /// The rank in the group of a message of the last period: of the exchange of its step `step`, the number `part` of
  /// what is sent or received; in the period that comes `later` periods after it.
  using PeerOf = std::function<int(bool sends, size_t step, size_t part, int64_t later)>;
  virtual ~EqualStepsListener() = default;
  /// A ring begins; a step of it begins.
  virtual void ring_begins() = 0;
  virtual void step_begins() = 0;
  /// True if the last `period` steps were equal to those before them but for their peers, with one exchange each.
  virtual bool repeats(int64_t period) const = 0;
  /// The next `periods` periods are as the last one, with these peers. The memory that the last two periods hold
  /// becomes that of the last two that are left out.
  virtual void leave_out(int64_t period, int64_t periods, const PeerOf& peer_of) = 0;
};

/// While it exists, rings of this rank leave out steps that are equal but for their peers, if ranks are fake.
class LeaveOutEqualSteps {
 public:
  /// `listener`: null where nothing is recorded. Then a ring takes only its first step.
  explicit LeaveOutEqualSteps(EqualStepsListener* listener);
  /// That of this rank, if it has one and the ranks of `group` are fake, else null.
  static const LeaveOutEqualSteps* of(const Communicator& group);
  EqualStepsListener* listener() const { return listener_; }

 private:
  EqualStepsListener* const listener_;
  ScopedValue<const LeaveOutEqualSteps*> current_;
};

/// The steps of a ring that are equal to those a period before.
class EqualSteps {
 public:
  /// `kinds`: a number for each step, the same one for steps that are equal but for their peers. Empty: none are.
  explicit EqualSteps(const std::vector<int64_t>& kinds);
  /// The steps of a period; 0 if steps do not repeat.
  int64_t period() const { return period_; }
  /// The whole periods from step `step` on that repeat the one before it, which repeats another one. What is exchanged
  /// beside a step is of the steps before and after it, and step 1 is the first with an exchange.
  int64_t periods_from(int64_t step) const;

 private:
  int64_t period_ = 0;
  std::vector<int64_t> ends_;  // of each step the first one from it on that is not equal to the one a period before
};

}  // namespace moonhalo
