// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/matched_calls.h"

#include <tuple>

namespace moonhalo {

MatchedCalls::MatchedCalls(const std::vector<RankRecord>& ranks)
    : ranks_(ranks), waits_(ranks.size()), messages_(ranks.size()) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankRecord& record = ranks[r];
    for (uint32_t i = 0; i < record.events.size(); ++i) {
      if (record.events[i].kind == EventKind::kWait && record.events[i].value >= 0)
        waits_[r][static_cast<uint32_t>(record.events[i].value)] = i;
    }
    messages_[r].resize(record.calls.size());
    for (uint32_t m = 0; m < record.messages.size(); ++m) messages_[r].at(record.messages[m].call).push_back(m);
    std::map<std::tuple<uint64_t, uint64_t, uint32_t>, int64_t> seen;
    for (uint32_t c = 0; c < record.calls.size(); ++c) {
      const RankRecord::CommCall& call = record.calls[c];
      members_[call.group][call.rank] = r;
      const int64_t occurrence = seen[{call.group, call.tag, call.verb}]++;
      calls_[{call.group, call.tag, call.verb, occurrence}].push_back({r, c});
    }
  }
}

std::optional<size_t> MatchedCalls::world_rank(uint64_t group, int rank) const {
  const auto members = members_.find(group);
  if (members == members_.end()) return std::nullopt;
  const auto found = members->second.find(rank);
  return found == members->second.end() ? std::nullopt : std::optional(found->second);
}

std::optional<uint32_t> MatchedCalls::wait_of(const Part& part) const {
  const auto found = waits_[part.rank].find(ranks_[part.rank].calls[part.call].event);
  return found == waits_[part.rank].end() ? std::nullopt : std::optional(found->second);
}

}  // namespace moonhalo
