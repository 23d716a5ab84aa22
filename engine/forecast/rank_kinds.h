// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/forecast/operator_call.h"
#include "moonhalo/engine/forecast/step_calls.h"
#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

class DeviceMesh;
class ShardSpec;

/// The ranks of a large run are of a few kinds: those of a kind do the same in a step. This finds the kinds by dry runs
/// of some ranks. Nothing of it is collective.

/// The coordinates of a rank in a grid of all ranks of these sizes, row-major.
std::vector<int64_t> grid_coordinates(int64_t rank, const std::vector<int64_t>& sizes);

/// A cut of some tensor dim: over these mesh dims (the outermost first), into blocks of these sizes.
struct SeenCut {
  std::vector<int64_t> mesh_dims, sizes;
  auto operator<=>(const SeenCut&) const = default;
};

/// The tensor with the most elements of those that are cut in one way: its shape, and the dim that is cut.
struct CutTensor {
  std::vector<int64_t> shape;
  int64_t dim = 0;

  int64_t elements() const;
  /// Becomes `other` if that has more elements.
  void grow(const CutTensor& other);
};

/// A mesh of all ranks, and the cuts of all tensors that lived on it or on its slices.
struct SeenMesh {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::map<SeenCut, CutTensor> cuts;

  /// The coordinates of a rank; the block of a cut that it has.
  std::vector<int64_t> coordinates(int64_t rank) const { return grid_coordinates(rank, shape); }
  size_t block_of(const SeenCut& cut, int64_t rank) const;
};

/// Numbers by rank of the world: those with equal numbers do the same part of some work (exchange/rank_shares.h).
using SeenShares = std::set<std::vector<int64_t>>;

/// Collects the meshes and cuts of the specs that this rank makes while it exists, and the shares that it notes.
class SeenSpecs {
 public:
  SeenSpecs();
  ~SeenSpecs();
  SeenSpecs(const SeenSpecs&) = delete;
  SeenSpecs& operator=(const SeenSpecs&) = delete;
  const std::vector<SeenMesh>& meshes() const { return meshes_; }
  const SeenShares& shares() const { return shares_; }

 private:
  void look(const ShardSpec& spec);
  void add_shares(const DeviceMesh* mesh, const std::vector<int64_t>& numbers);
  std::vector<SeenMesh> meshes_;
  SeenShares shares_;
};

/// The findings of a dry run of one rank.
struct RankRun {
  Tape tape;
  std::vector<OperatorCall> calls;  ///< of the tape's operators, each once
  StepCalls step;                   ///< the same in their order, where the host is timed
  std::vector<SeenMesh> meshes;
  SeenShares shares;
  double host = 0;     ///< seconds of a step in the script, autograd and the dispatcher here; 0: not timed
  int64_t peak = 0;    ///< bytes of its tensors at the peak, of all steps that were run and what was before them
  int64_t steps = 0;   ///< that have ended; 0: the tape is of the whole script
  bool steady = true;  ///< the last two steps did the same
};

/// The kinds of ranks, and what was run to find them.
struct RankKinds {
  RankTapes tapes;
  std::vector<RankRun> runs;     ///< of one rank of each kind, the smallest that was run; without the tapes
  std::vector<SeenMesh> meshes;  ///< of all runs; the one with the most dims first
  std::vector<int64_t> run;      ///< the ranks that were run
  int64_t checked = 0;           ///< of them, the ranks that were drawn to compare them with their kind
  std::vector<int64_t> unlike;   ///< of those, the ranks that send or hold something else
};

/// Finds the kinds of `ranks` ranks. `dry_run` runs some ranks and returns what each has found, in this order. Few
/// ranks are all run. Of many, those are run that differ in what is known to matter: along a mesh dim with exchanges
/// the first two, a middle one and the last two; of each cut every size of a block and of its neighbours; of work that
/// ranks share in another way every share; along a mesh dim that cuts nothing, as in pipelines, all. A rank so found
/// may have cuts that no other had, so this is repeated until nothing is new. At last `drawn` other ranks are run, and
/// compared with the rank that stands for them. The drawing is the same each time.
using DryRun = std::function<std::vector<RankRun>(const std::vector<int64_t>& ranks)>;
RankKinds find_kinds(int64_t ranks, const DryRun& dry_run, int64_t drawn = 4);

}  // namespace moonhalo
