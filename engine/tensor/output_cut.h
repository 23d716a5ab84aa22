// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace moonhalo {

class Communicator;

/// The sharding along a sharded dim of a window operator's outputs (convolution, pooling, im2col, interpolation), of
/// padding, cat and gradients of slices, diagonals and Tensor.unfold. It affects block sizes and halos, not values.
/// Blocks beside new rows grow, or all are balanced (kGeometry: only if new rows would make a block far longer).
enum class OutputCut : uint8_t {
  kGeometry,  ///< owner of the window's centre: fewest bytes
  kKeep,  ///< stride 1: as many rows as each block of the input, the last one takes the difference; else as kGeometry
  kRebalance,  ///< balanced blocks: equal work after uneven or strided windows, wider halos
};

/// Sets the policy of this thread (ranks may be threads) and returns the previous one. It may change between calls,
/// since it is part of the key of cached plans. Backward reads it again, and redistributes gradients if it differs from
/// the forward call's. It must be equal on all ranks. If `world` is given, the call is collective over it; it throws
/// ValueError on every rank and changes nothing if the ranks pass different policies.
OutputCut set_output_cut(OutputCut cut, Communicator* world = nullptr);
OutputCut output_cut();
/// name returns, and parse_output_cut parses, "geometry" | "keep" | "rebalance". Throws ValueError with the nearest
/// name for other strings. Not collective.
const char* name(OutputCut cut);
OutputCut parse_output_cut(const std::string& text);

/// Returns `tensor` with balanced blocks (sizes that differ by at most one) along `dim`, or along every sharded dim. A
/// balanced or plain tensor is returned unchanged. Only rows whose owner changes are sent. Partials are kept.
/// Collective over the tensor's mesh. Differentiable; the gradient has the sharding of `tensor`.
at::Tensor rebalance(const at::Tensor& tensor, std::optional<int64_t> dim = std::nullopt);

}  // namespace moonhalo
