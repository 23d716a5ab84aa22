// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/given_tensors.h"

#include <utility>

#include "moonhalo/engine/dispatch/dispatch_context.h"

namespace moonhalo {

void GivenTensors::keep(at::ArrayRef<c10::IValue> arguments) {
  arguments_ = arguments.vec();
  before_ = std::exchange(dispatch_context->given, this);
}

void GivenTensors::forget() const { dispatch_context->given = before_; }

at::Tensor GivenTensors::of(Arg arg, int item) {
  const GivenTensors* const given = dispatch_context->given;
  if (given == nullptr || !arg) return {};
  const c10::IValue& value = given->arguments_.at(arg.index);
  if (item < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  const auto items = value.toOptionalTensorVector();
  return items.at(item).value_or(at::Tensor());
}

}  // namespace moonhalo
