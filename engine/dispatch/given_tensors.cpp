// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/given_tensors.h"

#include <utility>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

const RankLocal<const GivenTensors*> given_of_rank;

}  // namespace

void GivenTensors::keep(at::ArrayRef<c10::IValue> arguments) {
  arguments_ = arguments.vec();
  before_ = std::exchange(*given_of_rank, this);
}

void GivenTensors::forget() const { *given_of_rank = before_; }

at::Tensor GivenTensors::of(Arg arg, int item) {
  if (*given_of_rank == nullptr || !arg) return {};
  const c10::IValue& value = (*given_of_rank)->arguments_.at(arg.index);
  if (item < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  const auto items = value.toOptionalTensorVector();
  return items.at(item).value_or(at::Tensor());
}

}  // namespace moonhalo
