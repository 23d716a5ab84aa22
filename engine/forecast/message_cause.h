// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// The reason for which a call sends is its traffic. Sums that an operator needs of what it is given are sums like its
/// own, and its inputs are redistributed like other tensors. Nothing of this file is collective.
struct MessageCause {
  Traffic traffic = Traffic::kOther;
  Verb verb = Verb::kExchange;  ///< of kOther, which tells nothing else
  auto operator<=>(const MessageCause&) const = default;
};
MessageCause cause_of(const TapeVerb& call);
MessageCause cause_of(const TapeExchange& call);

/// Names the messages of one cause, and the remedies where their number or their bytes take the time.
struct CauseText {
  std::string what, latency, bytes;
};
/// `tape`: of a kind of `tapes`, whose messages these are.
CauseText text_of(const MessageCause& cause, const Tape& tape, const RankTapes& tapes);

/// The remedy where the number of sums takes the time. Most of those within modules (statistics of norms, products over
/// a cut dim) are used at once: they cannot be put together.
std::string fewer_sums_remedy(const Tape& tape);

/// The bytes that an exchange sends to other ranks than those beside its own on the mesh: all of them, if it sends to
/// more ranks than are beside one. `mesh`: the sizes of the grid of all ranks, row-major; empty: not known.
int64_t bytes_sent_far(const Tape& tape, const TapeExchange& exchange, const std::vector<int64_t>& mesh);

/// The ranks of a mesh, divided so that edges of blocks are shorter.
struct ShorterEdges {
  std::vector<int64_t> mesh;  ///< its sizes
  double share = 0;           ///< the bytes of edges, as a share of those that are sent now
};
/// Finds a division of the same ranks among the mesh dims along which the tape exchanges edges with the ranks beside
/// it. None where that makes edges less than a tenth shorter, as of blocks that are near to squares, or of one such
/// dim: how long edges along another dim would be is not in the tape. `mesh`: sizes of the grid of ranks, row-major.
std::optional<ShorterEdges> shorter_edges(const Tape& tape, const std::vector<int64_t>& mesh);
/// "rows 4 x columns 4"
std::string mesh_sizes_text(const std::vector<int64_t>& mesh, const std::vector<std::string>& names);

}  // namespace moonhalo
