// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/fully_shard.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/model/distribute_parameters.h"
#include "moonhalo/engine/model/model_context.h"
#include "moonhalo/engine/model/torch_module_tree.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/gradient_sync.h"

namespace moonhalo {

// Bytes that the ranks along a mesh dim hold of what was stored over it, so that later parameters even them out.
struct ShardLoad {
  struct Entry {
    std::weak_ptr<DeviceMesh> mesh;
    int64_t mesh_dim;
    std::vector<int64_t> bytes;
  };
  std::vector<Entry> entries;

  std::vector<int64_t>& of(const MeshPtr& mesh, int64_t mesh_dim) {
    std::erase_if(entries, [](const Entry& entry) { return entry.mesh.expired(); });
    for (Entry& entry : entries) {
      if (entry.mesh.lock() == mesh && entry.mesh_dim == mesh_dim) return entry.bytes;
    }
    return entries.emplace_back(Entry{mesh, mesh_dim, std::vector<int64_t>(mesh->size(mesh_dim), 0)}).bytes;
  }
};

namespace {

void check_mesh(const at::Tensor& tensor, const MeshPtr& root, const std::string& name) {
  TORCH_CHECK_VALUE(!is_shard_tensor(tensor) || !dims_of_slice(*root, *spec(tensor)->mesh()).empty(), name,
                    ": the parameter lives on ", spec(tensor)->mesh()->to_string(), ", which is not a slice of ",
                    root->to_string(), "\n  fix   slice both meshes from one that init_device_mesh made");
}

// A tensor of a slice as one of the whole mesh. Its copies there are made equal.
at::Tensor embedded_in_root(const at::Tensor& tensor, const MeshPtr& root) {
  const MeshPtr& own = spec(tensor)->mesh();
  if (own == root) return tensor;
  at::Tensor block = to_local(tensor).contiguous().clone();
  const std::vector<int64_t> kept = dims_of_slice(*root, *own);
  const TrafficScope moving(Traffic::kParameters);
  for (int64_t m = 0; m < root->ndim(); ++m) {
    if (std::find(kept.begin(), kept.end(), m) == kept.end()) root->group(m).broadcast(block, 0);
  }
  const std::vector<Placement> copies(root->ndim() - own->ndim());
  return embed_in_mesh(from_local(block, spec(tensor)), root, copies);
}

// The tensor on the whole mesh, as it is cut by now; plain and deferred ones stay what they are.
at::Tensor on_whole_mesh(const at::Tensor& tensor, const MeshPtr& root, const std::string& name) {
  check_mesh(tensor, root, name);
  return is_shard_tensor(tensor) ? embedded_in_root(tensor.detach(), root) : tensor;
}

SpecPtr spec_on(const at::Tensor& tensor, const MeshPtr& root) {
  return is_shard_tensor(tensor) ? without_partial(spec(tensor)) : replicated(root, tensor.sizes());
}

at::Tensor placed(const at::Tensor& value, const at::Tensor& given, const MeshPtr& root, const Placements& placements) {
  const c10::AutoGradMode no_grad(false);
  return place_tensor(value, root, placements, /*src=*/0).detach().requires_grad_(given.requires_grad());
}

std::string name_in_errors(const char* op, const std::string& name) { return std::string(op) + ": '" + name + "'"; }

// Another tensor is to take the place of this one.
void check_given_up(const char* op, const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!tensor.grad().defined(), name_in_errors(op, name), " has a gradient\n  fix   call ", op,
                    " before the first backward, and make optimizers after it");
  check_no_hooks(op, name, tensor);
}

}  // namespace

bool is_stored_already(const at::Tensor& tensor, const MeshPtr& data) {
  if (!is_shard_tensor(tensor)) return false;
  const MeshPtr root = whole_mesh(data);
  const std::vector<int64_t> dims = dims_of_slice(*root, *spec(tensor)->mesh());
  const auto found = std::find(dims.begin(), dims.end(), dims_of_slice(*root, *data).back());
  return found != dims.end() && spec(tensor)->layout().uses(found - dims.begin());
}

std::optional<int64_t> storage_dim(at::IntArrayRef shape, const std::vector<bool>& is_cut, int64_t ranks,
                                   int64_t min_numel, int64_t unit_rows) {
  if (c10::multiply_integers(shape) < min_numel) return std::nullopt;
  const auto ndim = static_cast<int64_t>(shape.size());
  const auto fits = [&](int64_t d) { return !is_cut[d] && (shape[d] + unit_rows - 1) / unit_rows >= ranks; };
  std::optional<int64_t> longest;
  for (int64_t d = 0; d < ndim; ++d) {
    if (fits(d) && (d == 0 || !longest || shape[d] > shape[*longest])) longest = d;
    if (longest == 0) break;
  }
  return longest;
}

std::optional<int64_t> storage_dim(const ShardSpec& spec, int64_t ranks, int64_t min_numel, int64_t unit_rows) {
  std::vector<bool> is_cut;
  for (int64_t d = 0; d < spec.ndim(); ++d) is_cut.push_back(spec.is_cut(d));
  return storage_dim(spec.global_shape(), is_cut, ranks, min_numel, unit_rows);
}

std::vector<int64_t> balanced_shard_sizes(int64_t rows, int64_t row_bytes, std::vector<int64_t>& held,
                                          int64_t unit_rows) {
  const auto ranks = static_cast<int64_t>(held.size());
  const int64_t units = (rows + unit_rows - 1) / unit_rows;
  std::vector<int64_t> sizes(ranks, units / ranks), order(ranks);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return held[a] < held[b]; });
  for (int64_t i = 0; i < units % ranks; ++i) ++sizes[order[i]];
  int64_t left = rows;  // the last unit may be shorter
  for (int64_t& size : sizes) left -= size = std::min(size * unit_rows, left);
  for (int64_t rank = 0; rank < ranks; ++rank) held[rank] += sizes[rank] * row_bytes;
  return sizes;
}

at::Tensor store_parameter(const at::Tensor& tensor, const MeshPtr& data, const FullyShardOptions& options,
                           const std::string& name) {
  TORCH_CHECK_VALUE(options.unit_rows > 0, name, ": unit_rows = ", options.unit_rows, ", expected a number of rows");
  const MeshPtr root = whole_mesh(data);
  const int64_t mesh_dim = dims_of_slice(*root, *data).back(), ranks = root->size(mesh_dim);
  if (is_stored_already(tensor, data)) return tensor;
  const at::Tensor value = on_whole_mesh(tensor, root, name);
  const SpecPtr own = spec_on(value, root);
  note_replaced(tensor);
  Placements placements = own->placements();
  if (const auto dim = storage_dim(*own, ranks, options.min_numel, options.unit_rows)) {
    const int64_t rows = own->global_shape()[*dim];
    // For the whole tensor: the other cuts may give ranks different shares, and all must come to the same sizes.
    const auto row_bytes = own->global_numel() / rows * static_cast<int64_t>(tensor.element_size());
    std::vector<int64_t>& held = model_context->shard_load->of(root, mesh_dim);
    std::vector<int64_t> nothing(ranks, 0);
    const std::vector<int64_t> sizes =
        balanced_shard_sizes(rows, row_bytes, options.level ? held : nothing, options.unit_rows);
    for (int64_t rank = 0; rank < ranks; ++rank) held[rank] += nothing[rank];
    placements[mesh_dim] = stored(*dim, sizes);
  }
  return placed(value, tensor, root, placements);
}

at::Tensor copy_tensor(const at::Tensor& tensor, const MeshPtr& data, const std::string& name) {
  const MeshPtr root = whole_mesh(data);
  const at::Tensor value = on_whole_mesh(tensor, root, name);
  note_replaced(tensor);
  return placed(value, tensor, root, spec_on(value, root)->placements());
}

// Remembers the tensors that fully_shard and replicate made. So modules of several calls go on sharing them, and outer
// calls leave what inner calls have placed.
class PlacedTensors {
 public:
  at::Tensor find(const at::Tensor& tensor) const {
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    if (found == entries_.end() || !found->second.before.lock()) return {};  // another tensor had this address
    const auto after = found->second.after.lock();
    return after ? at::Tensor(after) : at::Tensor();
  }
  void add(const at::Tensor& before, const at::Tensor& after) {
    for (const at::Tensor& key : {before, after}) {
      entries_.insert_or_assign(key.unsafeGetTensorImpl(),
                                Entry{Weak(key.getIntrusivePtr()), Weak(after.getIntrusivePtr())});
    }
  }
  void forget_dead() {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.before.expired(); });
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;
  struct Entry {
    Weak before, after;
  };
  std::unordered_map<const void*, Entry> entries_;
};

namespace {

// `keeps`: true for tensors that `place` returns as they are.
void place_all(const char* op, const ModuleTreePtr& module, const std::function<bool(const ModuleTree::Tensor&)>& keeps,
               const std::function<at::Tensor(const ModuleTree::Tensor& tensor, const std::string& where)>& place) {
  PlacedTensors& placed = *model_context->placed_tensors;
  placed.forget_dead();
  const auto check = [&](const std::string& name, const ModuleTree::Tensor& tensor) {
    const at::Tensor before = placed.find(tensor.value);
    if (before.defined() ? !before.is_same(tensor.value) : !keeps(tensor)) check_given_up(op, name, tensor.value);
  };
  replace_tensors(op, module, check, [&](const std::string& name, const ModuleTree::Tensor& tensor) {
    if (const at::Tensor before = placed.find(tensor.value); before.defined()) return before;
    const at::Tensor after = place(tensor, name_in_errors(op, name));
    placed.add(tensor.value, after);
    return after;
  });
}

}  // namespace

ParameterUnitPtr fully_shard(const ModuleTreePtr& module, const MeshPtr& data, const FullyShardOptions& options) {
  const auto keeps = [&](const ModuleTree::Tensor& tensor) {
    return tensor.is_parameter && is_stored_already(tensor.value, data);
  };
  place_all("fully_shard", module, keeps, [&](const ModuleTree::Tensor& tensor, const std::string& where) {
    if (!tensor.is_parameter) return copy_tensor(tensor.value, data, where);
    FullyShardOptions own = options;
    own.level = options.level && !tensor.shared_by_stages;
    return store_parameter(tensor.value, data, own, where);
  });
  return std::make_shared<ParameterUnit>(parameters_of(module), options);
}

ParameterUnitPtr fully_shard(torch::nn::Module& module, const MeshPtr& data, const FullyShardOptions& options) {
  return fully_shard(module_tree(module), data, options);
}

ParameterUnitPtr replicate(const ModuleTreePtr& module, const MeshPtr& data, const GradientSyncOptions& gradients) {
  const auto keeps = [](const ModuleTree::Tensor&) { return false; };
  place_all("replicate", module, keeps, [&](const ModuleTree::Tensor& tensor, const std::string& where) {
    return copy_tensor(tensor.value, data, where);
  });
  return std::make_shared<ParameterUnit>(parameters_of(module),
                                         FullyShardOptions{.reshard_after_backward = false, .gradients = gradients});
}

ParameterUnitPtr replicate(torch::nn::Module& module, const MeshPtr& data, const GradientSyncOptions& gradients) {
  return replicate(module_tree(module), data, gradients);
}

}  // namespace moonhalo
