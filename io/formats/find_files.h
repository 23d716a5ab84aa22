// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moonhalo::io {

/// The files that `source` means, by name: the file of that path, those of a pattern ("era5/t2m_*.nc", as in a shell),
/// or those of a folder whose names end as files of HDF5, NetCDF or Zarr do. A folder that is Zarr is one file.
/// ValueError when there is none, with the nearest names.
std::vector<std::string> find_files(const std::string& source);

}  // namespace moonhalo::io
