// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/io/base/dry_file.h"
#include "moonhalo/io/base/file_stamp.h"
#include "moonhalo/io/base/io_stats.h"

namespace moonhalo::io {

/// Counts the files that a dry run has left out.
struct Unwritten {
  int64_t files = 0, bytes = 0;
};

/// One rank's state of files.
struct IoContext {
  IoStats stats;
  /// By path, the newest file of that name that this rank wrote or compared with its own (formats/written_by_others.h).
  std::map<std::string, FileStamp> known_files;
  MeshPtr mesh_of_one;  ///< for datasets that one rank writes alone (fields/write_together.cpp)
  at::Tensor spare;     ///< the memory of the last save in the background, for the next one
  Unwritten unwritten;
  std::map<std::string, DryFile> dry_files;  ///< by path, the HDF5 files that this rank of a dry run has finished
};
inline const RankLocal<IoContext> io_context;

}  // namespace moonhalo::io
