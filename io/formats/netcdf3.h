// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/catalog.h"

namespace moonhalo::io {

/// True if the file begins as one of the classic formats of NetCDF does.
bool is_netcdf3(const std::string& path);

/// The head of a NetCDF-3 file: classic (CDF-1), with 64-bit offsets (CDF-2) or with 64-bit data (CDF-5). Variables
/// are in it plainly, in big-endian order; those with the record dimension, the only one that grows, row by row:
///
///     | head | a | b | c row 0 | d row 0 | c row 1 | d row 1 | ...
///
/// ValueError, naming the file, for a head that is cut short or damaged. Nothing is allocated beyond the file's size.
std::unique_ptr<Catalog> read_netcdf3(const std::string& path);

}  // namespace moonhalo::io
