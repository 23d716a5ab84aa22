// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

/// Says which rows of `input` the outputs of an operator read beyond their own blocks. Both have the same dims.
struct HaloReach {
  struct Dim {
    int64_t dim;
    std::function<Interval(const Interval& outputs)> reads;  ///< rows; may leave the domain
    std::function<Interval(const Interval& rows)> feeds;     ///< transposed windows: the outputs that rows add to
  };
  SpecPtr input, output;
  std::vector<Dim> cut;  ///< the dims of whose rows several ranks hold some
};

/// Makes those of windows over the last dims.
HaloReach reach_of(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows);

/// Divides one rank's outputs and the rows that they read: the part that needs no other rank is computed while rows
/// are sent, the rest afterwards, on slabs. All boxes are global; those of the input may leave the domain.
///
/// Example: rank 1 of 3, which hold 10 rows in blocks of 4, 3 and 3. Output o reads the rows o - 1 to o + 1.
///
///                     split_outputs: each output once    split_inputs: each row once, results are added
///     halo_rows       [3, 4), [7, 8)                     [3, 4), [7, 8)
///     interior        output 5 from the rows [4, 7)      outputs [4, 7) from the rows [4, 7), zeros beyond
///     slabs           output 4 from the rows [3, 6)      output 4 from row 3 alone
///                     output 6 from the rows [5, 8)      output 6 from row 7 alone
///
/// The rows that a rank lacks are disjoint boxes, low and high along each cut dim. Those of dim 2 reach over the
/// corners, so no element is sent twice:
///
///     +---------------+
///     | low of dim 2  |
///     +---+-------+---+
///     |dim|       |dim|
///     | 3 | owned | 3 |
///     +---+-------+---+
///     | high of dim 2 |
///     +---------------+
struct HaloSplit {
  struct Part {
    Box output;  ///< of this rank's block
    Box input;   ///< that the kernel is given
  };
  std::optional<Part> interior;  ///< reads the owned rows alone; on every rank or on none
  std::vector<Part> slabs;
  std::vector<Box> halo_rows;  ///< two per cut dim, disjoint, within the domain; empty where the rank lacks nothing

  /// A line for each part and each box.
  std::string to_string() const;
};

/// The boxes that `rank` lacks, low and high along every cut dim; those of the first dim reach over the corners.
std::vector<Box> halo_boxes(const HaloReach& reach, int64_t rank);

using HaloMaps = std::vector<std::shared_ptr<const IntervalMap>>;
/// The maps that bring them, in their order, to every rank from the owners of `spec`, whose cut dims are cut as those
/// of reach.input; none where no rank lacks anything. All ranks make the same maps.
HaloMaps halo_maps(const HaloReach& reach, const SpecPtr& spec);

/// Each output belongs to one part, as maxima and softmax need it. Slabs read owned and halo rows.
HaloSplit split_outputs(const HaloReach& reach, int64_t rank);
/// Each input row belongs to one part, as sums allow it: the interior gives to all outputs, and the results of the
/// slabs, one per fetched box in their order, are added. A slab of a plain window is as wide as the windows of its
/// outputs, with zeros for all rows but those of its box; one of a transposed window is its box.
HaloSplit split_inputs(const HaloReach& reach, int64_t rank);
/// No interior: one slab for all outputs of the rank, which reads the rows `needed`, fetched as one box.
HaloSplit undivided(const Box& outputs, const Box& needed);

/// A tensor that holds a box. Dims that all boxes leave whole may have other extents.
struct Tile {
  at::Tensor data;
  Box box;
};

/// A view of the tile's part.
at::Tensor part(const Tile& tile, const Box& box);
/// `box` put together from disjoint tiles that may reach beyond it; `fill` where there is none. May be a view of one.
at::Tensor assemble(const Box& box, const std::vector<Tile>& tiles, const at::Scalar& fill);
/// Adds to `sum` what `addend` has of its box.
void add_overlap(const Tile& sum, const Tile& addend);

}  // namespace moonhalo
