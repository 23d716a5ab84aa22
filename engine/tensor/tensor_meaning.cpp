// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/tensor_meaning.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/tensor/tensor_context.h"

namespace moonhalo {

struct TensorMeanings {
  // While an entry lives, no other tensor has its address.
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    TensorMeaning meaning;
  };
  std::unordered_map<const c10::TensorImpl*, Entry> by_object;
  size_t sweep_at = 1024;
};

const TensorMeaning& meaning_of(const at::Tensor& tensor) {
  static constexpr TensorMeaning kNone;
  const auto& by_object = tensor_context->meanings->by_object;
  const auto found = by_object.find(tensor.unsafeGetTensorImpl());
  return found == by_object.end() ? kNone : found->second.meaning;
}

TensorMeaning& meaning_to_change(const at::Tensor& tensor) {
  auto& [by_object, sweep_at] = *tensor_context->meanings;
  if (by_object.size() >= sweep_at) {
    std::erase_if(by_object, [](const auto& entry) { return entry.second.tensor.expired(); });
    sweep_at = std::max<size_t>(1024, 2 * by_object.size());
  }
  TensorMeanings::Entry entry{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), {}};
  return by_object.try_emplace(tensor.unsafeGetTensorImpl(), std::move(entry)).first->second.meaning;
}

void note_parameters(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) meaning_to_change(parameter).is_parameter = true;
}

}  // namespace moonhalo
