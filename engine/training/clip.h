// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The norm of the gradients of `parameters` together, of order `norm_type` (infinity: the largest magnitude): plain,
/// 0-dim, in float32 or, where a gradient has it, float64. Sums that are still to be made are made first
/// (finish_grad_sync); then each rank sums up its own blocks and one number is reduced, whatever cuts the gradients
/// (data, tensor, domain), on one mesh or on slices of one. Every element counts once, however many ranks hold it.
/// Collective over the mesh; every rank gives the same parameters. Zero without gradients. ValueError for gradients on
/// meshes that are no slices of one, and for norm_type <= 0.
///
/// Of parameters of a pipeline (Pipeline::hold) the norm is that of all its stages: every rank gives those of its own,
/// and shared ones count once. `stages`: of a pipeline of which this rank may have no parameters (Pipeline::group).
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2,
                     const CommunicatorPtr& stages = nullptr);

/// Scales the gradients in place so that their joint norm is at most `max_norm`, and returns grad_norm as it was
/// before. ValueError, before anything is changed, where that is not finite and `error_if_nonfinite` is set.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2,
                          bool error_if_nonfinite = false, const CommunicatorPtr& stages = nullptr);

/// Multiplies the gradients by `factor`, in place. ValueError while they still wait to be summed over the ranks.
void scale_grads(const std::vector<at::Tensor>& parameters, double factor);

}  // namespace moonhalo
