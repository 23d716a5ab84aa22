// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/out_argument.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace moonhalo {
namespace {

std::vector<at::Tensor> results_of(const c10::IValue& value) {
  return value.isTensorList() ? value.toTensorVector() : std::vector{value.toTensor()};
}

}  // namespace

void write_result(const std::string& name, const at::Tensor& result, const at::Tensor& target, bool out) {
  if (!result.defined() || !target.defined()) return;
  TORCH_CHECK_TYPE(c10::canCast(result.scalar_type(), target.scalar_type()), name, ": a result of type ",
                   result.scalar_type(), " cannot be written to a tensor of type ", target.scalar_type(),
                   "\n  have  a result of shape ", shape_string(result.sizes()), "\n  fix   give a tensor of type ",
                   result.scalar_type());
  if (out && target.numel() == 0 && target.sizes() != result.sizes()) {
    if (ShardTensorImpl* impl = shard_impl(target)) {
      const at::Tensor made =
          is_shard_tensor(result) ? result : from_local(result, replicated(impl->spec()->mesh(), result.sizes()));
      const at::Tensor cast = made.to(target.scalar_type());
      impl->shallow_copy_from(cast.getIntrusivePtr());
      return;
    }
    target.resize_(result.sizes());
  }
  TORCH_CHECK_VALUE(target.sizes() == result.sizes(), name, ": the result has shape ", shape_string(result.sizes()),
                    ", the tensor that it is written to ", shape_string(target.sizes()), "\n  have  ",
                    out ? "an out= tensor of " : "a tensor of ", target.numel(), " elements\n  fix   ",
                    out ? "give an out= tensor of the result's shape, or an empty one"
                        : "use the operator that returns a new tensor");
  // Memory that was asked for without values holds any, others on each rank.
  if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) return;
  target.copy_(result);
}

void take_new_shape(ShardTensorImpl& impl) {
  if (impl.sizes() == at::IntArrayRef(impl.spec()->global_shape())) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor fresh =
      wrap(at::empty(impl.sizes(), impl.local().options()), replicated(impl.spec()->mesh(), impl.sizes()));
  impl.shallow_copy_from(fresh.getIntrusivePtr());
}

void run_functional(const OperatorFacts& facts, Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const size_t base = stack.size() - facts.arguments;
  std::vector<at::Tensor> targets;
  for (size_t i = 0; i < facts.arguments; ++i) {
    if (!facts.written[i]) continue;
    const std::vector<at::Tensor> tensors = results_of(stack[base + i]);
    for (const at::Tensor& target : tensors) {
      if (is_shard_tensor(target)) notice_new_shape(*shard_impl(target));
    }
    targets.insert(targets.end(), tensors.begin(), tensors.end());
  }
  Stack results;
  const auto& required = facts.functional->schema().arguments();
  for (size_t i = 0; i < required.size(); ++i) {
    if (facts.functional_from[i] >= 0) {
      results.push_back(stack[base + facts.functional_from[i]]);
    } else if (required[i].name() == "dtype") {  // a factory: how to make the tensor
      results.emplace_back(targets.at(0).scalar_type());
    } else if (required[i].name() == "device") {
      results.emplace_back(targets.at(0).device());
    } else {
      results.push_back(*required[i].default_value());
    }
  }
  facts.functional->callBoxed(results);
  std::vector<at::Tensor> made;
  for (const c10::IValue& value : results) {
    const std::vector<at::Tensor> tensors = results_of(value);
    made.insert(made.end(), tensors.begin(), tensors.end());
  }
  const std::string& name = facts.functional->operator_name().name;
  TORCH_CHECK_VALUE(made.size() == targets.size(), name, ": ", made.size(), " results for ", targets.size(),
                    " out= tensors\n  fix   give one tensor for each result");
  for (size_t i = 0; i < made.size(); ++i) write_result(name, made[i], targets[i], facts.gives_out);
  c10::SmallVector<c10::IValue, 2> returned;
  for (const int argument : facts.returns_argument) returned.push_back(stack[base + argument]);
  torch::jit::drop(stack, facts.arguments);
  stack.insert(stack.end(), returned.begin(), returned.end());
}

}  // namespace moonhalo
