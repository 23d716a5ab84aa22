// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Who wrote a tensor is told by autograd's version counters: of ShardTensors, which all ranks move alike, and of their
// blocks.
namespace moonhalo {

/// How often a tensor was written; 0 in inference mode, where nobody counts. Views share the counter of what they were
/// made from.
uint32_t version_of(const c10::TensorImpl& impl);
/// `alias`, made of `block` without autograd, counts its versions together with it.
void share_versions(const at::Tensor& block, const at::Tensor& alias);
/// An unrecorded alias of a ShardTensor's block, by which nobody can write without moving the block's version.
at::Tensor counted_alias(const at::Tensor& block);

}  // namespace moonhalo
