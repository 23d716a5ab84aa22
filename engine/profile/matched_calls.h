// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// Finds the calls of verbs that ranks made together: those of one group with one call tag, in their order.
class MatchedCalls {
 public:
  struct Key {
    uint64_t group, tag;
    uint32_t verb;
    int64_t occurrence;
    auto operator<=>(const Key&) const = default;
  };
  /// The part of one rank: `calls[call]` of its record.
  struct Part {
    size_t rank;
    uint32_t call;
  };
  explicit MatchedCalls(const std::vector<RankRecord>& ranks);

  const std::map<Key, std::vector<Part>>& all() const { return calls_; }
  /// The rank of the world that has the number `rank` in a group; nothing if it recorded no call of the group.
  std::optional<size_t> world_rank(uint64_t group, int rank) const;
  /// The event in which a rank waited for an exchange; nothing if it was not seen.
  std::optional<uint32_t> wait_of(const Part& part) const;
  /// The messages of an exchange of one rank: positions in the list of its record.
  const std::vector<uint32_t>& messages_of(const Part& part) const { return messages_[part.rank][part.call]; }

 private:
  const std::vector<RankRecord>& ranks_;
  std::map<Key, std::vector<Part>> calls_;
  std::map<uint64_t, std::map<int, size_t>> members_;
  std::vector<std::map<uint32_t, uint32_t>> waits_;           // by rank and the event of the exchange
  std::vector<std::vector<std::vector<uint32_t>>> messages_;  // by rank and call
};

}  // namespace moonhalo
