// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/tape_summary.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/comm/message_counts.h"

namespace moonhalo {
namespace {

using Place = std::tuple<uint32_t, Phase, bool>;

// Follows the live memory of a step up to event `last`.
std::map<Place, int64_t> held_at(const Tape& tape, size_t last) {
  struct Block {
    Place place;
    int64_t bytes;
  };
  const Place before{0, Phase::kScript, true};
  std::map<Place, int64_t> held{{before, tape.live}};
  std::unordered_map<uint32_t, Block> blocks;
  for (size_t i = 0; i <= last && i < tape.events.size(); ++i) {
    const TapeEvent& event = tape.events[i];
    const auto* block = std::get_if<TapeBlock>(&event.what);
    if (block == nullptr || block->device) continue;
    if (block->bytes > 0) {
      const Place place{event.module, event.phase, false};
      blocks[block->id] = {place, block->bytes};
      held[place] += block->bytes;
    } else if (const auto found = blocks.find(block->id); block->id != 0 && found != blocks.end()) {
      held[found->second.place] -= found->second.bytes;
    } else {
      held[before] += block->bytes;
    }
  }
  return held;
}

// Counts an event that is an exchange.
void add_exchange(const TapeEvent& event, VerbCounts& counts) {
  const auto* exchange = std::get_if<TapeExchange>(&event.what);
  if (exchange == nullptr || !exchange->counted) return;
  VerbCount& count = counts[static_cast<size_t>(Verb::kExchange)];
  ++count.calls;
  count.messages += std::ssize(exchange->sends);
  for (const TapePart& part : exchange->sends) count.bytes += part.bytes;
}

// The plan of a sum takes as long as there are ranks, so there is one for each number of ranks.
using SumPlans = std::map<int64_t, SumPlan>;

// The counts of all ranks of a kind. Equal calls of a tape are added up first: a rank then takes as long as there are
// different ones.
class KindCounts {
 public:
  explicit KindCounts(const Tape& tape) : tape_(tape) {
    for (const TapeEvent& event : tape.events) {
      add_exchange(event, same_);
      const auto* call = std::get_if<TapeVerb>(&event.what);
      if (call != nullptr && call->counted)
        ++calls_[{call->verb, call->group, call->data, call->item, call->root, call->sent, call->messages}];
    }
  }

  VerbCounts of(int64_t rank, SumPlans& plans) const {
    VerbCounts counts = same_;
    for (const auto& [call, times] : calls_) {
      const auto [messages, bytes] = sent_by(rank, call, plans);
      VerbCount& count = counts[static_cast<size_t>(call.verb)];
      count.calls += times;
      count.messages += times * messages;
      count.bytes += times * bytes;
    }
    return counts;
  }

 private:
  struct Call {
    Verb verb;
    uint32_t group;
    int64_t data;
    uint8_t item;
    int32_t root;
    int64_t sent, messages;
    auto operator<=>(const Call&) const = default;
  };

  // Messages and bytes of one call.
  std::pair<int64_t, int64_t> sent_by(int64_t rank, const Call& call, SumPlans& plans) const {
    const TapeGroup& group = tape_.groups.at(call.group);
    const auto size = static_cast<int>(group.size()), place = static_cast<int>(group.place(rank));
    if (call.verb == Verb::kBroadcast) {
      const int64_t messages = messages_of_broadcast(size, (place - call.root + size) % size);
      return {messages, messages * call.data};
    }
    if (call.verb != Verb::kAllReduce && call.verb != Verb::kReduceScatter) return {call.messages, call.sent};
    const SumPlan& plan = plans.try_emplace(size, size).first->second;
    if (call.verb == Verb::kReduceScatter) return {messages_of_reduce_scatter(plan, place), call.sent};
    const int64_t n = call.data / call.item, mine = n / size + (place < n % size ? 1 : 0);
    return {messages_of_all_reduce(plan, place, static_cast<size_t>(call.data)),
            (n - mine + mine * (size - 1)) * call.item};
  }

  const Tape& tape_;
  VerbCounts same_{};              // of what does not depend on the place in a group
  std::map<Call, int64_t> calls_;  // the others, and how many times
};

}  // namespace

VerbCounts recorded_counts(const Tape& tape) {
  VerbCounts counts{};
  for (const TapeEvent& event : tape.events) {
    add_exchange(event, counts);
    const auto* call = std::get_if<TapeVerb>(&event.what);
    if (call == nullptr || !call->counted) continue;
    VerbCount& count = counts[static_cast<size_t>(call->verb)];
    ++count.calls;
    count.messages += call->messages;
    count.bytes += call->sent;
  }
  return counts;
}

VerbCounts counts_of(const Tape& tape, int64_t rank) {
  SumPlans plans;
  return KindCounts(tape).of(rank, plans);
}

std::vector<VerbCounts> counts_of_ranks(const RankTapes& tapes) {
  SumPlans plans;
  std::vector<KindCounts> kinds;
  kinds.reserve(tapes.kinds.size());
  for (const Tape& tape : tapes.kinds) kinds.emplace_back(tape);
  std::vector<VerbCounts> all;
  all.reserve(tapes.kind_of.size());
  for (size_t rank = 0; rank < tapes.kind_of.size(); ++rank)
    all.push_back(kinds.at(tapes.kind_of[rank]).of(static_cast<int64_t>(rank), plans));
  return all;
}

VerbCount total(const VerbCounts& counts) {
  VerbCount all;
  for (const VerbCount& one : counts) {
    all.calls += one.calls;
    all.messages += one.messages;
    all.bytes += one.bytes;
  }
  return all;
}

TapePeak peak_of(const Tape& tape) {
  TapePeak peak;
  peak.bytes = tape.live;
  int64_t live = tape.live;
  size_t at = 0;
  for (size_t i = 0; i < tape.events.size(); ++i) {
    const auto* block = std::get_if<TapeBlock>(&tape.events[i].what);
    if (block == nullptr || block->device) continue;
    live += block->bytes;
    if (live <= peak.bytes) continue;
    peak.bytes = live;
    peak.module = tape.events[i].module;
    peak.phase = tape.events[i].phase;
    at = i;
  }
  for (const auto& [place, bytes] : held_at(tape, at)) {
    if (bytes > 0) peak.held.push_back({std::get<0>(place), std::get<1>(place), std::get<2>(place), bytes});
  }
  std::stable_sort(peak.held.begin(), peak.held.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return peak;
}

std::set<std::string> unknown_work(const Tape& tape) {
  std::set<std::string> names;
  for (const TapeEvent& event : tape.events) {
    const auto* call = std::get_if<TapeOperator>(&event.what);
    if (call != nullptr && !call->known) names.insert(tape.names.at(call->name));
  }
  return names;
}

std::string place_text(const Tape& tape, uint32_t module, Phase phase) {
  const std::string part = name(phase);
  if (module != 0) return "module " + tape.modules.at(module) + ", " + part;
  const bool has_modules = phase == Phase::kForward || phase == Phase::kBackward;
  return has_modules ? part + ", outside of modules" : "the " + part;
}

}  // namespace moonhalo
