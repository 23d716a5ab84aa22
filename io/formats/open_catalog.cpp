// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/open_catalog.h"

#include "moonhalo/io/formats/netcdf3.h"
#include "moonhalo/io/formats/npy.h"
#include "moonhalo/io/formats/zarr.h"

namespace moonhalo::io {

std::unique_ptr<Catalog> open_catalog(const std::string& path, bool allow_external) {
  if (is_netcdf3(path)) return read_netcdf3(path);
  if (is_npy(path)) return read_npy(path);
  if (is_zarr(path)) return read_zarr(path, allow_external);
  return nullptr;
}

}  // namespace moonhalo::io
