// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/base/made_on_use.h"
#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

class PlacedTensors;
struct ReducersOfRank;
struct ShardLoad;
struct UnitPasses;

/// One rank's state of models and their training.
struct ModelContext {
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;
  /// The stages that parameters of pipelines belong to (stage_parameters.h).
  struct StageNote {
    WeakTensor parameter;
    std::weak_ptr<Communicator> group;
    bool counts;
  };
  std::unordered_map<const c10::TensorImpl*, StageNote> stage_parameters;
  std::vector<std::weak_ptr<DeviceMesh>> local_loss_meshes;  ///< training/local_loss_mesh.h
  /// Parameters that live on after fully_shard put others in their place (training/gradient_sync.cpp).
  std::unordered_map<const c10::TensorImpl*, WeakTensor> replaced;
  MadeOnUse<ShardLoad> shard_load;          ///< training/fully_shard.cpp
  MadeOnUse<PlacedTensors> placed_tensors;  ///< training/fully_shard.cpp
  MadeOnUse<UnitPasses> unit_passes;        ///< training/parameter_unit.cpp
  MadeOnUse<ReducersOfRank> reducers;       ///< training/unit_reducer.cpp
};
inline const RankLocal<ModelContext> model_context;

}  // namespace moonhalo
