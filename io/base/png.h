// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace moonhalo::io {

/// Writes an RGB picture: `image` is uint8 [height, width, 3], row 0 on top. The file appears under
/// its name only when it is complete. TypeError for another dtype, ValueError for another shape or
/// a folder that does not exist, RuntimeError when the disk refuses.
void write_png(const std::string& path, const at::Tensor& image);

}  // namespace moonhalo::io
