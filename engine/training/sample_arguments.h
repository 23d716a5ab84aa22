// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// A tensor that a data parallel module is called with: rows that are this rank's own samples, or the same for all
/// samples, as the program has said (tensor_meaning.h); else it counts as samples.
struct SampleArgument {
  at::Tensor tensor;
  std::string name;  ///< "argument 2"
};

/// The same tensor for all samples, on the mesh that `data` is a slice of (or is): copies on its dims. Differentiable.
at::Tensor constant_of_samples(const at::Tensor& tensor, const MeshPtr& data);

/// Looks for arguments that were meant otherwise: ValueError on every rank where tensors that nothing is said of are
/// the same all along `data`, or have other rows than the first of them, and where constants differ. `who` begins the
/// message. Values never decide which of the two an argument is. One small message for each rank, not counted. Returns
/// whether all were seen: not those without rows. Collective over the mesh that `data` is a slice of.
bool check_sample_arguments(const std::vector<SampleArgument>& arguments, const MeshPtr& data, const std::string& who);

}  // namespace moonhalo
