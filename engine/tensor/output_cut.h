// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace moonhalo {

class Communicator;

/// Says where the outputs of a window operator (convolution, pooling, unfold, interpolation) go along a cut dim. Values
/// do not depend on it, block sizes and halos do. Padding obeys it too: the outer blocks grow (kGeometry: unless one
/// would get far more rows than the others, then blocks are balanced), or blocks are balanced.
enum class OutputCut : uint8_t {
  kGeometry,  ///< to the owner of the window's centre: the fewest bytes
  kKeep,  ///< stride 1: as many rows as each block of the input, the last one takes the difference; else as kGeometry
  kRebalance,  ///< balanced blocks: equal work behind uneven or strided windows, for wider halos
};

/// Sets this thread's cut (ranks may be threads); returns the one before. Part of the key of cached decisions, so it
/// may be changed from call to call; backward asks for it anew, and moves gradients where it differs from the forward
/// call's. It must be the same on every rank: with `world` given the call is collective over it and throws ValueError
/// on every rank, changing nothing, where they differ.
OutputCut set_output_cut(OutputCut cut, Communicator* world = nullptr);
OutputCut output_cut();
/// "geometry" | "keep" | "rebalance"; ValueError with the nearest name otherwise.
const char* name(OutputCut cut);
OutputCut parse_output_cut(const std::string& text);

/// `tensor` with balanced blocks (sizes that differ by at most one) along `dim`, or along every cut dim; the same
/// tensor where they are balanced already, or plain. Only rows that change owners travel (collective). Differentiable;
/// the gradient comes back in the tensor's own cut. Sums (Partial) stay sums.
at::Tensor rebalance(const at::Tensor& tensor, std::optional<int64_t> dim = std::nullopt);

}  // namespace moonhalo
