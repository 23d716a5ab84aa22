// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo {

/// Records of profiles. Not collective.

/// kCollective: a call of a verb; kMessages: the posting of an exchange; kWait: the wait for one.
enum class EventKind : uint8_t { kStep, kModule, kOperator, kBackward, kRange, kPart, kCollective, kMessages, kWait };
/// The part of a step that an event belongs to: kScript outside of operators, modules and the parts below.
/// kCheck: ranks compare plain tensors (mh.check_replicated), in whatever part.
enum class Phase : uint8_t { kScript, kForward, kBackward, kOptimizer, kReading, kCheck, kPhases };
/// The name of kCheck in tables.
inline constexpr const char* kCheckOfPlainTensors = "check of plain tensors";
/// Returns "script", "forward" and so on.
const char* name(Phase phase);

/// One event of a rank, from `begin` to `end`. Times are nanoseconds of the rank's monotonic clock; names, modules and
/// lines are positions in the lists of RankRecord. Events nest: each is within its parent.
struct ProfileEvent {
  int64_t begin = 0, end = 0;
  /// For operators: their MACs; for backward functions: the event that made them; for calls of verbs: bytes sent; for
  /// waits: the event of the exchange; else, and where there is none of it, -1.
  int64_t value = -1;
  uint32_t name = 0;
  uint32_t parent = kNoEvent;
  uint16_t module = 0, line = 0;
  uint16_t step = 0;
  EventKind kind = EventKind::kStep;
  Phase phase = Phase::kScript;

  /// The parent of an outermost event.
  static constexpr uint32_t kNoEvent = UINT32_MAX;
  /// Returns the time from begin to end.
  int64_t duration() const { return end - begin; }
};
static_assert(sizeof(ProfileEvent) == 40);

/// Memory of a rank's tensors in host memory while it was recorded. Empty (peak 0) where none was counted.
struct MemoryRecord {
  /// Where blocks were made: the `module` and the `phase`.
  struct Place {
    uint16_t module = 0;
    Phase phase = Phase::kScript;
    bool before = false;  ///< before the recording
    auto operator<=>(const Place&) const = default;
  };
  /// The `bytes` of the blocks that were made at a `place`.
  struct Held {
    Place place;
    int64_t bytes = 0;
  };
  /// The memory at one time: `live` bytes.
  struct Sample {
    int64_t time = 0;  ///< of the rank's clock
    int64_t live = 0;
  };
  int64_t peak = 0;
  std::vector<Held> at_peak;    ///< adds up to `peak`
  std::vector<Sample> samples;  ///< in the order of time
};

/// The record of one rank. Entry 0 of `modules` and `lines` stands for none.
struct RankRecord {
  /// A module, when it is called by its parent.
  struct Module {
    std::string name;     ///< "blocks.0.fc", of an outermost one its class
    uint16_t parent = 0;  ///< that called it, 0 for none
  };
  /// A call of a verb, the event number `event`. Ranks that make the same call have the same `group`, `tag` and `verb`
  /// (CommStats::Kind).
  struct CommCall {
    uint32_t event = 0, verb = 0;
    int32_t rank = 0, size = 0;  ///< of the group
    uint64_t group = 0, tag = 0;
  };
  /// A message of an exchange, which is `calls[call]`: its `bytes`.
  struct CommMessage {
    uint32_t call = 0;
    int32_t peer = 0;  ///< of the group
    int64_t bytes = 0;
    int64_t sent = 0;  ///< 1, or 0: received
  };
  /// The events in the order of their begins; calls of communicators and their messages; the lists of names.
  std::vector<ProfileEvent> events;
  std::vector<CommCall> calls;
  std::vector<CommMessage> messages;
  MemoryRecord memory;
  std::vector<std::string> names, lines = {""};
  std::vector<Module> modules = {Module{}};
  int64_t clock_offset = 0;  ///< to be added to times for those of rank 0
  bool full = false;         ///< the recorder stopped before the end, at its largest number of events
  uint16_t last_step = 0;    ///< the last step that was recorded to its end; 0: none

  /// The largest number of a step.
  static constexpr int64_t kLastStep = UINT16_MAX;
  /// True for events of steps that count: all where none was recorded to its end.
  bool counts(const ProfileEvent& event) const { return last_step == 0 || event.step <= last_step; }

  /// All of it as bytes, for another rank, and back. Throws ValueError if the bytes are damaged.
  std::string to_bytes() const;
  static RankRecord from_bytes(const std::string& bytes);
};

}  // namespace moonhalo
