// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/DimVector.h>

#include <optional>
#include <vector>

#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {

/// The strides that the results of a call have on plain tensors, by result, lists flattened; nullopt where rows are
/// contiguous and for arguments that are given back. Empty if that is so for all.
using ResultStrides = std::vector<std::optional<at::DimVector>>;

/// contiguous() and reshape() ask a tensor for its strides to tell a view from a copy:
///
///     y = x:t() + 1                  columns are contiguous, as in x:t()
///     y:contiguous():mul_(2)         a plain tensor is copied, y stays; so must it here
///
/// LibTorch's kernels without data find them from global shapes and strides alone, so all ranks find the same;
/// where it has none (decompositions by LAPACK, transforms, nonzero) results count as row-major. `stack` ends with
/// the arguments; a plan that names the order of its results' dims has precedence. NotImplementedError for
/// as_strided of what is not row-major.
ResultStrides result_strides(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const OperatorFacts& facts,
                             const Plan& plan);
/// True if LibTorch cannot tell, and a plain result may have another memory order: kernels of LAPACK, transforms
/// and the like, and any that is given tensors which are not row-major. Dims of such a result are merged without a
/// copy on no rank or on all of them (view_tracking.h). `found`: what result_strides gave.
bool layout_is_unspecified(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const OperatorFacts& facts,
                           const ResultStrides& found);
/// A block of matrices that are stored row by row exactly if `in_rows`, as the whole tensor does
/// (OperatorFacts::reads_order): the block may be one matrix of a batch, or be gathered.
at::Tensor match_layout(const at::Tensor& block, bool in_rows);
/// All ranks see the same strides, and kernels made the blocks: a new block whose memory order is not that of its
/// tensor (by `strides`, at `index`) is laid so, or contiguous() would keep what is not. Not for views, whose block
/// is their base's memory.
void lay_as_declared(const ResultStrides& strides, size_t index, bool any_order, ShardTensorImpl& impl);
/// LibTorch multiplies strides of empty tensors up to 0, which would read as dims that were expanded, on this rank
/// alone. (A division keeps what its input expanded, here too.)
at::Tensor canonical_empty_strides(const at::Tensor& empty, const std::string& op);
/// After the call: `stack` ends with the results, from `base` on.
void declare_strides(const ResultStrides& strides, const torch::jit::Stack& stack, size_t base);

}  // namespace moonhalo
