// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// Tells whoever waits for the program a sentence, on stderr.
inline void note(const std::string& text) {
  std::fprintf(stderr, "moonhalo: %s\n", text.c_str());
  std::fflush(stderr);
}

/// Says that what is tried has not come about within `after`, and goes on until `limit`, unless this object is gone by
/// then. An error comes sooner where the limit is no longer than that. Without a thread there is no note.
class LateNote {
 public:
  LateNote(std::chrono::milliseconds after, std::chrono::milliseconds limit, const std::string& what,
           const std::string& hint) {
    if (limit <= after) return;
    const std::string text = what + " within " + seconds_text(after) + ", and goes on trying for " +
                             seconds_text(limit - after) + "; " + hint;
    try {
      thread_ = std::thread([this, after, text] {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, after, [this] { return ended_; })) note(text);
      });
    } catch (const std::system_error&) {
    }
  }
  ~LateNote() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  LateNote(const LateNote&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace moonhalo
