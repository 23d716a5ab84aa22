// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/foreign_call.h"

#include <ATen/core/Tensor.h>

#include "moonhalo/engine/tensor/memory_order.h"

namespace moonhalo {
namespace {

at::Tensor tensor_of(const c10::IValue& value, int item) {
  if (item < 0) return value.toTensor();
  if (value.isTensorList()) return value.toTensorVector().at(item);
  return value.toOptionalTensorVector().at(item).value_or(at::Tensor());
}

// The list of the stack is the call's own: moving the inputs made it.
void put(c10::IValue& value, int item, const at::Tensor& tensor) {
  if (item < 0) {
    value = tensor;
  } else if (value.isTensorList()) {
    value.toTensorList().set(item, tensor);
  } else {
    value.toOptionalTensorList().set(item, tensor);
  }
}

}  // namespace

ForeignCall::ForeignCall(const Decision& decision, const Stack& stack, size_t base) : moves_(decision.moves) {
  for (const Decision::Move& move : moves_) {
    const at::Tensor tensor = move.given ? tensor_of(stack[base + move.arg], move.item) : at::Tensor();
    strides_.emplace_back();
    if (tensor.defined() && is_shard_tensor(tensor)) strides_.back().emplace(tensor.strides());
  }
}

void ForeignCall::lay(Stack& stack, size_t base) {
  for (size_t s = 0; s < moves_.size(); ++s) {
    if (!strides_[s]) continue;
    c10::IValue& value = stack[base + moves_[s].arg];
    const at::Tensor block = tensor_of(value, moves_[s].item), laid = laid_as(block, *strides_[s]);
    if (laid.is_same(block)) continue;
    if (moves_[s].written) written_.emplace_back(block, laid);
    put(value, moves_[s].item, laid);
  }
}

void ForeignCall::put_back() const {
  for (const auto& [block, laid] : written_) block.copy_(laid);
}

}  // namespace moonhalo
