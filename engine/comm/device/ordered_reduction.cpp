// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/ordered_reduction.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>

#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/sum_tree.h"

namespace moonhalo {
namespace {

at::Tensor combined(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  const bool flags = a.scalar_type() == at::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return flags ? at::logical_or(a, b) : at::add(a, b);
    case ReduceOp::kMax:
      return flags ? at::logical_or(a, b) : at::maximum(a, b);
    case ReduceOp::kMin:
      return flags ? at::logical_and(a, b) : at::minimum(a, b);
    case ReduceOp::kProduct:
      return flags ? at::logical_and(a, b) : at::mul(a, b);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown ReduceOp ", static_cast<int>(op));
}

// Reduces the ranks that 2^level leaves of the tree have.
at::Tensor reduced_leaves(ReduceOp op, const SumTree& tree, const std::vector<at::Tensor>& parts, int leaf, int level) {
  const int first = tree.first_rank(leaf), end = tree.first_rank(leaf + (1 << level));
  const auto part = [&](int rank) {
    const at::ScalarType dtype = parts[rank].scalar_type();
    return partial_dtype(dtype) == dtype ? parts[rank] : parts[rank].to(partial_dtype(dtype));
  };
  if (end - first == 1) return part(first);
  if (level == 0) return combined(op, part(first), part(first + 1));
  const int half = leaf + (1 << (level - 1));
  const at::Tensor left = reduced_leaves(op, tree, parts, leaf, level - 1);
  return combined(op, left, reduced_leaves(op, tree, parts, half, level - 1));
}

}  // namespace

at::Tensor reduced_in_order(ReduceOp op, const std::vector<at::Tensor>& parts) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const SumTree tree(static_cast<int>(parts.size()));
  at::Tensor result = reduced_leaves(op, tree, parts, 0, tree.levels());
  // By a tensor: devices turn the division by a number into a product, which rounds otherwise.
  if (op == ReduceOp::kAvg)
    result = at::div(result, at::full({1}, static_cast<double>(parts.size()), result.options()));
  return result.to(parts[0].scalar_type());
}

}  // namespace moonhalo
