// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/training/parameter_unit.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace moonhalo {

/// Makes one parameter of fully_shard: a leaf of the mesh that `data` is a slice of (or is), with the same
/// requires_grad, kept in blocks over the last dim of `data` and copied over the others. What cuts it already (tensor
/// parallelism) stays. The blocks are rows of dim 0, or of the longest dim that nothing cuts where dim 0 is cut or has
/// fewer rows than there are ranks. Without such a dim, or with few elements, the parameter is copied. Rows are whole,
/// so no block is padded; those left over, or units of `unit_rows`, go to the ranks that hold least of all parameters
/// placed so far, or, without `level`, to the first: stages of a pipeline that share a parameter cut it alike.
///
/// Where copies differ, those at the first place of the dims of `data` count. A tensor that this mesh dim cuts already
/// is returned as it is. Collective over the whole mesh. `name` is for errors: ValueError for a tensor of another mesh.
at::Tensor store_parameter(const at::Tensor& tensor, const MeshPtr& data, const FullyShardOptions& options,
                           const std::string& name);

/// Makes a parameter or buffer of replicate, or a buffer of fully_shard: the same with a copy on all ranks of
/// `data`.
at::Tensor copy_tensor(const at::Tensor& tensor, const MeshPtr& data, const std::string& name);

/// Puts store_parameter's and, for buffers, copy_tensor's tensors into the place of a model's. Call it bottom up with
/// one mesh; what an earlier call has placed stays. Make optimizers afterwards, and give the model inputs and labels as
/// local_batch makes them of each rank's own samples. Collective over the whole mesh. ValueError for a parameter that
/// has a gradient already.
///
/// Returns the unit of the parameters that no earlier call has placed. Its `call` around the module's forward gathers
/// them in one message; without it every operator gathers what it needs.
ParameterUnitPtr fully_shard(torch::nn::Module& module, const MeshPtr& data, const FullyShardOptions& options = {});
/// Like fully_shard, with copies of all parameters. The unit sums gradients (unit_reducer.h); there is nothing to
/// gather.
ParameterUnitPtr replicate(torch::nn::Module& module, const MeshPtr& data);

/// The dim that a tensor's blocks are rows of, if any: see store_parameter. `is_cut`: by dim.
std::optional<int64_t> storage_dim(at::IntArrayRef shape, const std::vector<bool>& is_cut, int64_t ranks,
                                   int64_t min_numel, int64_t unit_rows = 1);
std::optional<int64_t> storage_dim(const ShardSpec& spec, int64_t ranks, int64_t min_numel, int64_t unit_rows = 1);

/// `rows` in blocks that differ by at most one unit of rows; the longer ones go to the ranks that hold least. All
/// blocks begin at multiples of `unit_rows`. `held`: bytes by rank, to which these are added.
std::vector<int64_t> level_sizes(int64_t rows, int64_t row_bytes, std::vector<int64_t>& held, int64_t unit_rows = 1);

}  // namespace moonhalo
