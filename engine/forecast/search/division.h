// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace moonhalo {

/// A way to share out ranks: over the stages of a pipeline, and within each over samples, over a grid of blocks of the
/// field, and over the features of layers.
struct Division {
  int64_t data = 1;        ///< ranks with other samples
  int64_t rows = 1;        ///< blocks along the first spatial dim of the domain
  int64_t columns = 1;     ///< blocks along the second
  int64_t tensor = 1;      ///< ranks with other features of a layer
  bool is_stored = false;  ///< parameters in blocks over the data ranks (fully_shard), not copied (replicate)
  /// Activations are computed again in backward (recompute.h), not kept. Which parts of the model do so is up to the
  /// program.
  bool recomputes = false;
  int64_t stages = 1;  ///< of a pipeline (pipeline.h): parts of the model that follow each other, on different ranks
  int64_t micro_batches = 1;  ///< micro-batches of a step: equal parts of its samples, one after the other
  bool operator==(const Division&) const = default;

  /// The product of the five numbers of ranks.
  int64_t ranks() const { return stages * data * rows * columns * tensor; }
  /// Sizes and names of the mesh of a stage, which is that of all ranks where there is one stage: "data", "rows",
  /// "columns", "tensor". All four are always there.
  std::vector<int64_t> mesh_shape() const { return {data, rows, columns, tensor}; }
  static std::vector<std::string> mesh_names() { return {"data", "rows", "columns", "tensor"}; }
  /// The same of all ranks, with "stages" before the others.
  std::vector<int64_t> pipeline_mesh_shape() const { return {stages, data, rows, columns, tensor}; }
  static std::vector<std::string> pipeline_mesh_names() { return {"stages", "data", "rows", "columns", "tensor"}; }
  /// "data 2, rows 4, stored"; "one rank"; "stages 2, data 4, micro-batches 8, recomputed".
  std::string text() const;
};

/// The divisions that are possible: the largest number of ranks for each purpose. A field has as many rows of blocks as
/// rows at most, a micro-batch as many data ranks as samples.
struct DivisionSpace {
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  int64_t ranks = 1;
  int64_t most_data = kAny, most_rows = 1, most_columns = 1, most_tensor = 1;
  int64_t most_stages = 1;  ///< of a pipeline; their parameters are copied over the data ranks, not stored
  int64_t samples = kAny;   ///< of a step, in all micro-batches together
  std::vector<int64_t> micro_batches{1};  ///< numbers of micro-batches; `samples` is a multiple of each
  bool may_store = true, may_copy = true;
  bool may_recompute = false;  ///< each division also with activations that are computed again
};

/// All divisions of `space.ranks` ranks, those with the fewest stages first, then by micro-batches as
/// `space.micro_batches` lists them, then those with most data ranks. Parameters are stored where there are several
/// data ranks and one stage. One that recomputes follows the same one that does not. Throws ValueError for numbers
/// below 1, for micro-batches that are not as large as each other, and if there is none. Not collective.
std::vector<Division> divisions_of(const DivisionSpace& space);

}  // namespace moonhalo
