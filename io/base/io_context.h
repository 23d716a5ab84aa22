// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/io/base/file_stamp.h"
#include "moonhalo/io/base/io_stats.h"

namespace moonhalo::io {

/// One rank's state of files.
struct IoContext {
  IoStats stats;
  /// By path, the newest file of that name that this rank wrote or compared with its own (formats/written_by_others.h).
  std::map<std::string, FileStamp> known_files;
  MeshPtr mesh_of_one;  ///< for datasets that one rank writes alone (fields/write_together.cpp)
};
inline const RankLocal<IoContext> io_context;

}  // namespace moonhalo::io
