// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace moonhalo::io {

/// ValueError if the name of a picture ends as that of another format does, which a PNG file in it would not be.
/// `what`: who asks, "write_png".
void check_png_name(const std::string& what, const std::string& path);

/// Writes an RGB picture: `image` is uint8 [height, width, 3], row 0 on top. The file appears under
/// its name only when it is complete. TypeError for another dtype, ValueError for another shape, a
/// name that check_png_name refuses, or a folder that does not exist, RuntimeError when the disk refuses.
void write_png(const std::string& path, const at::Tensor& image);

}  // namespace moonhalo::io
