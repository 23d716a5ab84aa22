// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

/// A convolution over cut dims without a copy of the block. The owned rows are convolved as they
/// are, as if zeros stood around them; what the borrowed rows add to the outputs near an edge is
/// convolved apart, on narrow strips, when they have arrived.
///
///     owned            |o o o o o o o|            convolved with zero padding
///     low strip    h h |0 0                       added to the first outputs
///     high strip                 0 0| h h         added to the last outputs
///
/// Of several cut dims each has its two strips; together they hold every borrowed element once: the
/// first dim's strips reach over the corners, those of the last are as long as the owned block.
///
///     +---------------+
///     | low of dim 2  |
///     +---+-------+---+
///     |dim|       |dim|
///     | 3 | owned | 3 |
///     +---+-------+---+
///     | high of dim 2 |
///     +---------------+
struct ConvStrips {
  struct Strip {
    std::shared_ptr<const IntervalMap> halo;
    int64_t dim = 0;           ///< across which it lies
    int64_t rows = 0;          ///< of the strip along dim; zero where this rank lacks nothing
    int64_t first_output = 0;  ///< local, along dim
    int64_t outputs = 0;
    int64_t target = 0;    ///< where in the strip borrowed rows begin
    int64_t source = 0;    ///< the first borrowed row that the strip holds
    int64_t borrowed = 0;  ///< how many
    /// Of the kernel on the strip, per spatial dim; -1: as the operator's own (the dim is not cut).
    std::vector<int64_t> padding;

    /// The strip, from what `halo` brought.
    at::Tensor fill(const at::Tensor& borrowed_rows) const;
    /// The gradient of the borrowed rows from that of the strip.
    at::Tensor gradient(const at::Tensor& strip_gradient) const;
  };
  /// That lines the owned rows' outputs up with this rank's, per spatial dim; -1 as above.
  std::vector<int64_t> padding;
  std::vector<Strip> strips;
};

/// Strips for plain windows (one per spatial dim) over the dims of `input` that are divided, or nullopt if on some rank
/// the owned rows with symmetric padding do not give exactly its outputs. Every rank decides alike.
std::optional<ConvStrips> conv_strips(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows);

}  // namespace moonhalo
