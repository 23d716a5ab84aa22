// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace moonhalo {

class Communicator;

/// A number of seconds as in MOONHALO_TIMEOUT_S, 0.001 to 1e9; nothing for any other text.
std::optional<std::chrono::milliseconds> parse_time_limit(const std::string& text);
/// "5 s", for messages.
std::string seconds_text(std::chrono::milliseconds time);

/// The time limit of communicators that this thread makes: what a DefaultTimeLimit says, else MOONHALO_TIMEOUT_S, else
/// 10 minutes.
std::chrono::milliseconds default_time_limit();
class DefaultTimeLimit {
 public:
  explicit DefaultTimeLimit(std::optional<std::chrono::milliseconds> limit);
  ~DefaultTimeLimit();
  DefaultTimeLimit(const DefaultTimeLimit&) = delete;

 private:
  std::optional<std::chrono::milliseconds> before_;
};

/// The groups of one world on one rank that are alive.
class GroupList {
 public:
  void add(Communicator* group);
  void remove(Communicator* group);
  void set_timeout(std::chrono::milliseconds limit);

 private:
  std::mutex mutex_;
  std::set<Communicator*> groups_;
};

/// While it lives this thread waits without a limit: another rank does alone what may take any time, such as writing a
/// file. A rank that ends or fails meanwhile is still found.
class WithoutTimeLimit {
 public:
  WithoutTimeLimit();
  ~WithoutTimeLimit();
  WithoutTimeLimit(const WithoutTimeLimit&) = delete;
};

/// Measures how long this thread has waited. Between two looks at most a second counts: a job that was suspended as a
/// whole lives on.
class WaitingTime {
 public:
  WaitingTime();
  ~WaitingTime();
  std::chrono::steady_clock::duration poll();
  /// The part of the limit that was left at the last look; 0 or less when it is over.
  std::chrono::steady_clock::duration left(std::chrono::milliseconds limit) const;

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration waited_{};
  int exceptions_;  // under way when it began
};

/// While it lives, it adds up how long this rank has waited in vain: in waits that ended with an exception. So what is
/// left of a limit can be given to the next wait for the same rank, and a lost rank costs one limit, not two.
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
