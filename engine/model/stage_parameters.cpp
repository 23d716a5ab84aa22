// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/stage_parameters.h"

#include <unordered_map>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl>;
struct Note {
  WeakImpl parameter;
  std::weak_ptr<Communicator> group;
  bool counts;
};
using Notes = std::unordered_map<const c10::TensorImpl*, Note>;
const RankLocal<Notes> notes;

}  // namespace

void note_stage_parameter(const at::Tensor& parameter, const CommunicatorPtr& group, bool counts) {
  std::erase_if(*notes, [](const auto& entry) { return entry.second.parameter.expired(); });
  notes->insert_or_assign(parameter.unsafeGetTensorImpl(), Note{WeakImpl(parameter.getIntrusivePtr()), group, counts});
}

std::optional<StageParameter> stage_parameter(const at::Tensor& parameter) {
  const auto found = notes->find(parameter.unsafeGetTensorImpl());
  if (found == notes->end() || found->second.parameter.expired()) return std::nullopt;
  CommunicatorPtr group = found->second.group.lock();
  if (!group) return std::nullopt;
  return StageParameter{std::move(group), found->second.counts};
}

}  // namespace moonhalo
