// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/registered_mesh.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/sharding/sharding_context.h"

namespace moonhalo {

void set_mesh(const MeshPtr& mesh) {
  MeshPtr& current = sharding_context->registered.mesh;
  TORCH_CHECK_VALUE(mesh == nullptr || current == nullptr || mesh == current,
                    "set_mesh: another mesh is registered\n  have  ", current->to_string(),
                    "\n  fix   set_mesh(nullptr) first, or pass ", mesh->to_string(), " as an argument");
  current = mesh;
  if (mesh == nullptr || sharding_context->registered.is_removed_at_exit) return;
  sharding_context->registered.is_removed_at_exit = true;
  at_rank_exit([] { sharding_context->registered = {}; });
}

MeshPtr get_mesh(const std::vector<std::string>& dims) {
  const MeshPtr& current = sharding_context->registered.mesh;
  TORCH_CHECK_VALUE(current != nullptr,
                    "get_mesh: no mesh is registered\n  fix   set_mesh(mesh) at the beginning of the run");
  return dims.empty() ? current : current->slice(dims);
}

bool has_mesh() { return sharding_context->registered.mesh != nullptr; }

}  // namespace moonhalo
