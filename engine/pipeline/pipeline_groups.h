// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// The ranks `members` of `group`, in ascending order, as a group; null on the others. Collective over `group`.
CommunicatorPtr group_of(Communicator& group, const std::set<int64_t>& members);

/// The dims of `mesh` but that of the pipeline; a mesh of this rank alone where there are no others. Collective over
/// `mesh`.
MeshPtr make_slice(DeviceMesh& mesh, int64_t pipeline_dim);

}  // namespace moonhalo
