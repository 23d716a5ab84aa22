// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/catalog.h"

namespace moonhalo::io {

/// The catalog of a path that is NetCDF-3 or Zarr, by its content; null for any other. ValueError for a damaged head.
std::unique_ptr<Catalog> open_catalog(const std::string& path, bool allow_external);

}  // namespace moonhalo::io
