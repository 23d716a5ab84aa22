// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/deferred/factory_capture.h"
#include "moonhalo/engine/model/distribute_parameters.h"
#include "moonhalo/engine/model/module_tree.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/model/torch_module_tree.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Settings of parallelize_module.
struct ParallelizeOptions {
  std::optional<int64_t> src_data_rank = 0;  ///< as in distribute_parameters
  Unmatched unmatched = Unmatched::kError;   ///< names of the plan that match nothing
  bool is_model_sharded = false;             ///< as in distribute_parameters
  /// Placements for tensors that `zeros`, `rand` and other factories (factory_capture.h) make within the root's
  /// forward. Without it they are plain. For torch::nn it takes effect in `moonhalo::call` of the root.
  std::optional<FactoryPlan> factory = {};
  /// Styles written by the caller: `ParallelStyle{.kind = kCustom, .custom = 2}` of a plan means the third function. It
  /// places the tensors of the module that the plan names (ModuleTree::replace_tensor) and adds hooks; the tensors
  /// that it leaves are placed as the plan says.
  std::vector<std::function<void(const ModuleTreePtr& module, const MeshPtr& mesh)>> custom_styles = {};
};

/// Distributes a model over a mesh, in place. Collective over the mesh. Make optimizers afterwards. Every parameter and
/// buffer becomes a ShardTensor, sharded as the plan says or replicated; its gradient, if it has one, is distributed
/// with it. Tensors that cannot be replaced (ModuleTree::why_fixed) stay plain, which means replicated; a plan that
/// shards one is an error. The plan's entries for inputs and outputs become hooks of the modules. Everything is checked
/// before anything changes. A second call warns and changes nothing.
void parallelize_module(const ModuleTreePtr& module, const MeshPtr& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options = {});
/// The same for a torch::nn model; returns the same pointer. Hooks take effect where modules are called with
/// `moonhalo::call` (torch_module_tree.h).
std::shared_ptr<torch::nn::Module> parallelize_module(const std::shared_ptr<torch::nn::Module>& module,
                                                      const MeshPtr& mesh, const ParallelPlan& plan,
                                                      const ParallelizeOptions& options = {});

/// Functions of distribute_module; all may be empty.
struct DistributeFunctions {
  /// Places what it likes (ModuleTree::replace_tensor) of the module `name` ("" is the root).
  std::function<void(const std::string& name, const ModuleTreePtr& module, const MeshPtr& mesh)> partition = {};
  /// Run around the root's forward.
  std::function<void(CallTensors& arguments, const MeshPtr& mesh)> input = {};
  std::function<void(CallTensors& results, const MeshPtr& mesh)> output = {};
};

/// Calls `partition` for the root and every module below, then replicates the tensors that are still plain; those of
/// mesh rank 0 count. Collective over the mesh. Make optimizers afterwards. Throws NotImplementedError, before anything
/// changes, if a tensor cannot be replaced.
void distribute_module(const ModuleTreePtr& module, const MeshPtr& mesh, const DistributeFunctions& functions = {});
std::shared_ptr<torch::nn::Module> distribute_module(const std::shared_ptr<torch::nn::Module>& module,
                                                     const MeshPtr& mesh, const DistributeFunctions& functions = {});

}  // namespace moonhalo
