// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "moonhalo/ops/window/halo_boxes.h"

namespace moonhalo {

/// A pooling over cut dims without a copy of the block: the owned rows are pooled as if the domain ended around them;
/// the outputs whose windows reach beyond them are pooled anew, on narrow strips, when the borrowed rows have arrived.
///
///     owned        |o o o o o o o|
///     low strip h h|o o                  the first outputs
///     high strip             o o|h h     the last ones
struct PoolEdges {
  struct Strip {
    Box box;                       ///< of the input, per dim; leaves the domain where windows hang over its edge
    std::vector<int64_t> padding;  ///< of the kernel, per pooled dim
    std::vector<int64_t> first_output, outputs;  ///< local, per dim of the output
  };
  std::vector<int64_t> padding;  ///< of the kernel on the owned rows, per pooled dim
  Box owned;
  std::vector<BorrowedBox> borrowed;
  std::vector<Strip> strips;
};

/// For windows over the last dims of `input`. Nullopt where nothing travels, where a block is thinner than the window,
/// or if on some rank the owned rows with a padding that LibTorch allows do not give exactly its outputs. Every rank
/// decides alike.
std::optional<PoolEdges> pool_edges(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows,
                                    bool ceil_mode);

/// Outputs of a pooling, which with `ceil_mode` may begin in the domain or its low padding and end beyond the high one.
int64_t pool_outputs(const Window& window, int64_t in_extent, bool ceil_mode);

}  // namespace moonhalo
