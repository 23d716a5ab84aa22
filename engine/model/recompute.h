// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <vector>

namespace moonhalo {

using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// `segment(inputs)`, whose intermediate results are not kept for the backward pass: it is run again there (activation
/// recomputation; Chen, Xu, Zhang, Guestrin: "Training deep nets with sublinear memory cost", 2016). Results and
/// gradients are those of the call without it, on plain tensors and on ShardTensors, to any order; tensors that the
/// segment captures (weights, other activations) get their gradients too.
///
/// The second run sees the random numbers (default_generator, engine/random/random.h) and the autocast settings of the
/// first, and must do the same operations on the same tensors; ValueError when it uses other ones. Captured state must
/// not have been written in between (running statistics are updated twice). Where the segment moves data, backward is
/// collective like the segment itself. The first run builds the graph of the segment and drops it, to learn what was
/// captured: the memory of one segment is needed for that long.
std::vector<at::Tensor> checkpoint(const Segment& segment, const std::vector<at::Tensor>& inputs);

/// One input, one result.
template <typename Function>
requires std::is_invocable_r_v<at::Tensor, Function, const at::Tensor&> at::Tensor checkpoint(Function segment,
                                                                                              const at::Tensor& input) {
  const Segment listed = [segment](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{segment(inputs[0])};
  };
  return checkpoint(listed, std::vector<at::Tensor>{input})[0];
}

}  // namespace moonhalo
