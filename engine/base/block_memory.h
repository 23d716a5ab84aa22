// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moonhalo {

/// Like at::empty, for blocks that are written once from end to end: large ones on the CPU ask for huge pages, where
/// the system gives them on request. Touching 64 MiB of new memory page by page costs several times as much as copying
/// 64 MiB.
at::Tensor empty_block(at::IntArrayRef shape, const at::TensorOptions& options);

/// A contiguous copy in such memory.
at::Tensor copied_block(const at::Tensor& source);

/// Views of the parts of a block along `dim`, as split_with_sizes gives them, for messages to thousands of ranks:
/// without autograd and unseen by recorders, which would take longer than all else for each of them.
std::vector<at::Tensor> split_block(const at::Tensor& block, at::IntArrayRef sizes, int64_t dim = 0);

}  // namespace moonhalo
