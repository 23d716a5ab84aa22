// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::testing {

/// The least elements that must be sent, element by element. Let K be the ranks that want it and H those that hold
/// it (or one of its P addends). P = 1: every rank of K outside H receives it once. P > 1: P - 1 addends are sent
/// until the sum is made, on a rank of K and H if there is one, and then the other ranks of K receive it: P - 1 + K
/// - 1; one more if K and H are apart. Of a Partial that begins, one coordinate needs the element (all, if it is an
/// average); one that stays is several tensors, one for each coordinate. For K = 1 and K = P of one group this is
/// reduce-scatter's (P-1)/P and all-reduce's 2(P-1)/P of the data per rank. `there`: the rank in the mesh of `to`
/// for each rank of the mesh of `from`.
int64_t fewest_elements(const ShardSpec& from, const ShardSpec& to, const std::vector<int64_t>& there);

}  // namespace moonhalo::testing
