// SPDX-License-Identifier: Apache-2.0
// Goes through a schedule in simulated time.
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "moonhalo/engine/pipeline/pipeline_schedule.h"

namespace moonhalo {
namespace {

/// The message that a call of one stage sends to the neighbouring stage.
struct SimulatedMessage {
  StageCall required_by;
  int64_t sent;
};

/// From one rank to its neighbour, in one direction.
struct SimulatedLink {
  std::deque<SimulatedMessage> messages;  // not taken yet
  int64_t taken = 0;                      // when the last one was
};

class Simulator {
 public:
  Simulator(const PipelineSchedule& schedule, int64_t stages, int64_t capacity)
      : schedule_(schedule),
        stages_(stages),
        capacity_(static_cast<size_t>(capacity)),
        ranks_(static_cast<int64_t>(schedule.size())),
        state_(schedule.size()) {}

  /// Goes on until no rank can, and returns the ranks that still want to.
  std::string run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        while (advance(rank)) moved = true;
      }
    }
    return waiting();
  }

  ScheduleCosts costs() const {
    ScheduleCosts costs;
    int64_t busy = 0;
    for (const Rank& rank : state_) {
      costs.time = std::max(costs.time, rank.time);
      costs.live.push_back(rank.most_live);
      busy += rank.busy;
    }
    costs.bubble = 1 - static_cast<double>(busy) / static_cast<double>(costs.time * ranks_);
    return costs;
  }

  void check_calls(int64_t micros) const {
    std::set<Key> made;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      for (const StageCall& call : schedule_[rank]) {
        TORCH_CHECK_VALUE(call.stage % ranks_ == rank && call.stage < stages_ && call.micro < micros,
                          "schedule: ", call.to_string(), " does not belong on rank ", rank);
        TORCH_CHECK_VALUE(made.insert(key(call)).second, "schedule: ", call.to_string(), " is made twice");
      }
    }
    const bool trains =
        std::any_of(made.begin(), made.end(), [](const Key& one) { return std::get<0>(one) == Pass::kBackward; });
    const auto required = static_cast<size_t>(stages_ * micros * (trains ? 2 : 1));
    TORCH_CHECK_VALUE(made.size() == required, "schedule: ", made.size(), " calls where ", required, " are required");
  }

 private:
  struct Rank {
    size_t next = 0;
    int64_t time = 0, busy = 0, live = 0, most_live = 0;
    std::optional<StageCall> to_send;  // the call that waits for what is to be sent
  };
  using Key = std::tuple<Pass, int64_t, int64_t>;
  static Key key(const StageCall& call) { return {call.pass, call.stage, call.micro}; }

  /// The call that works on what `call` gives, if there is one.
  std::optional<StageCall> successor(const StageCall& call) const {
    StageCall next = call;
    next.stage += call.pass == Pass::kForward ? 1 : -1;
    if (next.stage < 0 || next.stage >= stages_) return std::nullopt;
    return next;
  }
  bool needs_input(const StageCall& call) const {
    return call.pass == Pass::kForward ? call.stage > 0 : call.stage < stages_ - 1;
  }
  int64_t sender(const StageCall& call) const {
    return (call.stage + (call.pass == Pass::kForward ? -1 : 1) + ranks_) % ranks_;
  }
  SimulatedLink& link(Pass pass, int64_t from) { return links_[{pass, from}]; }

  bool advance(int64_t rank) {
    Rank& mine = state_[rank];
    if (mine.to_send) return send(mine, rank);
    if (mine.next == schedule_[rank].size()) return false;
    const StageCall& call = schedule_[rank][mine.next];
    if (!take_input(mine, call)) return false;
    const int64_t cost = call.pass == Pass::kForward ? 1 : 2;
    mine.time += cost;
    mine.busy += cost;
    mine.live += call.pass == Pass::kForward ? 1 : -1;
    mine.most_live = std::max(mine.most_live, mine.live);
    done_[key(call)] = mine.time;
    mine.to_send = ranks_ == 1 ? std::nullopt : successor(call);
    ++mine.next;
    return true;
  }

  bool send(Rank& mine, int64_t rank) {
    SimulatedLink& link = this->link(mine.to_send->pass, rank);
    if (link.messages.size() == capacity_) return false;
    if (link.messages.size() + 1 == capacity_) mine.time = std::max(mine.time, link.taken);
    link.messages.push_back({*mine.to_send, mine.time});
    mine.to_send.reset();
    return true;
  }

  bool take_input(Rank& mine, const StageCall& call) {
    if (call.pass == Pass::kBackward) {
      TORCH_CHECK_VALUE(done_.contains({Pass::kForward, call.stage, call.micro}), "schedule: ", call.to_string(),
                        " comes before its forward pass");
    }
    if (!needs_input(call)) return true;
    if (ranks_ == 1) {
      TORCH_CHECK_VALUE(done_.contains({call.pass, call.stage + (call.pass == Pass::kForward ? -1 : 1), call.micro}),
                        "schedule: ", call.to_string(), " comes before its neighbour");
      return true;
    }
    SimulatedLink& link = this->link(call.pass, sender(call));
    if (link.messages.empty()) return false;
    const SimulatedMessage message = link.messages.front();
    TORCH_CHECK_VALUE(message.required_by == call, "schedule: ", call.to_string(), " gets the message for ",
                      message.required_by.to_string());
    mine.time = std::max(mine.time, message.sent);
    link.taken = mine.time;
    link.messages.pop_front();
    return true;
  }

  std::string waiting() const {
    std::string text;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const Rank& one = state_[rank];
      if (!one.to_send && one.next == schedule_[rank].size()) continue;
      text +=
          std::string(text.empty() ? "" : "; ") + "rank " + std::to_string(rank) +
          (one.to_send ? " to send to " + one.to_send->to_string() : " in " + schedule_[rank][one.next].to_string());
    }
    return text;
  }

  const PipelineSchedule& schedule_;
  int64_t stages_;
  size_t capacity_;
  int64_t ranks_;
  std::vector<Rank> state_;
  std::map<std::pair<Pass, int64_t>, SimulatedLink> links_;
  std::map<Key, int64_t> done_;
};

}  // namespace

ScheduleCosts simulate(const PipelineSchedule& schedule, int64_t stages, int64_t micros, int64_t capacity) {
  Simulator simulator(schedule, stages, capacity);
  simulator.check_calls(micros);
  const std::string waiting = simulator.run();
  TORCH_CHECK_VALUE(waiting.empty(), "schedule: ranks wait for each other\n  have  ", waiting);
  return simulator.costs();
}

int64_t link_capacity(const PipelineSchedule& schedule, int64_t stages, int64_t micros) {
  const int64_t most = stages * micros;
  for (int64_t capacity = 1; capacity < most; ++capacity) {
    if (Simulator(schedule, stages, capacity).run().empty()) return capacity;
  }
  simulate(schedule, stages, micros, most);
  return most;
}

}  // namespace moonhalo
