// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moonhalo {

/// Remembers that a module trains this plain leaf: every rank has a copy of one parameter.
void note_parameter(const at::Tensor& leaf);
bool is_noted_parameter(const at::Tensor& leaf);

/// True if such a parameter is among the plain leaves that a plain tensor was computed from.
bool computed_from_parameters(const at::Tensor& tensor);

/// Returns `made`, which from_local has made of this rank's own block. Where the block was computed from plain
/// parameters (note_parameter), each rank has an addend of their gradients: from now on backward sums it over the mesh
/// dims that cut or sum `made`, on its way into the parameter. Other leaves that it was computed from are this rank's
/// own data and keep their gradients (check_no_own_data). No communication before backward, except at the first use
/// of two meshes. ValueError where what was computed from them also meets ShardTensors as if it were replicated, or
/// has other addends on another mesh.
at::Tensor sum_gradients_in_front(const at::Tensor& made);

/// ValueError if one of these leaves was taken for this rank's own data by sum_gradients_in_front: no rank sums
/// its gradients over all.
void check_no_own_data(const std::vector<at::Tensor>& parameters);

/// For gradient_hooks: ValueError if `tensor`, plain, which meets ShardTensors as if it were replicated, was computed
/// together with a block of sum_gradients_in_front.
void check_not_in_front(const at::Tensor& tensor);

}  // namespace moonhalo
