// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/operator_call.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <optional>

namespace moonhalo {
namespace {

using c10::IValue;
using ChangeTensor = std::function<at::Tensor(const at::Tensor&)>;

// The value with changed tensors. Lists are new ones, since lists are shared.
IValue with_changed(const IValue& value, const ChangeTensor& change) {
  const auto one = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(one(tensor));
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
    list.push_back(tensor ? std::optional(one(*tensor)) : std::nullopt);
  return list;
}

std::vector<IValue> with_changed(const std::vector<IValue>& values, const ChangeTensor& change) {
  std::vector<IValue> all;
  all.reserve(values.size());
  for (const IValue& value : values) all.push_back(with_changed(value, change));
  return all;
}

// Elements of the memory that a tensor with these strides looks at.
int64_t span_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), 1));
}

void copy_wrapped(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

at::Tensor meta_of_argument(const at::Tensor& tensor) {
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  copy_wrapped(tensor, meta);
  return meta;
}

at::Tensor filled_argument(const at::Tensor& meta) {
  at::Tensor memory = at::empty({span_of(meta)}, meta.options().device(at::kCPU));
  if (at::isFloatingType(meta.scalar_type()) || at::isComplexType(meta.scalar_type())) {
    memory.fill_(0.5);
  } else {
    memory.zero_();
  }
  at::Tensor tensor = memory.as_strided(meta.sizes(), meta.strides());
  copy_wrapped(meta, tensor);
  return tensor;
}

}  // namespace

std::vector<IValue> without_memory(const std::vector<IValue>& arguments) {
  return with_changed(arguments, meta_of_argument);
}
std::vector<IValue> with_memory(const std::vector<IValue>& arguments) {
  return with_changed(arguments, filled_argument);
}

int64_t memory_of_arguments(const std::vector<IValue>& arguments) {
  int64_t bytes = 0;
  with_changed(arguments, [&](const at::Tensor& tensor) {
    bytes += span_of(tensor) * static_cast<int64_t>(tensor.element_size());
    return tensor;
  });
  return bytes;
}

void repeat_call(const OperatorCall& call, const std::vector<IValue>& arguments) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(call.name.name.c_str(), call.name.overload_name.c_str());
  torch::jit::Stack stack = arguments;
  op.callBoxed(stack);
}

}  // namespace moonhalo
