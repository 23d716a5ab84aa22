// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// The reason why messages are sent, as far as the tape of a step shows it. Nothing of this file is collective.
enum class Purpose : uint8_t {
  kNone,              ///< not a message
  kExchange,          ///< edges of blocks, or blocks that move
  kGradients,         ///< sums of gradients, as one verb, or as an exchange of addends and a gather of sums
  kParametersOrRows,  ///< fully_shard puts parameters together, or adds up their gradients; or rows of equal blocks go
                      ///< to all ranks of a group: the tape does not tell which
  kSum,               ///< another sum, or the second half of one, which gathers its parts
  kGather,            ///< an operator or a redistribution puts blocks together
  kOther,             ///< the other verbs
};

/// The purposes of the tape's events.
std::vector<Purpose> purposes_of(const Tape& tape);

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
/// The remedy where edges of blocks send the most: another mesh of the same ranks, or fewer ranks.
std::string edges_remedy(const Tape& tape, const RankTapes& tapes);
/// "rows 4 x columns 4"
std::string mesh_sizes_text(const std::vector<int64_t>& mesh, const std::vector<std::string>& names);

}  // namespace moonhalo
