// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/tape.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"

namespace moonhalo {
namespace {

static_assert(static_cast<int>(Verb::kBarrier) == CommStats::kBarrier && CommStats::kKinds == 7);

template <typename Item>
uint32_t number_in(std::vector<Item>& list, const Item& item) {
  const auto place = static_cast<size_t>(std::find(list.begin(), list.end(), item) - list.begin());
  if (place == list.size()) list.push_back(item);
  return static_cast<uint32_t>(place);
}

// The grid that these ranks form in order, or none. Its steps from the innermost on: each repeats what is within it.
std::vector<TapeGroup::Step> steps_of(const std::vector<int64_t>& ranks) {
  std::vector<TapeGroup::Step> steps;
  for (size_t within = 1; within < ranks.size();) {
    const int64_t stride = ranks[within] - ranks[0];
    size_t count = 1;
    const auto repeats = [&](size_t part) {
      for (size_t i = 0; i < within; ++i) {
        if (ranks[part * within + i] != ranks[i] + static_cast<int64_t>(part) * stride) return false;
      }
      return true;
    };
    while ((count + 1) * within <= ranks.size() && repeats(count)) ++count;
    if (count == 1 || stride <= 0) return {};
    steps.insert(steps.begin(), {static_cast<int64_t>(count), stride});
    within *= count;
    if (within < ranks.size() && ranks.size() % within != 0) return {};
  }
  return steps;
}

class Hash {
 public:
  void add(int64_t word) { value_ = combine_fingerprint(value_, static_cast<uint64_t>(word)); }
  void add(const std::string& text) { value_ = combine_fingerprint(value_, fingerprint_of(text)); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = kFirstFingerprint;
};

// Adds one event; numbers of names, modules and groups are those of `tape`.
struct Adding {
  const Tape& tape;
  Hash& hash;

  void operator()(const TapeOperator& call) const {
    hash.add(tape.names.at(call.name));
    hash.add(tape.names.at(call.key));
    hash.add(call.times);
    hash.add(call.macs);
    hash.add(call.bytes);
    hash.add(call.working_set);
  }
  void operator()(const TapeVerb& call) const {
    hash.add(static_cast<int64_t>(call.verb));
    hash.add(static_cast<int64_t>(call.traffic));
    add(call.group, call.number);
    hash.add(call.data);
  }
  void operator()(const TapeExchange& call) const {
    hash.add(static_cast<int64_t>(call.traffic));
    add(call.group, call.number);
    for (const auto* list : {&call.sends, &call.receives}) {
      hash.add(static_cast<int64_t>(list->size()));
      for (const TapePart& part : *list) {
        hash.add(part.offset);
        hash.add(part.bytes);
      }
    }
  }
  void operator()(const TapeWait& wait) const { hash.add(wait.id); }
  void operator()(const TapeBlock& block) const { hash.add(block.bytes); }
  void add(uint32_t group, uint32_t number) const {
    const TapeGroup& ranks = tape.groups.at(group);
    for (const auto& [size, stride] : ranks.steps) {
      hash.add(size);
      hash.add(stride);
    }
    for (const int64_t rank : ranks.ranks) hash.add(rank);
    hash.add(number);
  }
};

}  // namespace

const char* name(WorkKind work) {
  static const char* const kNames[] = {"convolution", "product", "attention", "other"};
  return kNames[static_cast<size_t>(work)];
}

const char* name(Verb verb) { return CommStats::name(static_cast<CommStats::Kind>(verb)); }

int64_t TapeExchange::peers() const {
  std::vector<int32_t> peers;
  for (const auto* list : {&sends, &receives}) {
    for (const TapePart& part : *list) {
      if (part.offset != 0) peers.push_back(part.offset);
    }
  }
  std::sort(peers.begin(), peers.end());
  return std::unique(peers.begin(), peers.end()) - peers.begin();
}

TapeGroup TapeGroup::of(const std::vector<int64_t>& ranks) {
  TORCH_INTERNAL_ASSERT(!ranks.empty());
  TapeGroup group;
  group.steps = steps_of(ranks);
  // A grid may begin anywhere (a slice of a mesh of some ranks): then places do not follow from the rank alone.
  if ((group.steps.empty() && ranks.size() > 1) || group.members(ranks[0]) != ranks) group = {{}, ranks};
  if (ranks.size() == 1) group = {{{1, 1}}, {}};
  return group;
}

int64_t TapeGroup::size() const {
  if (!ranks.empty()) return static_cast<int64_t>(ranks.size());
  int64_t size = 1;
  for (const Step& step : steps) size *= step.size;
  return size;
}

std::vector<int64_t> TapeGroup::members(int64_t rank) const {
  if (!ranks.empty()) return ranks;
  std::vector<int64_t> all{rank};
  for (const auto& [size, stride] : steps) all[0] -= rank / stride % size * stride;
  for (const auto& [size, stride] : steps) {
    std::vector<int64_t> longer;
    longer.reserve(all.size() * static_cast<size_t>(size));
    for (const int64_t base : all) {
      for (int64_t i = 0; i < size; ++i) longer.push_back(base + i * stride);
    }
    all = std::move(longer);
  }
  return all;
}

int64_t TapeGroup::place(int64_t rank) const {
  if (!ranks.empty()) return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  int64_t place = 0;
  for (const auto& [size, stride] : steps) place = place * size + rank / stride % size;
  return place;
}

uint32_t Tape::name_number(std::string_view name) { return number_in(names, std::string(name)); }
uint32_t Tape::module_number(std::string_view path) { return number_in(modules, std::string(path)); }
uint32_t Tape::group_number(const TapeGroup& group) { return number_in(groups, group); }

uint64_t Tape::hash_of(bool memory) const {
  Hash hash;
  hash.add(ranks);
  if (memory) hash.add(live);
  // A graph is taken apart in the order of addresses: blocks that are freed one after another are a set.
  std::vector<std::array<int64_t, 3>> freed;
  const auto add_freed = [&] {
    std::sort(freed.begin(), freed.end());
    for (const auto& words : freed) {
      for (const int64_t word : words) hash.add(word);
    }
    freed.clear();
  };
  for (const TapeEvent& event : events) {
    const auto* const block = std::get_if<TapeBlock>(&event.what);
    if (!memory && block != nullptr) continue;
    if (block != nullptr && block->bytes < 0) {
      const auto module = static_cast<int64_t>(fingerprint_of(modules.at(event.module)));
      freed.push_back({static_cast<int64_t>(event.phase), module, block->bytes});
      continue;
    }
    add_freed();
    hash.add(static_cast<int64_t>(event.phase));
    hash.add(modules.at(event.module));
    hash.add(static_cast<int64_t>(event.what.index()));
    std::visit(Adding{*this, hash}, event.what);
  }
  add_freed();
  return hash.value();
}

}  // namespace moonhalo
