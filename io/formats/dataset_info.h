// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/formats/array_map.h"

namespace moonhalo::io {

class ChunkSource;

/// The facts of a dataset's header, read once.
struct DatasetInfo {
  std::string name;  ///< path in the file, without a leading slash
  std::vector<int64_t> shape;
  std::optional<at::ScalarType> dtype;  ///< nothing where no tensor holds its type
  std::string type_name;
  std::vector<std::string> members;  ///< of a compound that is not a complex number
  std::vector<std::string> member;   ///< the names that lead to what this is of a compound; empty: all of it
  bool enumeration = false;
  bool native = false;                        ///< stored as a tensor of `dtype` is in memory
  std::vector<int64_t> chunks;                ///< empty unless stored in chunks
  std::vector<std::string> filters;           ///< "gzip 4", "shuffle", ...; a filter the library lacks says so
  std::optional<uint64_t> offset;             ///< where its bytes begin in the opened file, if they are there plainly
  std::vector<int64_t> strides;               ///< of those, in bytes; empty: one run
  bool reversed = false;                      ///< those are with the first dim innermost, as Fortran has it
  bool swapped = false;                       ///< those are in the other byte order
  std::optional<ArrayMap> map;                ///< of chunks whose codecs are known here; they are in the opened file
  std::shared_ptr<const ChunkSource> source;  ///< of the map's chunks in files that are not HDF5
  size_t element_size = 0;
  std::string refusal;  ///< why it is not read by this version, after the place: "what", have, fix; usually empty
  std::string damage;   ///< why it must not be read, as HDF5 would read memory that it does not have; usually empty
};

}  // namespace moonhalo::io
