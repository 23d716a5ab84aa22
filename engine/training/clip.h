// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Returns the joint norm of the gradients of `parameters`, of order `norm_type` (infinity: the largest magnitude), as
/// a plain 0-dim tensor of dtype float32, or float64 if a gradient has it. Pending reductions of gradients are done
/// first (finish_grad_sync). Then each rank reduces its own blocks, and one number is reduced over the ranks. The
/// gradients may be sharded in any way, on one mesh or on slices of one. Each element counts once, however many ranks
/// hold it. Returns zero if there are no gradients. Collective over the mesh; every rank passes the same parameters.
/// Throws ValueError for gradients on meshes that are not slices of one mesh, and for norm_type <= 0.
///
/// For parameters of a pipeline (Pipeline::hold) it returns the norm over all stages: every rank passes the parameters
/// of its own stages, and shared parameters count once. Pass `stages` (Pipeline::group) if this rank may have no
/// parameters.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2,
                     const CommunicatorPtr& stages = nullptr);

/// Scales the gradients in place so that their joint norm is at most `max_norm`. Returns grad_norm before scaling.
/// Collective as grad_norm. Throws ValueError, before anything changes, if that norm is not finite and
/// `error_if_nonfinite` is set.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2,
                          bool error_if_nonfinite = false, const CommunicatorPtr& stages = nullptr);

/// Multiplies the gradients by `factor` in place. Throws ValueError if their reduction over the ranks is pending.
/// Not collective.
void scale_grads(const std::vector<at::Tensor>& parameters, double factor);

}  // namespace moonhalo
