// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/operator_call.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

namespace moonhalo {
namespace {

using c10::IValue;

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

at::Tensor meta_of_argument(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return tensor;  // such a call is not measured
  at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  copy_wrapped_number(tensor, meta);
  return meta;
}

// Numbers from 0.25 to 0.75 in no order: kernels that branch by values take longer for them than for equal ones. So
// many that a processor does not learn the branches.
const at::Tensor& drawn_numbers() {
  static const at::Tensor numbers = [] {
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> distribution(0.25, 0.75);
    at::Tensor drawn = at::empty({1 << 16}, at::kFloat);
    std::generate_n(drawn.mutable_data_ptr<float>(), drawn.numel(), [&] { return distribution(generator); });
    return drawn;
  }();
  return numbers;
}

at::Tensor filled_argument(const at::Tensor& meta) {
  TORCH_CHECK_NOT_IMPLEMENTED(meta.layout() == at::kStrided, "operators on ", meta.layout(),
                              " tensors are not measured");
  at::Tensor memory = at::empty({elements_of_memory(meta)}, meta.options().device(at::kCPU));
  at::Tensor tensor = memory.as_strided(meta.sizes(), meta.strides());
  fill_with_numbers(meta.dim() == 0 ? tensor : memory);
  copy_wrapped_number(meta, tensor);
  return tensor;
}

// Each result of a pooling has another index. A kernel that adds all of them to one place takes longer. The form that
// is given its result has that behind the indices.
void spread_indices(const std::vector<IValue>& arguments) {
  constexpr size_t kIndices = 7;
  const at::Tensor x = arguments.at(1).toTensor(), indices = arguments.at(kIndices).toTensor();
  indices.copy_(at::arange(indices.numel(), indices.options()).remainder_(x.size(-2) * x.size(-1)).view_as(indices));
}

}  // namespace

std::vector<IValue> with_tensors(const std::vector<IValue>& values, const ChangeTensor& change) {
  std::vector<IValue> all;
  all.reserve(values.size());
  for (const IValue& value : values) all.push_back(with_changed(value, change));
  return all;
}

void look_at_tensors(const std::vector<IValue>& values, const std::function<void(const at::Tensor&)>& look) {
  with_tensors(values, [&](const at::Tensor& tensor) {
    look(tensor);
    return tensor;
  });
}

int64_t elements_of_memory(const at::Tensor& tensor) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), 1));
}

void copy_wrapped_number(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

void fill_with_numbers(const at::Tensor& tensor) {
  if (!at::isFloatingType(tensor.scalar_type()) && !at::isComplexType(tensor.scalar_type())) {
    tensor.fill_(tensor.dim() == 0 ? 1 : 0);
    return;
  }
  const at::Tensor& numbers = drawn_numbers();
  const at::Tensor memory = tensor.as_strided({elements_of_memory(tensor)}, {1});
  for (int64_t begin = 0; begin < memory.numel(); begin += numbers.numel()) {
    const int64_t count = std::min(numbers.numel(), memory.numel() - begin);
    memory.narrow(0, begin, count).copy_(numbers.narrow(0, 0, count));
  }
}

std::vector<IValue> without_memory(const std::vector<IValue>& arguments) {
  return with_tensors(arguments, meta_of_argument);
}
std::vector<IValue> with_memory(const OperatorCall& call) {
  std::vector<IValue> arguments = with_tensors(call.arguments, filled_argument);
  if (call.name.name == "aten::max_pool2d_with_indices_backward") spread_indices(arguments);
  return arguments;
}

int64_t bytes_of_tensors(const std::vector<IValue>& values) {
  int64_t bytes = 0;
  look_at_tensors(values, [&](const at::Tensor& tensor) {
    if (tensor.layout() == at::kStrided)
      bytes += elements_of_memory(tensor) * static_cast<int64_t>(tensor.element_size());
  });
  return bytes;
}

std::vector<IValue> repeat_call(const OperatorCall& call, const std::vector<IValue>& arguments) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow(call.name.name.c_str(), call.name.overload_name.c_str());
  torch::jit::Stack stack = arguments;
  op.callBoxed(stack);
  return stack;
}

}  // namespace moonhalo
