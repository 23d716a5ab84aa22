// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/model/module_tree.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/training/parameter_unit.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace moonhalo {

/// Makes a parameter of fully_shard: a leaf with the same requires_grad on the mesh that `data` is a slice of (or
/// `data` itself), sharded over the last dim of `data` and replicated over its other dims. Existing shardings (tensor
/// parallelism) are kept. The parameter is sharded along dim 0, or, if dim 0 is sharded already or has fewer rows than
/// there are ranks, along the longest dim that is not sharded. Without such a dim, or with few elements, it is
/// replicated. Blocks are whole rows, or whole units of `unit_rows` rows, without padding. The remaining rows go to the
/// ranks that hold the fewest bytes of the parameters placed so far; without `level`, to the first ranks, so that
/// stages of a pipeline that share a parameter shard it equally.
///
/// If the copies differ, those at coordinate 0 of the dims of `data` are used. A tensor that this mesh dim shards
/// already is returned unchanged. `name` is for errors. Collective over the whole mesh. Throws ValueError for a tensor
/// of another mesh.
at::Tensor store_parameter(const at::Tensor& tensor, const MeshPtr& data, const FullyShardOptions& options,
                           const std::string& name);

/// True if store_parameter returns a parameter of any shape and dtype unchanged. Not collective.
bool is_stored_already(const at::Tensor& tensor, const MeshPtr& data);

/// Makes a parameter or buffer of replicate, or a buffer of fully_shard: the same, with a copy on every rank of `data`.
/// Collective over the whole mesh.
at::Tensor copy_tensor(const at::Tensor& tensor, const MeshPtr& data, const std::string& name);

/// Replaces a model's parameters by those of store_parameter and its buffers by those of copy_tensor. Call it for inner
/// modules first and with one mesh; it leaves what an earlier call of fully_shard or replicate has placed, and a tensor
/// that modules of several calls share stays shared. Make optimizers afterwards. Pass inputs and labels through
/// local_batch, from each rank's own samples. Collective over the whole mesh. Throws ValueError for a parameter that
/// has a gradient already, and NotImplementedError for a tensor that cannot be replaced (ModuleTree::why_fixed).
///
/// Returns the unit of the parameters that no earlier call has placed. If the module's forward runs in the unit's
/// `call`, they are gathered in one message; otherwise every operator gathers the parameters that it needs.
ParameterUnitPtr fully_shard(const ModuleTreePtr& module, const MeshPtr& data, const FullyShardOptions& options = {});
ParameterUnitPtr fully_shard(torch::nn::Module& module, const MeshPtr& data, const FullyShardOptions& options = {});
/// Like fully_shard, with a copy of every parameter on each rank. The returned unit reduces gradients (unit_reducer.h)
/// and gathers nothing.
ParameterUnitPtr replicate(const ModuleTreePtr& module, const MeshPtr& data, const GradientSyncOptions& gradients = {});
ParameterUnitPtr replicate(torch::nn::Module& module, const MeshPtr& data, const GradientSyncOptions& gradients = {});

/// Returns the dim along which store_parameter shards such a tensor, or nullopt. `is_cut` says per dim whether it is
/// sharded already. Not collective.
std::optional<int64_t> storage_dim(at::IntArrayRef shape, const std::vector<bool>& is_cut, int64_t ranks,
                                   int64_t min_numel, int64_t unit_rows = 1);
std::optional<int64_t> storage_dim(const ShardSpec& spec, int64_t ranks, int64_t min_numel, int64_t unit_rows = 1);

/// Returns block sizes that differ by at most one unit of `unit_rows` rows; the longer blocks go to the ranks that hold
/// the fewest bytes. All blocks begin at multiples of `unit_rows`. `held` has the bytes per rank; the new blocks' bytes
/// are added to it. Not collective.
std::vector<int64_t> balanced_shard_sizes(int64_t rows, int64_t row_bytes, std::vector<int64_t>& held,
                                          int64_t unit_rows = 1);

}  // namespace moonhalo
