// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Registers the mesh of the run for this rank, so that modules find it (get_mesh). Null removes it; so does the end of
/// the rank. Not collective; every rank registers its own. Throws ValueError if another mesh is registered, because
/// modules may have taken their slices of that one. Lua scripts have a registry of their own (`mh.set_mesh`).
void set_mesh(const MeshPtr& mesh);
/// Returns the registered mesh, or its slice along the named dims: get_mesh({"data", "domain"}). Collective over the
/// mesh at the first call with several names, as DeviceMesh::slice. Throws ValueError if no mesh is registered.
MeshPtr get_mesh(const std::vector<std::string>& dims = {});
/// True if a mesh is registered, for modules that also run on one rank. Not collective.
bool has_mesh();

}  // namespace moonhalo
