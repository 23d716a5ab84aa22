// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/pipeline/pipeline_groups.h"

#include <string>
#include <vector>

#include "moonhalo/engine/comm/fake/fake_subgroup.h"

namespace moonhalo {

CommunicatorPtr group_of(Communicator& group, const std::set<int64_t>& members) {
  const auto mine = members.find(group.rank());
  const bool member = mine != members.end();
  if (!group.is_fake()) {
    CommunicatorPtr part = group.split(member ? 0 : 1, group.rank());
    return member ? part : nullptr;
  }
  if (!member) return nullptr;
  return make_fake_subgroup(group, {members.begin(), members.end()});
}

MeshPtr make_slice(DeviceMesh& mesh, int64_t pipeline_dim) {
  std::vector<std::string> others = mesh.names();
  others.erase(others.begin() + pipeline_dim);
  if (!others.empty()) return mesh.slice(others);
  const auto alone = mesh.group().is_fake() ? make_fake_subgroup(mesh.group(), {mesh.group().rank()})
                                            : mesh.group().split(static_cast<int>(mesh.rank()), 0);
  return init_device_mesh(*alone, mesh.device_type(), {1}, {"stage"});
}

}  // namespace moonhalo
