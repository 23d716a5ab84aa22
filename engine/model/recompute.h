// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <vector>

namespace moonhalo {

/// A part of a program: tensors to tensors.
using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Returns `segment(inputs)` without keeping its intermediate results: backward runs the segment again (activation
/// checkpointing; Chen, Xu, Zhang, Guestrin: "Training deep nets with sublinear memory cost", 2016). Results and
/// gradients of any order are the same as without it, for plain tensors and ShardTensors. Tensors that the segment
/// captures (weights, other activations) get their gradients too.
///
/// The second run uses the random numbers (default_generator, engine/random/random.h) and the autocast settings of the
/// first. It must do the same operations on the same tensors; throws ValueError if it uses others. Captured state must
/// not be written in between (running statistics are updated twice). If the segment communicates, backward is
/// collective as the segment is. The first run builds the segment's graph to find the captured tensors and then drops
/// it, so the memory of one segment is needed for that time.
std::vector<at::Tensor> checkpoint(const Segment& segment, const std::vector<at::Tensor>& inputs);

/// The same for one input and one result: collective as the segment is.
template <typename Function>
requires std::is_invocable_r_v<at::Tensor, Function, const at::Tensor&> at::Tensor checkpoint(Function segment,
                                                                                              const at::Tensor& input) {
  const Segment listed = [segment](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{segment(inputs[0])};
  };
  return checkpoint(listed, std::vector<at::Tensor>{input})[0];
}

}  // namespace moonhalo
