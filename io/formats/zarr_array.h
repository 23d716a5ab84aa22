// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/zarr_json.h"

namespace moonhalo::io {

/// Where an array is: its folder, what links in it may lead to, and its path in the catalog.
struct ZarrPlace {
  std::string folder;
  std::shared_ptr<const FolderReach> reach;
  std::string path;
};

/// An array by its metadata (.zarray and .zattrs of version 2, zarr.json of version 3). BrokenZarr for what cannot be
/// right; what this version does not read is DatasetInfo::refusal.
Catalog::Array read_zarr2_array(const ZarrPlace& place, const Json& array, const Json& attributes);
Catalog::Array read_zarr3_array(const ZarrPlace& place, const Json& node);

}  // namespace moonhalo::io
