// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "engine/interval_map.h"
#include "ops/window.h"

namespace moonhalo {

/// A convolution of one cut dim without a copy of the block. The owned rows are convolved as they
/// are, as if zeros stood around them; what the borrowed rows add to the outputs near an edge is
/// convolved apart, on narrow strips, meanwhile or after they have arrived.
///
///     owned            |o o o o o o o|            convolved with zero padding
///     low strip    h h |0 0                       added to the first outputs
///     high strip                 0 0| h h         added to the last outputs
struct ConvStrips {
  struct Strip {
    std::shared_ptr<const IntervalMap> halo;
    int64_t rows = 0;          ///< of the strip; zero where this rank lacks nothing
    int64_t first_output = 0;  ///< local
    int64_t outputs = 0;
    int64_t target = 0;    ///< where in the strip borrowed rows begin
    int64_t source = 0;    ///< the first borrowed row that the strip holds
    int64_t borrowed = 0;  ///< how many

    /// The strip, from what `halo` brought. `dim` is that of the tensor.
    at::Tensor fill(const at::Tensor& borrowed_rows, int64_t dim) const;
    /// The gradient of the borrowed rows from that of the strip.
    at::Tensor gradient(const at::Tensor& strip_gradient, int64_t dim) const;
  };
  int64_t dim = 0;      ///< the cut dim, of the tensors
  int64_t padding = 0;  ///< that lines the owned rows' outputs up with this rank's
  std::array<Strip, 2> strips;
};

/// Strips for a plain window over the one cut dim `dim`, or nullopt if on some rank the owned rows
/// with symmetric padding do not give exactly its outputs. Every rank decides alike.
std::optional<ConvStrips> conv_strips(const SpecPtr& input, const SpecPtr& output, int64_t dim,
                                      const Window& window);

}  // namespace moonhalo
