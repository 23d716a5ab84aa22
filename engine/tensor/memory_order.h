// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

namespace moonhalo {

/// The strides of memory without gaps for `sizes`, whose dims lie in the order of `like`: the one of the greatest
/// stride outermost.
at::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef like);
/// True if a block lies as a tensor of the strides `like` says: without gaps, its dims in their order. Dims of one row
/// and empty blocks lie anyhow; what a tensor expands is not looked at.
bool lies_as(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef like);
inline bool lies_as(const at::Tensor& block, at::IntArrayRef like) {
  return lies_as(block.sizes(), block.strides(), like);
}
/// The block itself if it lies so, else a copy that does.
at::Tensor laid_as(const at::Tensor& block, at::IntArrayRef like);

}  // namespace moonhalo
