// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/distribute_parameters.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {
namespace {

void check_mesh(const at::Tensor& tensor, const MeshPtr& mesh, const std::string& where) {
  const MeshPtr& own = spec(tensor)->mesh();
  TORCH_CHECK_VALUE(
      own == mesh, where, ": the tensor lives on ", own->to_string(), ", the plan is for ", mesh->to_string(),
      "\n  have  ", spec(tensor)->to_string(), "\n  fix   make the plan for ", own->to_string(),
      ", of placements (not of styles), one for each dim as here, or give full_tensor(), which counts as replicated");
}

// `placements` for a slice, of a tensor that lives on a larger part of the mesh: what the slice lacks stays as it is.
// Returns nothing for other tensors.
std::optional<Placements> on_larger_mesh(const Placements& placements, const MeshPtr& slice, const ShardSpec& own) {
  if (own.mesh() == slice || own.mesh()->ndim() <= slice->ndim()) return std::nullopt;
  const std::vector<int64_t> dims = dims_of_slice(*own.mesh(), *slice);
  if (dims.size() != placements.size()) return std::nullopt;
  Placements all = own.placements();
  for (size_t i = 0; i < dims.size(); ++i) all[dims[i]] = placements[i];
  // Sizes of a dim that several cut are counted inside each other, and these are for the old cut.
  for (const Placement& placement : placements) {
    const auto same_dim = [&](const Placement& other) {
      return other.is_shard() && (other.dim - placement.dim) % own.ndim() == 0;
    };
    if (!placement.is_shard() || std::count_if(all.begin(), all.end(), same_dim) == 1) continue;
    for (Placement& other : all) {
      if (same_dim(other)) other.sizes.clear();
    }
  }
  return all;
}

// A plain block as a ShardTensor. Asks the other ranks only for what the placements leave open.
at::Tensor annotate(const at::Tensor& block, const MeshPtr& mesh, const Placements& placements,
                    const std::string& where) {
  std::vector<int64_t> shape = block.sizes().vec();
  int cuts = 0;
  bool known = true;
  for (const Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    const int64_t dim = placement.dim < 0 ? placement.dim + block.dim() : placement.dim;
    TORCH_CHECK_VALUE(dim >= 0 && dim < block.dim(), where, ": ", placement.to_string(), " for a tensor of shape ",
                      shape_string(block.sizes()));
    known = known && !placement.sizes.empty() && ++cuts == 1;
    if (known) shape[dim] = std::accumulate(placement.sizes.begin(), placement.sizes.end(), int64_t{0});
  }
  return known ? from_local(block, make_spec(mesh, shape, placements)) : from_local(block, mesh, placements);
}

// The same tensor, whose gradient is brought to `placements` on its way back.
at::Tensor with_gradient(const at::Tensor& tensor, const Placements& placements) {
  const SpecPtr own = spec(tensor),
                to = make_spec(own->mesh(), own->global_shape(), inherit_block_sizes(placements, *own));
  const at::Tensor same = wrap(counted_alias(fresh_block(tensor, "a gradient's placements")), own);
  shard_impl(tensor)->share_block(*shard_impl(same));
  if (const auto& copied = copied_memory(*shard_impl(tensor))) make_notes(*shard_impl(same)).copied = copied;
  attach_backward(tensor, same, [to](const at::Tensor& grad) {
    return redistribute(is_shard_tensor(grad) ? grad : from_local(grad, replicated(to->mesh(), grad.sizes())), to);
  });
  return same;
}

// Collective: block sizes that `placements` leaves open are exchanged.
at::Tensor adopt_local_block(const at::Tensor& block, const MeshPtr& mesh, const Placements& placements,
                             const std::string& where) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor value = block.detach();
  if (!is_on_device(*mesh, value)) value = value.to(device_of(*mesh));
  return annotate(value, mesh, placements, where).detach().requires_grad_(block.requires_grad());
}

using PlanOfTensor = std::unordered_map<const void*, const ModulePlan::Tensor*>;

// The plan of every tensor. A shared one has the entry that is listed.
PlanOfTensor plans_of_shared(const std::vector<PlannedTensor>& tensors, const MeshPtr& mesh, bool is_model_sharded) {
  PlanOfTensor plans;
  for (const PlannedTensor& one : tensors) {
    if (!one.tensor.defined()) continue;
    const ModulePlan::Tensor*& plan = plans[one.tensor.unsafeGetTensorImpl()];
    const auto differ = [&](const Placements& a, const Placements& b) {
      if (is_model_sharded) return a != b;
      return make_spec(mesh, one.tensor.sizes(), a) != make_spec(mesh, one.tensor.sizes(), b);
    };
    const bool both = plan != nullptr && plan->listed && one.plan.listed;
    TORCH_CHECK_VALUE(!both || !differ(plan->placements, one.plan.placements), "parallelize_module: '", one.name,
                      "' is shared with another module, whose entry in the plan differs");
    if (plan == nullptr || (one.plan.listed && !plan->listed)) plan = &one.plan;
  }
  return plans;
}

// A dry run gets zeros from the rank that sends `value`, which all ranks have made: the block is taken from its own.
void keep_own_values(const at::Tensor& placed, const at::Tensor& value) {
  const SpecPtr& to = spec(placed);
  const at::Tensor own = redistribute(from_local(value, replicated(to->mesh(), value.sizes())), to);
  shard_impl(placed)->local().copy_(shard_impl(own)->local());
}

}  // namespace

at::Tensor place_tensor(const at::Tensor& tensor, const MeshPtr& mesh, const Placements& placements,
                        std::optional<int64_t> src) {
  if (is_deferred(tensor)) return materialize(tensor, mesh, placements);
  const c10::AutoGradMode no_grad(false);
  at::Tensor value = tensor.detach(), placed;
  if (is_shard_tensor(value)) {
    check_mesh(value, mesh, "parallelize_module");
    placed = redistribute(value, inherit_block_sizes(placements, *spec(value))).detach();
  } else {
    if (!is_on_device(*mesh, value)) value = value.to(device_of(*mesh));
    if (src) {
      placed = distribute_tensor(value, mesh, placements, *src);
      if (makes_fakes() && !is_fake(value)) keep_own_values(placed, value);
    } else {
      expect_replicated(value, mesh, "parallelize_module");
      const SpecPtr whole = replicated(mesh, value.sizes());
      placed = from_local(value, whole);
      if (const SpecPtr to = make_spec(mesh, value.sizes(), placements); to != whole) placed = redistribute(placed, to);
    }
  }
  // Small blocks of dry runs have memory, in which there are zeros of other ranks.
  if (is_fake(value) && !is_fake(shard_impl(placed)->local())) forget_values(shard_impl(placed)->local());
  return placed.requires_grad_(tensor.requires_grad());
}

Placements inherit_block_sizes(Placements placements, const ShardSpec& spec) {
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    std::vector<int64_t> mesh_dims;
    bool open = true;
    for (size_t m = 0; m < placements.size(); ++m) {
      if (!placements[m].is_shard() || (placements[m].dim != d && placements[m].dim != d - spec.ndim())) continue;
      mesh_dims.push_back(static_cast<int64_t>(m));
      open = open && placements[m].sizes.empty();
    }
    if (open && !mesh_dims.empty() && spec.cut(d).mesh_dims == mesh_dims)
      placements[mesh_dims.back()].sizes = spec.cut(d).sizes;
  }
  return placements;
}

std::vector<at::Tensor> distribute_parameters(const std::vector<PlannedTensor>& tensors, const MeshPtr& mesh,
                                              std::optional<int64_t> src_data_rank, bool is_model_sharded) {
  const PlanOfTensor required = plans_of_shared(tensors, mesh, is_model_sharded);
  const auto place = [&](const at::Tensor& tensor, const std::string& name, const Placements& placements) {
    if (is_model_sharded && !is_shard_tensor(tensor))
      return adopt_local_block(tensor, mesh, placements, "parallelize_module: '" + name + "'");
    return place_tensor(tensor, mesh, placements, src_data_rank);
  };
  std::unordered_map<const void*, at::Tensor> placed;
  std::vector<at::Tensor> result;
  for (const PlannedTensor& one : tensors) {
    if (!one.tensor.defined()) {
      result.emplace_back();
      continue;
    }
    const ModulePlan::Tensor& plan = *required.at(one.tensor.unsafeGetTensorImpl());
    at::Tensor& leaf = placed[one.tensor.unsafeGetTensorImpl()];
    if (!leaf.defined() && (plan.listed || !is_shard_tensor(one.tensor))) {
      leaf = place(one.tensor, one.name, plan.placements);
      if (one.tensor.grad().defined()) leaf.mutable_grad() = place(one.tensor.grad(), one.name, plan.placements);
      if (plan.gradient) place_gradient(leaf, *plan.gradient);
    }
    result.push_back(leaf);
  }
  return result;
}

void place_gradient(const at::Tensor& leaf, const Placements& placements) {
  if (!leaf.requires_grad()) return;
  const SpecPtr& own = spec(leaf);
  place_gradient(leaf, make_spec(own->mesh(), own->global_shape(), inherit_block_sizes(placements, *own)));
}

std::vector<at::Tensor> move_arguments(const std::vector<at::Tensor>& values, const MeshPtr& mesh,
                                       const std::vector<ArgumentPlan>& plans, const std::string& where) {
  std::vector<at::Tensor> moved = values;
  std::vector<std::optional<PendingTensor>> under_way(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const ArgumentPlan& plan = plans[i];
    if (!values[i].defined()) continue;
    if (!is_shard_tensor(values[i])) {
      if (!plan.plain && !plan.required) continue;
      moved[i] = annotate(values[i], mesh, plan.plain ? *plan.plain : Placements(mesh->ndim(), replicate()), where);
    }
    if (!plan.required) continue;
    const SpecPtr own = spec(moved[i]);
    const std::optional<Placements> larger = on_larger_mesh(*plan.required, mesh, *own);
    if (!larger) check_mesh(moved[i], mesh, where);
    const Placements required = inherit_block_sizes(larger ? *larger : *plan.required, *own);
    if (plan.async) {
      under_way[i] = redistribute_async(moved[i], required);
    } else {
      moved[i] = redistribute(moved[i], required);
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (under_way[i]) moved[i] = under_way[i]->wait();
    if (!is_shard_tensor(moved[i])) continue;
    const std::optional<Placements>& gradient = plans[i].gradient;
    const bool larger = spec(moved[i])->mesh() != mesh;
    if (plans[i].local && !larger) {
      moved[i] = gradient ? to_local(moved[i], *gradient) : to_local(moved[i]);
    } else if (gradient) {
      const auto all = larger ? on_larger_mesh(*gradient, mesh, *spec(moved[i])) : gradient;
      moved[i] = with_gradient(moved[i], all ? *all : *gradient);
    }
  }
  return moved;
}

at::Tensor to_local(const at::Tensor& tensor, const Placements& gradient) {
  const SpecPtr from = spec(tensor);
  const SpecPtr to = make_spec(from->mesh(), from->global_shape(), inherit_block_sizes(gradient, *from));
  TORCH_CHECK_VALUE(to->local_shape() == from->local_shape(), "to_local: a gradient of placements that cut otherwise",
                    "\n  have  ", from->to_string(),
                    "\n  fix   give Partial or Replicate where the tensor is replicated");
  const at::Tensor local = counted_alias(fresh_block(tensor, "to_local"));
  attach_backward(tensor, local, [to](const at::Tensor& grad) { return from_local(grad, to); });
  return local;
}

}  // namespace moonhalo
