// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/fuzz/kinds.h"

namespace moonhalo::testing {

/// NetCDF-3 files of every version, .npy files of both orders, and Zarr folders of both, one of them with checksums of
/// all chunks.
std::vector<InputFiles> other_formats();

inline const std::string kClassic = std::string(kInputName) + ".nc";
inline const std::string kNpy = std::string(kInputName) + ".npy";
inline const std::string kZarr = std::string(kInputName) + ".zarr";

}  // namespace moonhalo::testing
