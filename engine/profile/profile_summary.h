// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "moonhalo/engine/profile/rank_record.h"
#include "moonhalo/engine/profile/skew.h"

namespace moonhalo {

/// Tables of profiles. Not collective: one process reads the records of all ranks.

/// Selects the rows of a table.
enum class ProfileBy : uint8_t { kOperator, kModule, kLine, kPhase, kRank, kCommunication, kCount };
/// "operator" | "module" | "line" | "phase" | "rank" | "communication"
const char* name(ProfileBy by);
/// Throws ValueError for any other string.
ProfileBy parse_profile_by(const std::string& text);

/// The records of all ranks, added up. Times are nanoseconds over all ranks and steps.
struct ProfileSummary {
  /// A row of a table: its `name`, the number of `calls`, and times.
  struct Row {
    std::string name;
    int64_t calls = 0;
    int64_t total = 0;     ///< with what was called within
    int64_t self = 0;      ///< without; the sum over a table is the time of the steps of all ranks
    int64_t blocked = 0;   ///< of `self`: in calls of communicators, with what they copy
    int64_t bytes = 0;     ///< sent, as in CommStats
    int64_t macs = 0;      ///< of the operators of the row (mac_rule)
    int64_t mac_time = 0;  ///< of their calls
  };
  /// Dispatch: what a call on ShardTensors spends around the same call on its block. Blocked: in calls of
  /// communicators. Script: outside of operators. Kernels: the rest.
  enum Share : uint8_t { kKernels, kBlocked, kDispatch, kReading, kScript, kShares };
  static const char* name(Share share);

  /// Memory of the tensors of the rank that had most, at its peak.
  struct Memory {
    /// The `bytes` that were made in one module and part.
    struct Held {
      std::string module, part;  ///< where they were made: "blocks.0", "forward"; "(before)" what was there
      int64_t bytes = 0;
    };
    int64_t rank = 0, peak = 0;
    std::vector<Held> held;  ///< adds up to `peak`
  };

  int64_t ranks = 0;
  std::vector<int64_t> steps;  ///< numbers; 0 where no optimizer stepped
  int64_t step_time = 0;       ///< of all steps and ranks together
  /// The parts of step_time, by Share; the tables, by ProfileBy; the ranks that were late.
  std::array<int64_t, kShares> shares{};
  std::array<std::vector<Row>, static_cast<size_t>(ProfileBy::kCount)> tables;
  std::vector<RankSkew> skew;
  Memory memory;
  std::vector<std::string> notes;  ///< what the reader should know, such as that a recorder was full

  /// Returns one of the tables.
  const std::vector<Row>& table(ProfileBy by) const { return tables[static_cast<size_t>(by)]; }
  /// Returns everything as JSON, for from_json.
  std::string to_json() const;
  /// Throws ValueError if `text` is not of to_json(). `where`: the file, for the message.
  static ProfileSummary from_json(const std::string& text, const std::string& where);
};

/// Steps that were recorded to their end count; all that there is where no step was.
ProfileSummary summarize(const std::vector<RankRecord>& ranks);

/// The time of each event without the events within.
std::vector<int64_t> self_times(const RankRecord& record);

/// The order of the rows: by the time without or with what was called within, by calls, by name, by the part of self
/// that was blocked, by the part that was not (own), or by MACs.
enum class ProfileSort : uint8_t { kSelf, kTotal, kCalls, kName, kOwn, kBlocked, kMacs };
/// "self" | "total" | "calls" | "name" | "own" | "blocked" | "macs". Throws ValueError for any other string.
ProfileSort parse_profile_sort(const std::string& text);

/// A line about the whole step, notes, and a table with times in milliseconds of a step of one rank.
std::string profile_table(const ProfileSummary& summary, ProfileBy by, ProfileSort sort = ProfileSort::kSelf,
                          size_t most_rows = 40);
/// Memory at the peak by module and part, the largest first.
std::string memory_table(const ProfileSummary& summary, size_t most_rows = 40);
/// The same for two profiles, with the difference of their self times, the largest first.
std::string compare_profiles(const ProfileSummary& before, const ProfileSummary& after, ProfileBy by,
                             size_t most_rows = 40);

}  // namespace moonhalo
