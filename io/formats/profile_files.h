// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moonhalo/engine/profile/profiler.h"

namespace moonhalo::io {

/// Writes what a profiler has recorded into `folder`, which is made: profile.json, the sums that read_profile reads;
/// table.txt; skew.txt, which names the rank that the others waited for; trace.json.gz for Perfetto; flame.txt,
/// collapsed stacks. Rank 0 writes. Files of a former profile are replaced. Throws ValueError or RuntimeError on all
/// ranks if the disk refuses. Collective over the world of the profiler.
void save_profile(const Profiler& profiler, const std::string& folder);
/// Reads the sums in a folder of save_profile, or in the folder "profile" of a run's folder. Throws ValueError if there
/// is none.
ProfileSummary read_profile(const std::string& folder);

}  // namespace moonhalo::io
