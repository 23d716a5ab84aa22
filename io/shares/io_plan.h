// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/block_halo.h"
#include "moonhalo/io/formats/array_map.h"

namespace moonhalo::io {

/// Returns the rows that a block with a halo reads: `owned` and the halo beside it, within [0, extent).
Interval with_halo(const BlockHalo& halo, int64_t dim, const Interval& owned, int64_t extent);

/// Decides which rank reads which chunks of a file when each rank needs its block of one selection. All ranks compute
/// the same plan from the same facts, so nothing is sent. With 64 time steps, one chunk for each, and 4 ranks that
/// shard the height:
///
///     direct      each rank reads all 64 chunks, so each chunk is decompressed 4 times
///     shared      in rounds of 8 steps: each rank reads 2 chunks whole, then the ranks exchange the rows they need
///
/// The plan is shared if reading directly would decompress more than kWorthIt times the bytes of the selection's
/// chunks.
class IoPlan {
 public:
  static constexpr double kWorthIt = 1.3;
  /// The most bytes that a rank allocates in a round beside its result: for what it reads, sends and receives. A round
  /// has at least one chunk, also if that is larger.
  static constexpr int64_t kRoundBytes = int64_t{32} << 20;

  /// Plans for writing are always shared: one rank encodes a whole chunk. So are plans for runs (run_plan.h).
  enum class Use : uint8_t { kRead, kReadRuns, kWrite };

  /// `spec`: of the selection, without the dims that an index removed.
  IoPlan(ChunkGrid grid, size_t element_size, SpecPtr spec, BlockHalo halo = {}, Use use = Use::kRead);

  bool shared() const { return shared_; }
  const ChunkGrid& grid() const { return grid_; }
  std::vector<int64_t> global_shape() const { return rows_of(grid_, all_cells(grid_)).shape(); }
  /// Bytes that all ranks together would decode by reading directly, divided by the bytes of the selection's chunks.
  double direct_cost() const { return direct_cost_; }

  int64_t rounds() const { return rounds_; }
  Box cells_of_round(int64_t round) const;
  /// The cells (chunks) that `rank` reads in a round. Each cell of the round is read by one rank.
  Box cells_read(int64_t round, int64_t rank) const;
  /// The rows that `rank` needs, in all rounds or in one.
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
