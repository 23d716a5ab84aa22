// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Lists of the ranks along `mesh_dims` (outermost first), one after another.
struct GatheredLists {
  at::Tensor all;     ///< [total, ...], the same on every one of these ranks
  int64_t begin = 0;  ///< where this rank's own list starts in it
};

/// Gathers `mine` [count, ...], whose count is known to its rank alone. Collective over the mesh.
GatheredLists all_gather_lists(const at::Tensor& mine, const MeshPtr& mesh, const std::vector<int64_t>& mesh_dims);

}  // namespace moonhalo
