// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moonhalo {

/// The leaves, each once, that autograd's graph of these tensors leads to: what backward gives gradients to. A tensor
/// that is a leaf itself is not among them.
std::vector<at::Tensor> graph_leaves(const std::vector<at::Tensor>& tensors);

}  // namespace moonhalo
