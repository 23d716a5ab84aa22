// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/zarr_json.h"

namespace moonhalo::io {

/// An array in `folder` by its metadata (.zarray and .zattrs of version 2, zarr.json of version 3). `path`: in the
/// catalog. BrokenZarr for what cannot be right; what this version does not read is DatasetInfo::refusal.
Catalog::Array read_zarr2_array(const std::string& folder, const std::string& path, const Json& array,
                                const Json& attributes);
Catalog::Array read_zarr3_array(const std::string& folder, const std::string& path, const Json& node);

}  // namespace moonhalo::io
