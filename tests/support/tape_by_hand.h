// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/forecast/rank_kinds.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo::testing {

/// A tape that a test writes: operators, collectives and exchanges in order.
class TapeByHand {
 public:
  /// Operations a second of the machine on which compute() takes its seconds.
  static constexpr double kRate = 1e9;

  TapeByHand(int64_t rank, int64_t ranks) {
    tape_.rank = rank;
    tape_.ranks = ranks;
  }
  /// The part of the step in which the next collectives and exchanges are.
  TapeByHand& phase(Phase phase) {
    phase_ = phase;
    return *this;
  }
  /// The reason for which the next ones are called.
  TapeByHand& traffic(Traffic traffic) {
    traffic_ = traffic;
    return *this;
  }
  TapeByHand& compute(double seconds, const std::string& name = "aten::mm") {
    TapeOperator call;
    call.name = tape_.name_number(name);
    call.work = WorkKind::kProduct;
    call.macs = std::llround(seconds * kRate / 2);
    tape_.events.push_back({.what = call});
    return *this;
  }
  /// Reads and writes as many bytes, all of them in one working set.
  TapeByHand& copy(int64_t bytes) {
    TapeOperator call;
    call.name = tape_.name_number("aten::copy_");
    call.bytes = call.working_set = bytes;
    call.item = 4;
    tape_.events.push_back({.what = call});
    return *this;
  }
  /// The last operator stands for as many calls.
  TapeByHand& times(int64_t calls) {
    std::get<TapeOperator>(tape_.events.back().what).times = calls;
    return *this;
  }
  TapeByHand& verb(Verb verb, const std::vector<int64_t>& ranks, int64_t bytes) {
    const uint32_t group = tape_.group_number(TapeGroup::of(ranks));
    tape_.events.push_back(
        {.phase = phase_,
         .what =
             TapeVerb{.verb = verb, .group = group, .number = next_number(group), .data = bytes, .traffic = traffic_}});
    return *this;
  }
  /// Begins an exchange on the group of all ranks, or of these.
  TapeByHand& exchange(std::vector<TapePart> sends, std::vector<TapePart> receives, std::vector<int64_t> ranks = {}) {
    for (int64_t rank = 0; ranks.empty() && rank < tape_.ranks; ++rank) all_.push_back(rank);
    const uint32_t group = tape_.group_number(TapeGroup::of(ranks.empty() ? all_ : ranks));
    all_.clear();
    tape_.events.push_back({.phase = phase_,
                            .what = TapeExchange{.group = group,
                                                 .number = next_number(group),
                                                 .id = exchanges_++,
                                                 .sends = std::move(sends),
                                                 .receives = std::move(receives),
                                                 .traffic = traffic_}});
    return *this;
  }
  TapeByHand& wait() { return wait(exchanges_ - 1); }
  TapeByHand& wait(uint32_t id) {
    tape_.events.push_back({.what = TapeWait{id}});
    return *this;
  }
  uint32_t last_exchange() const { return exchanges_ - 1; }
  const Tape& tape() const { return tape_; }

 private:
  uint32_t next_number(uint32_t group) {
    numbers_.resize(std::max<size_t>(numbers_.size(), group + 1));
    return numbers_[group]++;
  }

  Tape tape_;
  Phase phase_ = Phase::kScript;
  Traffic traffic_ = Traffic::kOther;
  std::vector<uint32_t> numbers_;
  std::vector<int64_t> all_;
  uint32_t exchanges_ = 0;
};

inline std::vector<int64_t> first_ranks(int64_t count) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

/// A kind for each rank.
inline RankTapes own_kinds(const std::vector<TapeByHand>& recordings) {
  RankTapes tapes;
  for (const TapeByHand& recording : recordings) {
    tapes.kind_of.push_back(static_cast<int32_t>(tapes.kinds.size()));
    tapes.kinds.push_back(recording.tape());
  }
  return tapes;
}

/// All ranks have the tape of rank 0.
inline RankTapes one_kind(const TapeByHand& recording, int64_t ranks) {
  RankTapes tapes;
  tapes.kinds.push_back(recording.tape());
  tapes.kind_of.assign(ranks, 0);
  return tapes;
}

}  // namespace moonhalo::testing
