// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/catalog.h"

namespace moonhalo::io {

/// True for a folder with the metadata of a Zarr group or array, of version 2 or 3.
bool is_zarr(const std::string& path);

/// Groups, arrays and attributes of a Zarr folder:
///
///     era5.zarr/zarr.json           group     (version 2: .zgroup, .zattrs)
///     era5.zarr/t2m/zarr.json       array     (version 2: .zarray, .zattrs)
///     era5.zarr/t2m/c/0/3/1         a chunk, or a shard of many (version 2: t2m/0.3.1)
///
/// An array that is opened by itself has the name of its folder. Consolidated metadata only tell which arrays
/// should be there: files of the arrays themselves are what counts. ValueError, naming the folder, for damaged
/// metadata of the group that is opened; an array that is damaged is one of Catalog::broken, one of an unknown
/// codec can be looked at.
///
/// Symbolic links are followed where they stay in the folder (anywhere with `allow_external`), those to groups where
/// the group is not read by another name already; else what they name is one of Catalog::broken.
std::unique_ptr<Catalog> read_zarr(const std::string& path, bool allow_external = false);

}  // namespace moonhalo::io
