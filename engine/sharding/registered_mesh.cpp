// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/registered_mesh.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

struct RegisteredMesh {
  MeshPtr mesh;
  bool is_removed_at_exit = false;
};
const RankLocal<RegisteredMesh> registered_mesh;

}  // namespace

void set_mesh(const MeshPtr& mesh) {
  MeshPtr& current = registered_mesh->mesh;
  TORCH_CHECK_VALUE(mesh == nullptr || current == nullptr || mesh == current,
                    "set_mesh: another mesh is registered\n  have  ", current->to_string(),
                    "\n  fix   set_mesh(nullptr) first, or pass ", mesh->to_string(), " as an argument");
  current = mesh;
  if (mesh == nullptr || registered_mesh->is_removed_at_exit) return;
  registered_mesh->is_removed_at_exit = true;
  at_rank_exit([] { *registered_mesh = {}; });
}

MeshPtr get_mesh(const std::vector<std::string>& dims) {
  const MeshPtr& current = registered_mesh->mesh;
  TORCH_CHECK_VALUE(current != nullptr,
                    "get_mesh: no mesh is registered\n  fix   set_mesh(mesh) at the beginning of the run");
  return dims.empty() ? current : current->slice(dims);
}

bool has_mesh() { return registered_mesh->mesh != nullptr; }

}  // namespace moonhalo
