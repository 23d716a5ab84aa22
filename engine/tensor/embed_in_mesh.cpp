// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/embed_in_mesh.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/graph_leaves.h"
#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"

namespace moonhalo {
namespace {

// The slice's layout on the mesh: its cuts and sums under their new numbers.
Layout widened(const ShardSpec& spec, const MeshPtr& mesh, const std::vector<int64_t>& dims) {
  Layout layout(mesh, spec.global_shape());
  const Layout& own = spec.layout();
  layout.cuts = own.cuts;
  for (Cut& cut : layout.cuts) {
    for (int64_t& m : cut.mesh_dims) m = dims[m];
  }
  for (size_t m = 0; m < dims.size(); ++m) {
    layout.partials[dims[m]] = own.partials[m];
    if ((own.stored >> m & 1) != 0) layout.stored |= uint64_t{1} << dims[m];
  }
  return layout;
}

// With the dims that others cut: their rows are asked for, in the mesh's order of dims.
at::Tensor embed_with_cuts(const at::Tensor& tensor, const MeshPtr& mesh, const Layout& layout,
                           const std::vector<Placement>& placements) {
  std::vector<Placement> all = intern(layout)->placements();
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (!placements[m].is_shard()) continue;
    const int64_t dim = placements[m].dim < 0 ? placements[m].dim + tensor.dim() : placements[m].dim;
    TORCH_CHECK_VALUE(dim >= 0 && dim < tensor.dim(), "lift: ", placements[m].to_string(), " is out of range\n  have  ",
                      spec(tensor)->to_string());
    const auto& inside = layout.cuts[dim].mesh_dims;
    TORCH_CHECK_NOT_IMPLEMENTED(std::all_of(inside.begin(), inside.end(), [&](int64_t own) { return own > m; }),
                                "lift: \"", mesh->names()[m], "\" stands behind a dim of ", mesh->to_string(),
                                " that cuts dim ", dim, " already\n  have  ", spec(tensor)->to_string(),
                                "\n  fix   name the data dims first in init_device_mesh, or cut another dim");
    all[m] = placements[m];
  }
  return from_local(to_local(tensor), mesh, all);
}

// Each slice would have its own addend of their gradients. `others`: placements on the dims that the slice lacks.
void check_no_parameters_of_slice(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& others) {
  if (!c10::GradMode::is_enabled()) return;
  std::string names;
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (!others[m].is_replicate() && mesh->size(m) > 1)
      names += (names.empty() ? "\"" : ", \"") + mesh->names()[m] + "\"";
  }
  if (names.empty()) return;
  for (const at::Tensor& leaf : graph_leaves({tensor})) {
    const bool on_slice = !is_shard_tensor(leaf) || spec(leaf)->mesh() == spec(tensor)->mesh();
    TORCH_CHECK_VALUE(
        !on_slice || !meaning_of(leaf).same_on_all_ranks(), "lift: computed from a parameter on ",
        spec(tensor)->mesh()->to_string(), " alone, so its gradients would not be summed over ", names,
        "\n  have  a parameter of shape ", shape_string(leaf.sizes()),
        "\n  fix   lift what the module is called with, and give the module to fully_shard or replicate over ", names,
        " first");
  }
}

}  // namespace

std::vector<int64_t> dims_of_slice(const DeviceMesh& mesh, const DeviceMesh& slice) {
  if (mesh.root() != slice.root()) return {};
  std::vector<int64_t> dims;
  for (const int64_t required : slice.root_dims()) {
    const auto found = std::find(mesh.root_dims().begin(), mesh.root_dims().end(), required);
    if (found == mesh.root_dims().end()) return {};
    dims.push_back(found - mesh.root_dims().begin());
  }
  return dims;
}

at::Tensor embed_in_mesh(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& others) {
  const SpecPtr from = spec(tensor);
  const std::vector<int64_t> dims = dims_of_slice(*mesh, *from->mesh());
  TORCH_CHECK_VALUE(!dims.empty(), "lift: ", from->mesh()->to_string(), " is not a slice of ", mesh->to_string(),
                    "\n  have  ", from->to_string(), "\n  fix   give a tensor of mesh[\"NAME\"]");
  const size_t lacking = mesh->ndim() - dims.size();
  TORCH_CHECK_VALUE(others.size() == lacking, "lift: ", others.size(), " placements, ", from->mesh()->to_string(),
                    " lacks ", lacking, " dims of ", mesh->to_string(), "\n  fix   give one for each, in order");
  std::vector<Placement> placements(mesh->ndim());
  Layout layout = widened(*from, mesh, dims);
  bool cuts = false;
  size_t next = 0;
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (std::find(dims.begin(), dims.end(), m) != dims.end()) continue;
    placements[m] = others[next++];
    if (placements[m].is_partial()) layout.partials[m] = placements[m].op;
    cuts = cuts || placements[m].is_shard();
  }
  check_no_parameters_of_slice(tensor, mesh, placements);
  if (cuts) return embed_with_cuts(tensor, mesh, layout, placements);
  return from_local(to_local(tensor), intern(std::move(layout)));
}

at::Tensor local_batch(const at::Tensor& tensor, const MeshPtr& data) {
  const MeshPtr mesh = whole_mesh(data);
  std::vector<Placement> placements(mesh->ndim());
  if (tensor.dim() > 0) {
    for (const int64_t m : dims_of_slice(*mesh, *data)) placements[m] = shard(0);
  }
  if (!is_shard_tensor(tensor)) {
    if (tensor.dim() == 0) return from_local(tensor, replicated(mesh, {}));
    TORCH_CHECK_VALUE(data->size() == 1 || !meaning_of(tensor).same_on_all_ranks() || !tensor.requires_grad(),
                      "local_batch: this is a parameter, the same on all ranks, and no batch of samples\n  have  a "
                      "parameter of shape ",
                      shape_string(tensor.sizes()), fix(Remedy::kMakeConstant));
    return from_local(tensor, mesh, placements);
  }
  const DeviceMesh& own = *spec(tensor)->mesh();
  const std::vector<int64_t> has = dims_of_slice(*mesh, own);
  if (&own == mesh.get() || has.empty()) return tensor;
  std::vector<Placement> others;
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (std::find(has.begin(), has.end(), m) == has.end()) others.push_back(placements[m]);
  }
  return embed_in_mesh(tensor, mesh, others);
}

}  // namespace moonhalo
