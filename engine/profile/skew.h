// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// Late ranks in profiles. Not collective.

/// States how much later than others a rank came to calls that need it, and how long it waited itself, in all steps.
struct RankSkew {
  /// A part of the lateness: `time` in nanoseconds.
  struct Cause {
    std::string module, what;  ///< "down1.conv", "aten::convolution": where it was while the others had gone on
    int64_t time = 0;
  };
  int64_t rank = 0;
  int64_t late = 0;           ///< nanoseconds; what it waited itself before does not count
  int64_t waited = 0;         ///< nanoseconds
  std::vector<Cause> causes;  ///< of `late`, the largest first
};

/// Matches the calls of all ranks by group, call tag and number. A rank waits for the last of those that it needs: all
/// of a collective, those that send to it in an exchange. What the late rank did since the last call of both, and the
/// waiting one did not, is the cause.
std::vector<RankSkew> find_skew(const std::vector<RankRecord>& ranks);

/// skew.txt: a line for each rank, and its causes. `steps`: what times are divided by.
std::string skew_text(const std::vector<RankSkew>& skew, int64_t steps);
/// "rank 2 is 8.1 ms late, 78 % of it in down1.conv" for the rank that is latest; "" where none is late.
std::string latest_rank(const std::vector<RankSkew>& skew, int64_t steps);

}  // namespace moonhalo
