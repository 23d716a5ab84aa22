// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {

class DeviceMesh;
class ShardSpec;

/// One rank's state of meshes.
struct ShardingContext {
  std::function<void(const ShardSpec&)> spec_watch;  ///< spec_table.h
  /// The dims of a mesh along which a pipeline has stages (whole_mesh.h).
  struct Stages {
    std::weak_ptr<DeviceMesh> root;
    std::vector<int64_t> dims;
    std::weak_ptr<DeviceMesh> rest;  // without them; none where nothing else is left
  };
  std::vector<Stages> stages;
  /// The mesh of set_mesh (registered_mesh.h).
  struct {
    std::shared_ptr<DeviceMesh> mesh;
    bool is_removed_at_exit = false;
  } registered;
  std::map<std::string, std::shared_ptr<DeviceMesh>>
      meshes_of_one;  ///< of this rank alone, by device (random/elementwise_random.cpp)
};
inline const RankLocal<ShardingContext> sharding_context;

}  // namespace moonhalo
