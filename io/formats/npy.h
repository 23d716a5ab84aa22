// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "moonhalo/io/formats/catalog.h"

namespace moonhalo::io {

/// The name of the one dataset in a .npy file.
inline constexpr const char* kNpyDataset = "data";

/// True for a regular file that begins as one of numpy.save, whatever its name.
bool is_npy(const std::string& path);
/// The head of a .npy file of format 1.0, 2.0 or 3.0, with one dataset "data". Elements of other types than numbers,
/// booleans and times have a refusal. ValueError for a damaged head, another version, or a file that is cut short.
std::unique_ptr<Catalog> read_npy(const std::string& path);
/// Writes a plain tensor, of which this rank has all, as numpy.save does (format 1.0, row-major, little-endian). The
/// file appears under its name when it is complete. TypeError for a dtype that numpy lacks.
void write_npy(const std::string& path, const at::Tensor& tensor);

}  // namespace moonhalo::io
