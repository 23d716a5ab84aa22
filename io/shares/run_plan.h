// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "moonhalo/io/formats/plain_reader.h"
#include "moonhalo/io/shares/io_plan.h"

namespace moonhalo::io {

/// A shared plan for elements that are in a file as they are, where the blocks of a selection are short runs, of a
/// number so large that it costs less to read long ones, each byte once over all ranks, and to give others what is
/// in them:
///
///     file     |0 0 1 1|0 0 1 1|0 0 1 1|0 0 1 1|   four rows that two ranks share
///     direct   each rank reads all rows, and picks its half of each
///     shared   rank 0 reads rows 0 and 1, rank 1 reads rows 2 and 3, and each gives the other its halves
///
/// So it is, too, where the ranks together would read more than 1.5 times what they need, however little that is: a
/// run is then at most a quarter of a rank's share, or what is within 8 KiB. Nothing where the direct way is as
/// good. A pure function of facts that all ranks hold.
std::optional<IoPlan> plan_runs(const PlainArray& array, const std::vector<Slice>& slices, const SpecPtr& spec,
                                const BlockHalo& halo);

}  // namespace moonhalo::io
