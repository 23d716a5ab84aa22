// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/ordered_reduction.h"

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

}  // namespace

at::Tensor reduced_in_order(ReduceOp op, const std::vector<at::Tensor>& parts) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::ScalarType dtype = parts[0].scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto wide = [narrow](const at::Tensor& part) { return narrow ? part.to(at::kFloat) : part; };
  at::Tensor result = wide(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) result = combined(op, result, wide(parts[i]));
  // By a tensor: devices turn the division by a number into a product, which rounds otherwise.
  if (op == ReduceOp::kAvg)
    result = at::div(result, at::full({1}, static_cast<double>(parts.size()), result.options()));
  return narrow ? result.to(dtype) : result;
}

}  // namespace moonhalo
