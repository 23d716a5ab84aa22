// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/tape_steps.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace moonhalo {
namespace {

bool same_sizes(const std::vector<TapePart>& a, const std::vector<TapePart>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TapePart& one, const TapePart& other) { return one.bytes == other.bytes; });
}

// Compares an event with the one a period before.
struct Repeats {
  const TapeEvent& before;
  uint32_t blocks, exchanges;  // of a period
  uint32_t group;              // of its exchanges

  bool operator()(const TapeOperator& call) const { return call == std::get<TapeOperator>(before.what); }
  bool operator()(const TapeVerb&) const { return false; }
  bool operator()(const TapeExchange& call) const {
    const auto& other = std::get<TapeExchange>(before.what);
    return call.group == group && other.group == group && call.number == other.number + exchanges &&
           call.id == other.id + exchanges && call.counted == other.counted && call.traffic == other.traffic &&
           same_sizes(call.sends, other.sends) && same_sizes(call.receives, other.receives);
  }
  bool operator()(const TapeWait& wait) const { return wait.id == std::get<TapeWait>(before.what).id + exchanges; }
  bool operator()(const TapeBlock& block) const {
    const auto& other = std::get<TapeBlock>(before.what);
    return block.bytes == other.bytes && block.device == other.device && other.id > 0 && block.id == other.id + blocks;
  }
};

// The group of the first exchange from this event on.
uint32_t group_from(const Tape& tape, size_t event) {
  for (; event < tape.events.size(); ++event) {
    if (const auto* call = std::get_if<TapeExchange>(&tape.events[event].what)) return call->group;
  }
  return 0;
}

}  // namespace

bool equal_but_for_peers(const Tape& tape, const std::array<TapePlace, 3>& places, int64_t steps) {
  const auto& [first, second, end] = places;
  const size_t count = end.events - second.events;
  const uint32_t blocks = end.blocks - second.blocks, exchanges = end.exchanges - second.exchanges;
  if (second.events - first.events != count || second.blocks - first.blocks != blocks ||
      second.exchanges - first.exchanges != exchanges || int64_t{exchanges} != steps ||
      end.events != tape.events.size())
    return false;
  const uint32_t group = group_from(tape, second.events);
  for (size_t i = second.events; i < end.events; ++i) {
    const TapeEvent &event = tape.events[i], &before = tape.events[i - count];
    if (event.phase != before.phase || event.module != before.module || event.what.index() != before.what.index() ||
        !std::visit(Repeats{before, blocks, exchanges, group}, event.what))
      return false;
  }
  return true;
}

uint32_t repeat_period(Tape& tape, const TapePlace& begin, const TapePlace& end, int64_t times,
                       const OffsetOf& offset_of) {
  const uint32_t blocks = end.blocks - begin.blocks, exchanges = end.exchanges - begin.exchanges;
  tape.events.reserve(tape.events.size() + static_cast<size_t>(times) * (end.events - begin.events));
  for (int64_t later = 1; later <= times; ++later) {
    const auto add = static_cast<uint32_t>(later);
    size_t step = 0;
    for (size_t i = begin.events; i < end.events; ++i) {
      TapeEvent event = tape.events[i];
      if (auto* block = std::get_if<TapeBlock>(&event.what)) {
        block->id += add * blocks;
      } else if (auto* wait = std::get_if<TapeWait>(&event.what)) {
        wait->id += add * exchanges;
      } else if (auto* call = std::get_if<TapeExchange>(&event.what)) {
        call->number += add * exchanges;
        call->id += add * exchanges;
        for (auto* list : {&call->sends, &call->receives}) {
          for (size_t part = 0; part < list->size(); ++part)
            (*list)[part].offset = offset_of(call->group, list == &call->sends, step, part, later);
        }
        ++step;
      }
      tape.events.push_back(std::move(event));
    }
  }
  return group_from(tape, begin.events);
}

}  // namespace moonhalo
