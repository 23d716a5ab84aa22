// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace moonhalo {

class Communicator;

/// Parses a number of seconds from 0.001 to 1e9, as MOONHALO_TIMEOUT_S has it; nothing for any other string.
std::optional<std::chrono::milliseconds> parse_time_limit(const std::string& text);
/// Returns "5 s", for messages.
std::string seconds_text(std::chrono::milliseconds time);

/// Returns the timeout of communicators that this thread makes: that of a DefaultTimeLimit, else MOONHALO_TIMEOUT_S,
/// else 10 minutes.
std::chrono::milliseconds default_time_limit();
/// Sets it for the lifetime of the object, if `limit` has a value.
class DefaultTimeLimit {
 public:
  explicit DefaultTimeLimit(std::optional<std::chrono::milliseconds> limit);
  ~DefaultTimeLimit();
  DefaultTimeLimit(const DefaultTimeLimit&) = delete;

 private:
  std::optional<std::chrono::milliseconds> before_;
};

/// The communicators of one world on one rank: its groups, while they exist.
class GroupList {
 public:
  void add(Communicator* group);
  void remove(Communicator* group);
  void set_timeout(std::chrono::milliseconds limit);

 private:
  std::mutex mutex_;
  std::set<Communicator*> groups_;
};

/// Disables timeouts of this thread for the lifetime of the object, while one rank does something that may take any
/// time, such as writing a file. Ranks that exit or fail are still detected.
class WithoutTimeLimit {
 public:
  WithoutTimeLimit();
  ~WithoutTimeLimit();
  WithoutTimeLimit(const WithoutTimeLimit&) = delete;
};

/// Measures how long this thread has waited. Between two calls of poll at most one second counts, so that a job that
/// was suspended as a whole does not time out.
class WaitingTime {
 public:
  WaitingTime();
  ~WaitingTime();
  std::chrono::steady_clock::duration poll();
  /// Returns the part of the limit that was left at the last poll; 0 or less after the timeout.
  std::chrono::steady_clock::duration left(std::chrono::milliseconds limit) const;

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited_{};
  int exceptions_;  // under way when it began
};

/// Sums the times of waits that ended with an exception, for the lifetime of the object. The next wait for the same
/// rank then gets what is left of the timeout, so that a lost rank costs one timeout and not two.
class FailedWaits {
 public:
  FailedWaits();
  ~FailedWaits();
  FailedWaits(const FailedWaits&) = delete;
  /// Returns what is left of `limit`, but at least a tenth of it or a second, so that ranks that noticed one loss can
  /// still agree.
  std::chrono::milliseconds left(std::chrono::milliseconds limit) const;

 private:
  std::chrono::steady_clock::duration before_;
};

}  // namespace moonhalo
