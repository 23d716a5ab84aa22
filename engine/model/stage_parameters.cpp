// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/stage_parameters.h"

#include "moonhalo/engine/model/model_context.h"

namespace moonhalo {

void note_stage_parameter(const at::Tensor& parameter, const CommunicatorPtr& group, bool counts) {
  auto& notes = model_context->stage_parameters;
  std::erase_if(notes, [](const auto& entry) { return entry.second.parameter.expired(); });
  notes.insert_or_assign(parameter.unsafeGetTensorImpl(),
                         ModelContext::StageNote{ModelContext::WeakTensor(parameter.getIntrusivePtr()), group, counts});
}

std::optional<StageParameter> stage_parameter(const at::Tensor& parameter) {
  const auto& notes = model_context->stage_parameters;
  const auto found = notes.find(parameter.unsafeGetTensorImpl());
  if (found == notes.end() || found->second.parameter.expired()) return std::nullopt;
  CommunicatorPtr group = found->second.group.lock();
  if (!group) return std::nullopt;
  return StageParameter{std::move(group), found->second.counts};
}

}  // namespace moonhalo
