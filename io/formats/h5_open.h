// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::h5 {

/// Read only. ValueError: no such file, a folder, not HDF5, cut short.
Handle open_file(const std::string& path);

}  // namespace moonhalo::io::h5
