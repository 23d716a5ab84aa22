// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/tcp/transport.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// The state that the groups split from one world share.
struct TransportWorld {
  uint64_t id = 0;
  std::atomic<uint64_t> absence = 0;  ///< how often ranks were suspended and have resumed
  std::map<int, uint64_t> calls;      ///< by group's tag: calls begun. Changed under `mutex`
  std::map<int, uint64_t> failed;     ///< by group's tag: the first call in which this rank failed. Under `mutex`
  std::mutex mutex;
  std::map<int, std::string> broken;  ///< by group's tag: how its ranks have diverged
  std::string aborted;
  GroupList groups;
};

/// Keeps the first CommError of several steps that all run: a rank that was lost must not keep notes from others.
class FirstFailure {
 public:
  template <typename Step>
  void run(const Step& step) {
    try {
      step();
    } catch (const CommError&) {
      if (!failure_) failure_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

/// Holds what all worlds over one transport share: the tags of their groups, and notes of ranks that are suspended
/// or make other calls than others, which flood a binary tree of all ranks. Ranks pass notes on while they wait for
/// something.
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
  /// Ranks of a group that make different calls send them to each other with its tag and this added.
  static constexpr int kDescriptionTags = 16384;
  /// A rank that fails tests its last messages for at most this long: a transport may move them in tests alone.
  static constexpr std::chrono::milliseconds kTakenWithin{200};

  /// This rank makes no more calls in this world until its ranks come back. Does not fail for ranks that cannot be
  /// reached.
  void suspend(TransportWorld& world);
  /// Takes notes that have come, and passes them on. Any thread. Goes through all neighbours, also where one fails.
  void poll();
  /// CommError where notes of a rank failed in the last poll: it was lost, or has ended.
  void check_neighbours();
  /// A rank of the group of `members` with this tag that was lost, or is suspended and never ends its call
  /// `number`; -1 if there is none. (Two groups of different ranks may have one tag.)
  int ended_rank(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number);
  /// Says why a call of a group ends on no rank: its ranks make different calls, or one was lost.
  struct Failure {
    uint64_t call = 0;
    bool lost = false;
    std::string text;
  };
  /// A call of a group in which a rank waits.
  struct Waiting {
    int rank;           ///< in the group
    uint64_t call_tag;  ///< the same on ranks that make the same call
    std::string text;
  };
  /// Announces to all ranks that this one waits in call `number` of the group with this tag.
  void announce(const TransportWorld& world, int tag, uint64_t number, uint64_t call_tag, const std::string& text);
  /// Returns what ranks of the group of `members` have announced so.
  std::vector<Waiting> waiting(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number);
  /// Announces it to all ranks, of the group with this tag. Does not fail for ranks that cannot be reached.
  void announce(const TransportWorld& world, int tag, const Failure& failure);
  /// Returns what a rank of the group of `members` has announced of call `number` or one before it.
  std::optional<Failure> announced(const TransportWorld& world, int tag, const std::vector<int>& members,
                                   uint64_t number);
  /// See CommunicatorBackend: of the group of `members` with this tag. `missing`: a rank that is suspended in this
  /// world or was lost, or a member that has ended before call `number` of the devices; -1 if there is none. Any
  /// thread.
  void note_device_call(int tag, uint64_t number);
  int missing(const TransportWorld& world, int tag, const std::vector<int>& members, uint64_t number);

 private:
  static constexpr size_t kGroups = 60;
  struct Note {
    uint64_t world, absence, rank, groups;
    std::array<std::array<uint64_t, 2>, kGroups> calls;  // tag, calls that this rank has not failed in
    // Or, where `call` is not 0, of that call of the group with `tag`.
    enum About : uint64_t { kMismatch, kLost, kWaits };
    uint64_t about = kMismatch, tag = 0, call = 0, call_tag = 0;
    std::array<char, 2000> text{};
  };
  struct Sending {
    std::shared_ptr<const Note> note;
    int rank;
    void* request;
  };
  struct Neighbour {
    int rank;
    std::unique_ptr<Note> note;
    void* request;
  };
  Note note_of(const TransportWorld& world, int tag, uint64_t number, const std::string& text) const;
  void listen_to(Neighbour& neighbour);
  void withdraw_all();
  void take(const Note& note);
  void pass_on(const Note& note, int from);
  void take_from(Neighbour& neighbour);
  void test_sends(FirstFailure& failure);
  void start_own(const Note& note);
  void finish_sends();

  TransportPtr transport_;
  int next_tag_ = 1;
  std::vector<Neighbour> neighbours_;
  std::deque<Sending> sending_;
  std::mutex mutex_;      // of notes
  FirstFailure failure_;  // of the last poll
  // By world, absence and rank: calls of groups by tag.
  std::map<std::array<uint64_t, 2>, std::map<uint64_t, std::map<uint64_t, uint64_t>>> suspended_;
  static constexpr size_t kKept = 64;
  struct Announced {
    int rank;
    uint64_t absence;
    Failure failure;
  };
  std::map<std::pair<uint64_t, uint64_t>, std::vector<Announced>> announced_;  // by world and tag
  std::map<std::pair<uint64_t, uint64_t>, std::deque<Note>> waiting_;          // the same; the last kKept
  std::map<int, uint64_t> device_calls_;                                       // by tag
};

}  // namespace moonhalo
