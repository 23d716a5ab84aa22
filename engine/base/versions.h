// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Autograd's version counters tell that a tensor was written: those of ShardTensors, which all ranks change in the
// same way, and of their blocks.
namespace moonhalo {

/// The number of writes to a tensor; 0 in inference mode, which does not count. Views share the counter of what they
/// were made from.
uint32_t version_of(const c10::TensorImpl& impl);
/// `alias`, made of `block` without autograd, counts its versions together with it.
void share_versions(const at::Tensor& block, const at::Tensor& alias);
/// An unrecorded alias of a ShardTensor's block; every write through it moves the block's version.
at::Tensor counted_alias(const at::Tensor& block);

}  // namespace moonhalo
