// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

namespace moonhalo {

/// The strides of memory without gaps for `sizes`, whose dims have the order of `like`: the one of the greatest
/// stride outermost.
at::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef like);
/// True if a block has the memory order that the strides `like` state: without gaps, its dims in their order. Dims
/// of one row and empty blocks have any strides; what a tensor expands is not looked at.
bool has_layout(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef like);
inline bool has_layout(const at::Tensor& block, at::IntArrayRef like) {
  return has_layout(block.sizes(), block.strides(), like);
}
/// The block itself if it has that order, else a copy that has it.
at::Tensor laid_as(const at::Tensor& block, at::IntArrayRef like);

}  // namespace moonhalo
