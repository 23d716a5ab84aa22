// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/ops/support/moments.h"

namespace moonhalo {

// The rules of layer, group and batch norm share these.

/// A tensor in the dtype that sums are taken in; undefined stays undefined.
at::Tensor widen(const at::Tensor& tensor);

/// `values` [c], one per channel, shaped to broadcast against a tensor of `ndim` dims whose dim 1
/// are the channels.
at::Tensor per_channel(const at::Tensor& values, int64_t ndim);

/// output_mask of a backward operator: which gradients are required.
std::vector<bool> required_gradients(const OpCall& call);

/// Null where no gradient is required.
std::vector<SpecPtr> masked(const std::vector<bool>& mask, std::vector<SpecPtr> specs);

/// The operator itself on contiguous tensors (kernels that read raw memory rely on it; a block may
/// be a view).
void run_contiguous(LocalCall& call);

/// All dims of a tensor but one, or but the first `from`.
std::vector<int64_t> dims_but(int64_t ndim, int64_t kept);
std::vector<int64_t> dims_from(int64_t ndim, int64_t first);

}  // namespace moonhalo
