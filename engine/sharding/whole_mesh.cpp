// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/whole_mesh.h"

#include <algorithm>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/sharding_context.h"

namespace moonhalo {
namespace {

using Stages = ShardingContext::Stages;

bool has(const std::vector<int64_t>& dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

}  // namespace

void note_stages(const MeshPtr& mesh, int64_t mesh_dim) {
  const MeshPtr root = mesh->root();
  auto& noted = sharding_context->stages;
  std::erase_if(noted, [](const Stages& stages) { return stages.root.expired(); });
  auto found = std::find_if(noted.begin(), noted.end(), [&](const Stages& one) { return one.root.lock() == root; });
  if (found == noted.end()) found = noted.insert(found, Stages{root, {}, {}});
  const int64_t dim = mesh->root_dims()[mesh_dim];
  if (has(found->dims, dim)) return;
  found->dims.push_back(dim);
  std::vector<std::string> names;
  for (int64_t d = 0; d < root->ndim(); ++d) {
    if (!has(found->dims, d)) names.push_back(root->names()[d]);
  }
  found->rest = names.empty() ? nullptr : root->slice(names);  // which root owns
}

MeshPtr whole_mesh(const MeshPtr& slice) {
  MeshPtr root = slice->root();
  for (const Stages& stages : sharding_context->stages) {
    if (stages.root.lock() != root) continue;
    const std::vector<int64_t>& own = slice->root_dims();
    if (std::none_of(own.begin(), own.end(), [&](int64_t dim) { return has(stages.dims, dim); }))
      return stages.rest.lock();
  }
  return root;
}

}  // namespace moonhalo
