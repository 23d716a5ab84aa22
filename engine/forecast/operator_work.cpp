// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/operator_work.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace moonhalo {
namespace {

const std::map<std::string_view, WorkKind>& counted_operators() {
  static const std::map<std::string_view, WorkKind> all = {
      {"aten::convolution", WorkKind::kConvolution},
      {"aten::convolution_backward", WorkKind::kConvolution},
      {"aten::mm", WorkKind::kProduct},
      {"aten::bmm", WorkKind::kProduct},
      {"aten::addmm", WorkKind::kProduct},
      {"aten::baddbmm", WorkKind::kProduct},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", WorkKind::kAttention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", WorkKind::kAttention},
  };
  return all;
}

bool gives_views(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

constexpr std::string_view kMakeMemory[] = {"aten::empty",
                                            "aten::empty_strided",
                                            "aten::empty_like",
                                            "aten::new_empty",
                                            "aten::resize_",
                                            "aten::new_empty_strided",
                                            "aten::resize_as_",
                                            "aten::set_",
                                            "aten::detach",
                                            "aten::item",
                                            "aten::_local_scalar_dense"};

int64_t bytes_shown(const at::Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) != 0 || tensor.size(d) == 0) elements *= tensor.size(d);
  }
  return elements * static_cast<int64_t>(tensor.element_size());
}

std::string dtype_text(at::ScalarType dtype) {
  const char kind = c10::isComplexType(dtype) ? 'c' : c10::isFloatingType(dtype) ? 'f' : dtype == at::kBool ? 'b' : 'i';
  return kind + std::to_string(8 * c10::elementSize(dtype)) + (dtype == at::kBFloat16 ? "b" : "");
}

}  // namespace

std::vector<at::Tensor> tensors_among(c10::ArrayRef<const c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(values.size());
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

WorkKind work_of(std::string_view name) {
  const auto found = counted_operators().find(name);
  return found == counted_operators().end() ? WorkKind::kOther : found->second;
}

bool overwrites_first(std::string_view name) {
  return name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_";
}

bool does_no_work(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  if (std::find(std::begin(kMakeMemory), std::end(kMakeMemory), name) != std::end(kMakeMemory)) return true;
  const auto schema = call.operator_schema();
  return schema && gives_views(*schema);
}

OperatorMemory memory_of(const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out) {
  OperatorMemory memory;
  std::unordered_map<const void*, int64_t> storages;
  for (const auto* list : {&in, &out}) {
    for (const at::Tensor& tensor : *list) {
      const int64_t bytes = bytes_shown(tensor);
      memory.bytes += bytes;
      const void* storage = tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
      int64_t& held = storages[storage];
      held = std::max(held, bytes);
    }
  }
  for (const auto& [storage, bytes] : storages) memory.working_set += bytes;
  return memory;
}

std::string shapes_key(const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out) {
  std::string key;
  for (const auto* list : {&in, &out}) {
    if (list == &out) key += key.empty() ? ">" : " >";
    for (const at::Tensor& tensor : *list) {
      key += (key.empty() ? "" : " ") + dtype_text(tensor.scalar_type()) + "[";
      for (int64_t d = 0; d < tensor.dim(); ++d) key += (d > 0 ? "," : "") + std::to_string(tensor.size(d));
      key += tensor.is_contiguous() ? "]" : "]t";
    }
  }
  return key;
}

}  // namespace moonhalo
