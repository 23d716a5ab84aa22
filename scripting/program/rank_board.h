// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::scripting {

/// Thread ranks have a barrier here after each step (a test, a line of the repl) to learn how it went on all of
/// them. It is not a communicator: it works while some ranks still wait in a collective that a failed rank will
/// never join.
class RankBoard {
 public:
  struct Outcome {
    std::string failure;   ///< strings of the ranks that failed, with their numbers; empty when none did
    bool aborted = false;  ///< ranks diverged in a collective: the world is of no further use
  };

  explicit RankBoard(int ranks) : ranks_(ranks) {}

  /// Every rank calls it after the same steps, with its own failure ("" for none), and gets the
  /// same outcome. Ranks that wait in a collective for one that is here get an error there. When a
  /// rank has failed and others do not come within five seconds, `world` is aborted, which brings
  /// them.
  Outcome arrive(Communicator& world, const std::string& failure);

  /// The text that rank 0 publishes for the next step; other ranks wait for it.
  void publish(const std::string& text);
  std::string await(int step);

 private:
  struct Step {
    int arrived = 0;
    std::map<int, std::string> failures;
    bool aborted = false;
  };
  std::string text(const Step& step) const;

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> next_step_;  // by rank
  std::map<int, Step> steps_;
  std::map<int, std::string> published_;
};

}  // namespace moonhalo::scripting
