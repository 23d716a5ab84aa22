// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "moonhalo/ops/window/halo_boxes.h"

namespace moonhalo {

/// A transposed convolution over cut dims, forward: what the owned rows give is computed while borrowed rows travel,
/// and what those add near the edges afterwards, box by box.
///
///     owned rows       o o o o                 outputs  |. . # # # # # # .|   of this rank's block
///     borrowed rows  h         h                         # #             #    added
struct ConvSpread {
  /// What a box of input rows gives to the block; all per spatial dim.
  struct Part {
    bool gives = false;                 ///< false: nothing, the rest is not set
    std::vector<int64_t> padding;       ///< of the kernel on the box; -1: as the operator's own (the dim is not cut)
    std::vector<int64_t> crop;          ///< rows of the kernel's result before the block
    std::vector<int64_t> first, count;  ///< local outputs that it gives to
  };
  Part owned;
  std::vector<BorrowedBox> borrowed;
  std::vector<Part> parts;  ///< of the borrowed boxes, in their order
};

/// For transposed windows, one per spatial dim; nullopt where nothing travels.
std::optional<ConvSpread> conv_spread(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows);

}  // namespace moonhalo
