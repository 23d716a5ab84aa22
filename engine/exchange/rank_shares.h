// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

// Work that is divided among ranks as no spec says, such as the chunks of a file that ranks read for each other: which
// ranks do the same. For forecast/rank_kinds.h. Nothing of this file is collective.

/// Gets a number of every rank of a mesh, or of the world (null). Ranks with equal numbers do the same.
using SharesWatch = std::function<void(const DeviceMesh* mesh, const std::vector<int64_t>& numbers)>;

/// Sets a function that is called for each such division; null for none. Returns the one before.
SharesWatch watch_shares(SharesWatch watch);

/// Notes the numbers of all ranks. Only rank 0 does so, as all ranks would note the same, and only if a watch is set.
void note_shares(const DeviceMesh* mesh, int64_t rank, const std::function<std::vector<int64_t>()>& make);

/// Boxes that go from rank to rank of a mesh, in rounds. A rank sends what it has (`from`) to each rank that needs a
/// part of it (`to`) and is served by it.
struct MovedBoxes {
  int64_t rounds = 1;
  std::function<Box(int64_t round, int64_t rank)> from, to;
  std::function<bool(int64_t owner, int64_t user)> serves = [](int64_t, int64_t) { return true; };
};
/// Notes which ranks send as much.
void note_moved_boxes(const DeviceMesh& mesh, const MovedBoxes& moved);

}  // namespace moonhalo
