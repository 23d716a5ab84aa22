// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/tape_summary.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

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

}  // namespace

VerbCounts counts_of(const Tape& tape, int64_t rank) {
  VerbCounts counts{};
  std::map<int64_t, SumPlan> plans;
  for (const TapeEvent& event : tape.events) {
    if (const auto* exchange = std::get_if<TapeExchange>(&event.what); exchange != nullptr && exchange->counted) {
      VerbCount& count = counts[static_cast<size_t>(Verb::kExchange)];
      ++count.calls;
      count.messages += std::ssize(exchange->sends);
      for (const TapePart& part : exchange->sends) count.bytes += part.bytes;
    }
    const auto* call = std::get_if<TapeVerb>(&event.what);
    if (call == nullptr || !call->counted) continue;
    const TapeGroup& group = tape.groups.at(call->group);
    const auto size = static_cast<int>(group.size()), place = static_cast<int>(group.place(rank));
    int64_t messages = call->messages, bytes = call->sent;
    if (call->verb == Verb::kAllReduce || call->verb == Verb::kReduceScatter) {
      const SumPlan& plan = plans.try_emplace(size, size).first->second;
      if (call->verb == Verb::kReduceScatter) {
        messages = messages_of_reduce_scatter(plan, place);
      } else {
        messages = messages_of_all_reduce(plan, place, static_cast<size_t>(call->data));
        const int64_t n = call->data / call->item, mine = n / size + (place < n % size ? 1 : 0);
        bytes = (n - mine + mine * (size - 1)) * call->item;
      }
    } else if (call->verb == Verb::kBroadcast) {
      messages = messages_of_broadcast(size, (place - call->root + size) % size);
      bytes = messages * call->data;
    }
    VerbCount& count = counts[static_cast<size_t>(call->verb)];
    ++count.calls;
    count.messages += messages;
    count.bytes += bytes;
  }
  return counts;
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
  if (phase == Phase::kForward) return "outside of modules, forward";
  return phase == Phase::kBackward ? "backward, of no module" : "the " + part;
}

}  // namespace moonhalo
