// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "moonhalo/engine/exchange/halo_source.h"
#include "moonhalo/ops/window/halo_split.h"

namespace moonhalo {

/// A planned convolution: the operator, how its tensors are cut, and this rank's part. The rule (conv.cpp) fills it
/// from top to bottom, and the plan's `run` calls forward() or backward() (conv_local.cpp). Example: 10 rows on 3 ranks
/// in blocks of 4, 3 and 3; kernel 3, stride 1, padding 1. Output o reads the rows o - 1 to o + 1.
///
///     rank                    0                   1                            2
///     input: owned rows       [0, 4)              [4, 7)                       [7, 10)
///     output: `block`         [0, 4)              [4, 7)                       [7, 10)
///     halo_rows               none    [4, 5)      [3, 4)       [7, 8)          [6, 7)      none
///     interior                all outputs of the block from its owned rows, with `padding` 1 at both ends
///     slabs: outputs          none    [3, 4)      [4, 5)       [6, 7)          [7, 8)      none
///       from the rows                 [2, 5)      [3, 6)       [5, 8)          [6, 9)
///
/// Rank 1 sends row 4 to rank 0 and row 6 to rank 2 (`maps`), and convolves its interior meanwhile: rows 4 to 6 with a
/// zero on each side. When row 3 has arrived, it convolves (row 3, 0, 0) without padding and adds the result to output
/// 4; in the same way it adds (0, 0, row 7) to output 6. So no block is copied, and each row is used once.
struct ConvPlan {
  /// One call of LibTorch's kernel. Its result has `uncropped` rows per spatial dim, of which `crop` come before the
  /// outputs; only results of transposed convolutions are cropped.
  struct Call : HaloSplit::Part {
    std::vector<int64_t> padding, crop, uncropped;
  };

  // The operator. Vectors have an item per spatial dim, output_shape has all dims.
  std::vector<Window> windows;
  std::vector<int64_t> stride, dilation;  ///< of the windows, as LibTorch takes them
  std::vector<int64_t> output_padding;    ///< 0 along dims of several blocks: results are cropped there
  std::vector<int64_t> output_shape;      ///< global
  bool transposed = false;
  int64_t groups = 1;

  // The specs of its tensors. A weight that is cut along a spatial dim is itself a field (second derivatives): the
  // outputs are then Partial, sums over the blocks of its rows.
  SpecPtr input_spec, weight_spec, bias_spec, output_spec;

  // This rank's part. Boxes are global, and any extent may be zero.
  int64_t local_groups = 1;
  Box block;                     ///< of outputs
  std::optional<Call> interior;  ///< the parts of a HaloSplit
  std::vector<Call> slabs;
  std::vector<Box> halo_rows;  ///< slab i is computed from fetched box i, which maps[i] brings
  HaloMaps maps;               ///< empty if no rank lacks anything

  /// The dim of the weight that holds the channels of the output, or of the input (one group).
  int64_t out_dim() const { return transposed ? 1 : 0; }
  int64_t in_dim() const { return transposed ? 0 : 1; }
  /// True if this spatial dim is summed over block by block, because the weight is a cut field.
  bool contracts(size_t spatial) const { return weight_spec->is_cut(static_cast<int64_t>(spatial) + 2); }

  /// Computes this rank's outputs. Tensors are local and plain. Both functions are collective over the mesh if there
  /// are `maps`. `source` may hold halos of `input` (LocalCall::halo_source).
  at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     const HaloSource& source = {}) const;
  /// Gradients of input, weight and bias.
  using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  /// Returns those that `mask` asks for: of the owned input rows, to which other ranks' gradients of them are added,
  /// and of weight and bias, summed over this rank's outputs.
  Gradients backward(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                     std::array<bool, 3> mask, const HaloSource& source = {}) const;
};

}  // namespace moonhalo
