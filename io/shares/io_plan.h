// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/block_halo.h"
#include "moonhalo/io/formats/array_map.h"

namespace moonhalo::io {

/// `owned` rows of a dim that is cut, with their halo.
Interval with_halo(const BlockHalo& halo, int64_t dim, const Interval& owned, int64_t extent);

/// Decides which rank reads which chunk of a selection that every rank takes a block of. A pure function of facts that
/// all ranks hold, and small: what a rank reads follows from its number.
///
///     chunks      | 0 : 64 steps, each one chunk that covers height and width                 |
///     blocks      Shard(1): every rank needs a part of every chunk
///     direct      each rank reads all 64: 4 ranks inflate each chunk 4 times
///     shared      in rounds of 8 steps: rank r reads 2 of them whole, then all exchange what they need
///
/// Shared plans pay where blocks cut chunks, or ranks hold the same block: when the direct way would inflate kWorthIt
/// times as much as there is.
class IoPlan {
 public:
  static constexpr double kWorthIt = 1.3;
  /// The bytes that a rank holds beside its result in a round: what it has read, sends, receives and was sent. Where
  /// chunks are larger, that of one chunk.
  static constexpr int64_t kRoundBytes = int64_t{32} << 20;

  /// Plans for writing are always shared: a chunk is encoded whole, by the rank that reads it in such a plan. So are
  /// those for runs, see run_plan.h.
  enum class Use : uint8_t { kRead, kReadRuns, kWrite };

  /// `spec`: of the selection, whose dropped dims it does not have.
  IoPlan(ChunkGrid grid, size_t element_size, SpecPtr spec, BlockHalo halo = {}, Use use = Use::kRead);

  bool shared() const { return shared_; }
  const ChunkGrid& grid() const { return grid_; }
  std::vector<int64_t> global_shape() const { return rows_of(grid_, all_cells(grid_)).shape(); }
  /// Bytes that the direct way decodes, all ranks together, for one byte of the selection's chunks.
  double direct_cost() const { return direct_cost_; }

  int64_t rounds() const { return rounds_; }
  Box cells_of_round(int64_t round) const;
  /// The cells that `rank` reads; over the ranks they divide the cells of the round.
  Box cells_read(int64_t round, int64_t rank) const;
  /// The rows that `rank` needs, and those of them in a round.
  Box needs(int64_t rank) const;
  Box needs(int64_t round, int64_t rank) const;

 private:
  struct Part {  // a block along one dim
    Interval rows, cells;
    Interval most;  // the cells of which it needs more than any other block
  };
  struct Dim {
    int64_t spec_dim = -1;    // -1: an index took it away
    std::vector<Part> parts;  // one when it is not cut
    bool follows = false;     // its cells are read by the ranks that need most of them
    int64_t round_cells = 0;  // as many cells make a round
    bool cut() const { return parts.size() > 1; }
  };
  void divide(Dim& dim, const ChunkCells& cells) const;
  static void give_cells(Dim& dim, const ChunkCells& cells, const std::vector<Interval>& owned);
  void choose_rounds(size_t element_size);
  int64_t round_bytes(size_t element_size) const;
  int64_t largest_share() const;
  const Part& part(const Dim& dim, int64_t rank) const;
  std::vector<int64_t> shares(const std::vector<int64_t>& cells) const;
  std::pair<int64_t, int64_t> turn(int64_t rank) const;

  ChunkGrid grid_;
  SpecPtr spec_;
  BlockHalo halo_;
  std::vector<Dim> dims_;
  std::vector<int64_t> copies_;  // mesh dims that cut nothing
  double direct_cost_ = 1;
  bool shared_ = false;
  int64_t rounds_ = 1;
};

}  // namespace moonhalo::io
