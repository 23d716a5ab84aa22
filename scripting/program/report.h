// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "moonhalo/scripting/core/errors.h"

namespace moonhalo::scripting {

/// Gathers the failures of the ranks of one run and prints them once. Any thread.
class ErrorReport {
 public:
  /// secondary   the rank only noticed that another one had failed
  void add(int64_t rank, const LuaError& error, bool secondary);
  bool empty() const;
  /// No rank failed by itself: one was lost.
  bool only_secondary() const;
  /// "rank 1: script.lua:3: ..." with the source line and a traceback; ranks that say the same are
  /// named together and secondary messages are left out when there are others.
  std::string text(int64_t world_size) const;

 private:
  struct Entry {
    int64_t rank;
    std::string message;
    std::string traceback;
    bool secondary;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// The line of the user's script that a message begins with, and the traceback's lines in the user's files; lines that
/// end with "\n", none where nothing is known.
std::string place_in_script(const std::string& message, const std::string& traceback);

/// "  12 | local y = x .. 1" for a message that begins with "file:12: ", "" when the file cannot
/// be read.
std::string source_line(const std::string& message);

}  // namespace moonhalo::scripting
