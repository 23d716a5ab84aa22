// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/exchange/equal_copies.h"
#include "moonhalo/engine/exchange/equal_steps.h"
#include "moonhalo/engine/forecast/fake_call_time.h"
#include "moonhalo/engine/forecast/operator_call.h"
#include "moonhalo/engine/forecast/step_calls.h"
#include "moonhalo/engine/forecast/tape.h"
#include "moonhalo/engine/forecast/tape_steps.h"
#include "moonhalo/engine/profile/recorder.h"

namespace moonhalo {

/// Records one step of this rank as a tape, by a Recorder: operators that call no others, collectives, memory. Tensors
/// may be fake. Not collective.
class TapeRecorder final : private RecordListener, private WorkListener, private EqualStepsListener {
 public:
  /// The largest number of events that a step may have.
  static constexpr int64_t kMostEvents = 4000000;

  /// Starts. `world`: of this rank. `keeps_step`: for take_step(). Throws as Recorder does.
  explicit TapeRecorder(const Communicator& world, bool keeps_step = false);
  ~TapeRecorder() override;
  TapeRecorder(const TapeRecorder&) = delete;
  TapeRecorder& operator=(const TapeRecorder&) = delete;

  /// From here on rings leave out equal steps (exchange/equal_steps.h), which are on the tape all the same.
  void leave_out_equal_steps() { left_out_.emplace(static_cast<EqualStepsListener*>(this)); }

  /// Stops and returns the tape. Throws RuntimeError if the step has more than kMostEvents events; `allows_part`: then
  /// returns the tape of the first of them.
  Tape take(bool allows_part = false);
  /// Throws RuntimeError if events are missing.
  static void check_whole(const Tape& tape);
  /// The calls of the tape's operators, one of each key; those of Moonhalo's own kernels are left out.
  std::vector<OperatorCall> take_calls();
  /// All of these calls in order, with the memory that they use.
  StepCalls take_step() { return std::move(step_); }

 private:
  struct OpenOperator {
    std::vector<at::Tensor> inputs;
    std::vector<c10::IValue> arguments;
    std::vector<StepCalls::Place> places;  // of the tensors among them
    bool counted = false;
    int64_t macs = 0;
    size_t work = 0;  // operators on the tape when it began
  };
  void operator_begins(const at::RecordFunction& call) override;
  void operator_ended(const at::RecordFunction& call) override;
  void verb_called(const CommObserver::Call& call, uint32_t number) override;
  void exchange_awaited(uint32_t number) override;
  void changed(const void* block, int64_t bytes) override;
  void worked(const char* kernel, int64_t macs, int64_t bytes) override;
  void ring_begins() override { steps_.clear(); }
  void step_begins() override;
  bool repeats(int64_t period) const override;
  void leave_out(int64_t period, int64_t periods, const PeerOf& peer_of) override;
  std::array<TapePlace, 3> last_periods(int64_t period) const;

  bool does_work(const at::RecordFunction& call);
  void keep_call(const at::RecordFunction& call, const OpenOperator& open, const std::string& shapes);
  StepCalls::Place place_of(const at::Tensor& tensor);
  template <typename What>
  void add(What what);
  void add_operator(const std::string& name, TapeOperator what, const std::string& key);
  void note_optimizer_memory(const std::vector<at::Tensor>& tensors);
  uint32_t number_of(const std::string& text);
  uint32_t group_of(const CommObserver::Call& call);

  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;  // of the tape: threads that read for the rank make blocks, too
  Tape tape_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<uint64_t, uint32_t> groups_;
  std::vector<std::vector<int64_t>> members_;  // of each group of the tape
  std::vector<uint32_t> calls_;                // on each group of the tape
  std::unordered_map<uint32_t, uint32_t> exchanges_;
  std::unordered_map<const void*, uint32_t> blocks_;
  std::unordered_set<const void*> optimizer_memory_;
  uint32_t made_blocks_ = 0, made_exchanges_ = 0;
  std::vector<OpenOperator> open_;
  std::unordered_map<std::string, OperatorCall> kept_calls_;
  const bool keeps_step_;
  StepCalls step_;
  std::unordered_map<const void*, uint32_t> blocks_before_;  // in step_.before
  std::unordered_map<std::string, bool> operators_;          // by name and overload: whether they do work
  std::string asked_;                                        // the key of the operator that is asked for
  size_t work_ = 0;
  int in_counted_ = 0;
  std::unique_ptr<Recorder> recorder_;
  std::optional<JoinEqualCopies> joined_copies_;
  std::optional<LeaveOutEqualSteps> left_out_;
  std::vector<TapePlace> steps_;  // where those of a ring begin, and where the last one ends
  bool is_full_ = false;          // with steps that were left out
};

/// Records the steps of a training program until one is as the later ones will be.
class StepTapes {
 public:
  /// Records `steps` steps from now on, counted by the optimizer that steps first, and times `timed` steps after them.
  /// `settle` is called at the end of each of these steps, and `done` at the end of the last.
  StepTapes(const Communicator& world, int64_t steps, std::function<void()> done, std::function<void()> settle = {},
            int64_t timed = 0);
  ~StepTapes();
  StepTapes(const StepTapes&) = delete;
  StepTapes& operator=(const StepTapes&) = delete;

  /// The tape of the last step that has ended, or of all that was done if none has.
  Tape take();
  /// The calls of its operators. After take().
  std::vector<OperatorCall> take_calls() { return std::move(last_calls_); }
  /// All of these calls in order, if steps are timed. After take().
  StepCalls take_step() { return std::move(last_step_); }
  /// The number of recorded steps that have ended.
  int64_t ended() const { return ended_; }
  /// The seconds of processor time of a timed step, the median; 0 if none has ended. Without those in which shapes were
  /// found in the place of kernels: what is left is the time of the script, of autograd and of the dispatcher. As in a
  /// real step, as much memory is used meanwhile as kernels would, up to 4 MiB each.
  double host_seconds() const;
  /// True if the last two steps did the same. Also true of less than three steps, since the first step plans, and the
  /// second one settles the optimizer.
  bool steady() const { return ended_ < 3 || last_hash_ == hash_before_; }

 private:
  void end_step(int64_t ended);
  void begin_timed_step();
  void end_timed_step();

  const Communicator& world_;
  const int64_t steps_, timed_;
  std::function<void()> done_, settle_;
  std::unique_ptr<TapeRecorder> recorder_;
  Tape last_;
  std::vector<OperatorCall> last_calls_;
  StepCalls last_step_;
  int64_t ended_ = 0;
  uint64_t last_hash_ = 0, hash_before_ = 0;
  double timed_from_ = 0;  // seconds, of the step that is timed
  FakeCallTime fake_calls_;
  std::vector<double> host_times_;
};

}  // namespace moonhalo
