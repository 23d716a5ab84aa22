// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/comm_observer.h"
#include "moonhalo/engine/profile/macs.h"
#include "moonhalo/engine/profile/module_memory.h"
#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

namespace detail {
extern std::atomic<int> hook_users;
}
/// True while any rank of this process records, or looks for NaN: what hooks ask first, one load and one branch. Not
/// collective.
inline bool hooks_are_on() { return detail::hook_users.load(std::memory_order_relaxed) != 0; }

/// Is called by a Recorder for what it records, by those who need more than names and times. Not collective.
class RecordListener : public MemoryWatcher {
 public:
  /// An operator begins, its inputs are there; it has ended, its outputs are there, too.
  virtual void operator_begins(const at::RecordFunction& call) = 0;
  virtual void operator_ended(const at::RecordFunction& call) = 0;
  /// A verb is called, or an exchange begins; this rank waits for the exchange that had the `number`.
  virtual void verb_called(const CommObserver::Call& call, uint32_t number) = 0;
  virtual void exchange_awaited(uint32_t number) = 0;
};

/// Records what this rank's thread does: from LibTorch's RecordFunction operators, those that they call, and backward
/// functions; from communicators calls and waits; and modules, ranges and steps that hooks report. At most one runs at
/// a time in a rank. It keeps at most `most_events` events, then it stops and marks the record as full. Not
/// collective.
class Recorder : private CommObserver {
 public:
  /// The default of `most_events`: 40 MB.
  static constexpr int64_t kMostEvents = 1000000;
  /// Returns the script's line that runs now, as a number that note_line gave, 0 for none. Called when an operator is
  /// called from outside of operators.
  using LineReader = std::function<uint16_t(Recorder&)>;

  /// Starts. Throws RuntimeError if this rank records already. `step`: the number of the step that begins. `nvtx`:
  /// every event is also an NVTX range of this thread (nvtx.h); NotImplementedError where there are none. `listener`:
  /// is called for each event until the recorder is full; null for none.
  explicit Recorder(int64_t step, LineReader read_line = nullptr, int64_t most_events = kMostEvents, bool nvtx = false,
                    RecordListener* listener = nullptr);
  /// Stops, if stop() was not called.
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The recorder that runs in this rank, or null.
  static Recorder* of_this_rank();

  /// Ends the step under way and begins step `step`. What is open goes on in it. Above RankRecord::kLastStep the record
  /// is full.
  void next_step(int64_t step);
  /// Stops and returns what was recorded. `step_ended`: the step under way ends here.
  RankRecord stop(bool step_ended = false);

  /// Begins an event and ends it. `owner` identifies the pair: an end without its begin is ignored, so a recorder may
  /// start and stop within what it records.
  void begin_range(const void* owner, EventKind kind, std::string_view name, Phase phase = Phase::kScript);
  void begin_module(const void* owner, uint16_t module);
  void begin_operator(const at::RecordFunction& call);
  void end_operator(const at::RecordFunction& call);
  void end(const void* owner);

  /// The number of the module `key` when it is called by the module under way. `name` is asked once.
  uint16_t module_number(const void* key, const std::function<std::string()>& name);
  uint16_t module_number(const std::string& name);
  uint16_t note_line(const std::string& line);
  /// Return the module that runs now, and the part of the step.
  uint16_t module() const { return module_; }
  Phase phase() const { return phase_; }
  /// Returns what was recorded so far.
  const RankRecord& record() const { return record_; }
  /// "\n        blocks.0 (forward) 1.2 GB": the places that hold most memory of tensors now, a line each.
  std::string memory_by_module() const;

 private:
  // Something open, and what was current before it.
  struct Open {
    uint32_t event;
    const void* owner;
    uint16_t module, line;
    Phase phase;
    bool in_operator;
  };
  uint32_t begin_call(const void* owner, const Call& call) override;
  void begin_wait(const void* owner, uint32_t call) override;
  void end_call(const void* owner) override { end(owner); }
  ProfileEvent* begin(const void* owner, EventKind kind, uint32_t name);
  void note_node(const at::RecordFunction& call, ProfileEvent& event, bool backward);
  uint16_t current_line();
  // A name by the address of its text, which may hold another one later.
  struct KnownName {
    std::string text;
    uint32_t number = 0;
    MacRule macs = MacRule::kNone;
  };
  struct RecentName {
    const char* address = nullptr;
    const KnownName* known = nullptr;
  };
  uint32_t name_number(const std::string& text);
  const KnownName& known_name(const char* text);
  uint16_t add_module(std::string name);
  void close_all(int64_t now);

  // After module_ or phase_ has changed.
  void place_memory() { memory_.set_place(module_, phase_); }

  RecordListener* const listener_;
  RankRecord record_;
  mutable ModuleMemory memory_;
  std::vector<Open> open_;
  LineReader read_line_;
  size_t most_events_;
  at::CallbackHandle callback_ = 0;
  const bool nvtx_;
  bool running_ = true;
  // These belong to the event that begins next.
  uint16_t module_ = 0, line_ = 0, step_ = 0;
  Phase phase_ = Phase::kScript;
  bool in_operator_ = false;
  std::unordered_map<std::string, uint32_t> names_;
  std::unordered_map<const void*, KnownName> names_by_address_;
  std::array<RecentName, 512> recent_names_;  // at a place that follows from the address
  std::unordered_map<std::string, uint16_t> lines_;
  std::vector<std::unordered_map<const void*, uint16_t>> modules_by_key_;  // by the calling module
  std::vector<std::unordered_map<std::string, uint16_t>> modules_by_name_;
  // The event that made a graph node, by autograd's number of it less the first one seen in the step.
  std::vector<uint32_t> made_node_;
  int64_t first_node_ = -1;
};

/// Records a range of this thread while it lives, under `name`: what happens within is shown below it. Costs a load
/// and a branch while nothing records.
class RecordRange {
 public:
  explicit RecordRange(std::string_view name) : RecordRange(EventKind::kRange, name, Phase::kScript) {}
  ~RecordRange() {
    if (recorded_) [[unlikely]]
      end();
  }
  RecordRange(const RecordRange&) = delete;
  RecordRange& operator=(const RecordRange&) = delete;

 protected:
  RecordRange(EventKind kind, std::string_view name, Phase phase) {
    if (hooks_are_on()) [[unlikely]]
      begin(kind, name, phase);
  }

 private:
  void begin(EventKind kind, std::string_view name, Phase phase);
  void end();
  bool recorded_ = false;
};

/// A part of a training step: backward, optimizer, reading.
class RecordPart : public RecordRange {
 public:
  RecordPart(std::string_view name, Phase phase) : RecordRange(EventKind::kPart, name, phase) {}
};

/// Says for this thread, while it lives, which module of a model runs: `name` is its path, "blocks.0.fc".
class InModule {
 public:
  explicit InModule(const std::string& name) {
    if (hooks_are_on()) [[unlikely]]
      begin(name);
  }
  ~InModule() {
    if (recorded_) [[unlikely]]
      end();
  }
  InModule(const InModule&) = delete;
  InModule& operator=(const InModule&) = delete;

 private:
  void begin(const std::string& name);
  void end();
  bool recorded_ = false;
};

/// Counts the training steps of this rank from now on: the calls of step() of the optimizer that steps first. `seen`
/// gets the number of each step that has ended, from 1. There is one for each `owner`; null removes it. Not
/// collective.
void watch_steps(const void* owner, std::function<void(int64_t)> seen);
/// Called by optimizers at the end of step(). Not collective.
void note_optimizer_step(const void* optimizer);

}  // namespace moonhalo
