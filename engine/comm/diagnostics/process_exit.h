// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo {

/// Processes that lost another rank end so: exit status of the program, and of what waits for others outside of any
/// verb.
inline constexpr int kRankLostStatus = 3;

}  // namespace moonhalo
