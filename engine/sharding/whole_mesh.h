// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Says that along a dim of `mesh` ranks have other stages of a model (Pipeline), which have no tensors in common.
/// Collective over the mesh that `mesh` is a slice of (or is).
void note_stages(const MeshPtr& mesh, int64_t mesh_dim);

/// The mesh on which parameters and batches of a slice live: the whole of which it is one, less the dims along which
/// other ranks have other stages, unless the slice has such a dim itself.
MeshPtr whole_mesh(const MeshPtr& slice);

}  // namespace moonhalo
