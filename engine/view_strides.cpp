// SPDX-License-Identifier: Apache-2.0
#include "engine/view_strides.h"

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "engine/shard_tensor.h"

namespace moonhalo {
namespace {

constexpr size_t kMaxKnown = 8;

using Results = ViewStrides::Results;

at::Tensor without_memory(const at::Tensor& tensor) {
  return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

void add(Results& results, const at::Tensor& tensor) {
  results.emplace_back();
  if (tensor.defined() && !tensor.is_contiguous()) results.back().emplace(tensor.strides());
}

// What the operator makes of a tensor of these strides.
Results viewed(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) {
  torch::jit::Stack call(stack.end() - static_cast<std::ptrdiff_t>(arguments), stack.end());
  for (c10::IValue& value : call) {
    if (value.isTensor() && value.toTensor().defined()) value = without_memory(value.toTensor());
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.callBoxed(call);
  Results results;
  for (const c10::IValue& value : call) {
    if (value.isTensor()) add(results, value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& item : value.toTensorVector()) add(results, item);
  }
  return results;
}

Results find(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) {
  const std::string& name = op.operator_name().name;
  const c10::IValue* given = &stack[stack.size() - arguments];
  const at::Tensor& base = given[0].toTensor();
  if (name == "aten::as_strided") {
    TORCH_CHECK_NOT_IMPLEMENTED(base.is_contiguous(), "as_strided: the rows of this view of a ShardTensor do not lie one behind ",
                                "the other\n  have  ", spec(base)->to_string(), ", strides ", base.strides(),
                                "\n  fix   clone() it first, or use view, slice, select, transpose, expand or unfold");
    return {at::DimVector(given[2].toIntVector())};
  }
  // What one plain tensor could not view at all is a copy here.
  const bool regroups = name == "aten::view" || name == "aten::_unsafe_view";
  if (regroups && given[1].isIntList()) {
    const auto shape = at::infer_size(given[1].toIntVector(), base.numel());
    if (!at::detail::computeStride(base.sizes(), base.strides(), shape)) return {};
  }
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return {};
  return viewed(op, stack, arguments);
}

std::shared_ptr<const Results> unless_row_major(Results results) {
  const bool any = std::any_of(results.begin(), results.end(), [](const auto& strides) { return strides.has_value(); });
  return any ? std::make_shared<const Results>(std::move(results)) : nullptr;
}

}  // namespace

std::shared_ptr<const Results> ViewStrides::of(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) {
  const c10::IValue& first = stack[stack.size() - arguments];
  if (!first.isTensor() || !is_shard_tensor(first.toTensor())) return nullptr;
  const at::Tensor& base = first.toTensor();
  if (base.is_contiguous()) {
    if (!of_row_major_) of_row_major_ = unless_row_major(find(op, stack, arguments));
    return *of_row_major_;
  }
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return base.strides() == k.given; });
  if (found != known_.end()) return found->results;
  if (known_.size() == kMaxKnown) known_.clear();
  known_.push_back({at::DimVector(base.strides()), unless_row_major(find(op, stack, arguments))});
  return known_.back().results;
}

void ViewStrides::give(const Results& strides, const torch::jit::Stack& stack, size_t base) {
  size_t next = 0;
  const auto one = [&](const at::Tensor& result) {
    const auto& own = strides[next++];
    if (!own || !is_shard_tensor(result)) return;
    TORCH_INTERNAL_ASSERT(own->size() == static_cast<size_t>(result.dim()), "strides ", at::IntArrayRef(*own), " for ",
                          spec(result)->to_string());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), *own);
  };
  for (size_t r = base; r < stack.size(); ++r) {
    if (stack[r].isTensor()) one(stack[r].toTensor());
    if (!stack[r].isTensorList()) continue;
    for (const at::Tensor& item : stack[r].toTensorVector()) one(item);
  }
}

}  // namespace moonhalo
