// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/tensor_creation.h"

#include <c10/util/Exception.h>

namespace moonhalo {

at::Tensor gradient_of(const at::Tensor& grad, const SpecPtr& to) {
  return is_shard_tensor(grad) ? redistribute(grad, to) : from_local(grad, replicated(to->mesh(), grad.sizes()));
}

void check_placements(const MeshPtr& mesh, const std::vector<Placement>& placements, const char* what) {
  TORCH_CHECK_VALUE(mesh != nullptr, what, ": no mesh given");
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh->ndim(), what, ": ", placements.size(),
                    " placements for ", mesh->to_string(), ", which has ", mesh->ndim(), " dimensions",
                    "\n  fix   give one placement per mesh dimension");
}

std::string placed_text(const MeshPtr& mesh, const std::vector<Placement>& placements) {
  std::string text = mesh == nullptr ? "no mesh" : mesh->to_string();
  for (size_t i = 0; i < placements.size(); ++i) text += (i == 0 ? ": " : ", ") + placements[i].to_string();
  return text;
}

}  // namespace moonhalo
