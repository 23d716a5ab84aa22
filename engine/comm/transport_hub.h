// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/comm/transport.h"

namespace moonhalo {

/// The state that the groups split from one world share.
struct TransportWorld {
  uint64_t id = 0;
  std::atomic<uint64_t> absence = 0;  ///< how often ranks have parted and come back
  std::map<int, uint64_t> calls;      ///< by group's tag: calls begun. Changed under `mutex`
  std::mutex mutex;
  std::map<int, std::string> broken;  ///< by group's tag: how its ranks have parted ways
  std::string aborted;
  GroupList groups;
};

/// Holds what all worlds over one transport share: the tags of their groups, and notes of ranks that part, which flood
/// a binary tree of all ranks. Ranks pass notes on while they wait for something.
class TransportHub {
 public:
  explicit TransportHub(TransportPtr transport);
  ~TransportHub();
  TransportHub(const TransportHub&) = delete;

  Transport& transport() { return *transport_; }
  /// A group's messages have a tag of their own, the same on its ranks: the largest of what these have next.
  int next_tag() const { return next_tag_; }
  /// NotImplementedError when there are no more.
  void take_tag(int tag);
  /// Ranks of a group that make different calls tell each other with its tag and this added.
  static constexpr int kTellTags = 16384;

  /// This rank makes no more calls in this world until its ranks come back.
  void part(TransportWorld& world);
  /// Takes notes that have come, and passes them on. Any thread.
  void poll();
  /// A rank of the group of `members` with this tag that has parted and never makes its call `number`; -1 if there is
  /// none. (Two groups of different ranks may have one tag.)
  int gone(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number);
  /// See TellsFailures: of the group of `members` with this tag. `missing`: a rank that has parted from this world or
  /// was lost, or a member that has ended before call `number` of the devices; -1 if there is none. Any thread.
  void note_device_call(int tag, uint64_t number);
  int missing(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number);

 private:
  static constexpr size_t kGroups = 60;
  struct Note {
    uint64_t world, absence, rank, groups;
    std::array<std::array<uint64_t, 2>, kGroups> calls;  // tag, calls begun
  };
  struct Sending {
    std::shared_ptr<const Note> note;
    void* request;
  };
  struct Neighbour {
    int rank;
    std::unique_ptr<Note> note;
    void* request;
  };
  void take(const Note& note);
  void pass_on(const Note& note, int from);

  TransportPtr transport_;
  int next_tag_ = 1;
  std::vector<Neighbour> neighbours_;
  std::deque<Sending> sending_;
  std::mutex mutex_;  // of notes
  // By world, absence and rank: calls of groups by tag.
  std::map<std::array<uint64_t, 2>, std::map<uint64_t, std::map<uint64_t, uint64_t>>> parted_;
  std::map<int, uint64_t> device_calls_;  // by tag
};

}  // namespace moonhalo
