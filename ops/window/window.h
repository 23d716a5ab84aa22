// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// One dim of a window operator (convolution, pooling): which input rows an output row reads.
///
///     plain        output o reads input  o*stride - padding + k*dilation,  k = 0 .. kernel-1
///     transposed   input  i feeds output i*stride - padding + k*dilation
struct Window {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t padding = 0;
  bool transposed = false;

  /// Rows from a window's first to its last.
  int64_t reach() const { return dilation * (kernel - 1) + 1; }

  /// Returns how many of `out_extent` outputs every block of the input owns: an output belongs to the block
  /// that holds the centre of its window (rounded down, clamped into the domain), unless
  /// set_output_cut says otherwise. Blocks may end up empty.
  std::vector<int64_t> output_sizes(const std::vector<int64_t>& input_sizes, int64_t out_extent) const;

  /// Input rows that the outputs `out` need, not clipped to the domain; {0, 0} for no output. For a transposed window
  /// they are enough that what they feed covers `out`.
  Interval input_needed(const Interval& out) const;
  /// The same without rows that feed no output of `out`: where the stride of a transposed window is wider than the
  /// window. {0, 0} where there is none.
  Interval input_read(const Interval& out) const;
  /// Transposed: the outputs that the input rows `rows` add to, and those between them; {0, 0} for no row.
  Interval outputs_fed(const Interval& rows) const;
};

/// Several ranks hold rows of the dim: a cut in one block needs no neighbours and counts as none.
inline bool spans_ranks(const SpecPtr& spec, int64_t dim) { return spec->cut(dim).sizes.size() > 1; }

/// Number of outputs of a plain window without ceil_mode.
int64_t window_outputs(const Window& window, int64_t in_extent);

/// Block sizes of `out_extent` outputs of a resampling (interpolation, adaptive pooling): boundaries at the same place
/// of the domain, rounded; balanced where set_output_cut says "rebalance". "keep" is that place too: an unchanged
/// extent keeps its blocks.
std::vector<int64_t> resampled_sizes(const std::vector<int64_t>& input_sizes, int64_t out_extent);

/// The map from the blocks of `input` to what the blocks of `output` need. `windows` are those of
/// the last dims; a window applies where the input is divided, every other dim keeps its block. Null
/// when no windowed dim is divided.
std::shared_ptr<const IntervalMap> window_map(const SpecPtr& input, const SpecPtr& output,
                                              const std::vector<Window>& windows);

}  // namespace moonhalo
