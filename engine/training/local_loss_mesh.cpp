// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/local_loss_mesh.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/model/model_context.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

// The gradients one behind the other, and for each whether this rank has it.
at::Tensor pack_leaves(const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> parts;
  at::Tensor has = at::zeros({static_cast<int64_t>(leaves.size())}, leaves[0].options().requires_grad(false));
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor& grad = leaves[i].grad();
    parts.push_back(grad.defined() ? grad.reshape({-1}) : at::zeros({leaves[i].numel()}, has.options()));
    if (grad.defined()) has[static_cast<int64_t>(i)].fill_(1);
  }
  parts.push_back(has);
  return at::cat(parts);
}

void average(const std::vector<at::Tensor>& leaves, Communicator& group) {
  const auto describe = [&] { return std::to_string(leaves.size()) + " plain parameters"; };
  const CallScope scope(leaves.size(), "average_gradients", describe);
  const TrafficScope moving(Traffic::kGradients);
  at::Tensor flat = pack_leaves(leaves);
  group.all_reduce(flat, ReduceOp::kAvg);
  const at::Tensor has = flat.narrow(0, flat.numel() - static_cast<int64_t>(leaves.size()), leaves.size()).cpu();
  int64_t start = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor mean = flat.narrow(0, start, leaves[i].numel()).view(leaves[i].sizes());
    start += leaves[i].numel();
    if (at::real(has[static_cast<int64_t>(i)]).item<double>() == 0) continue;
    at::Tensor& grad = leaves[i].mutable_grad();
    if (grad.defined()) {
      grad.copy_(mean);
    } else {
      grad = mean.clone();
    }
  }
}

// The meshes noted so far that live, one of each set of ranks.
std::vector<MeshPtr> noted_groups() {
  std::vector<MeshPtr> groups;
  for (const auto& weak : model_context->local_loss_meshes) {
    const MeshPtr mesh = weak.lock();
    const auto same = [&](const MeshPtr& other) { return !mesh->ranks_of(*other).empty(); };
    if (mesh && std::none_of(groups.begin(), groups.end(), same)) groups.push_back(mesh);
  }
  return groups;
}

}  // namespace

void register_local_loss_mesh(const MeshPtr& data) {
  data->ranks_of(*data);  // asked while all its ranks are here; nothing is sent for it in noted_groups
  auto& meshes = model_context->local_loss_meshes;
  std::erase_if(meshes, [&](const auto& mesh) { return mesh.expired() || mesh.lock() == data; });
  meshes.push_back(data);
}

void average_local_gradients(const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode no_grad(false);
  for (const MeshPtr& mesh : noted_groups()) {
    if (mesh->size() == 1) continue;
    std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
    for (const at::Tensor& leaf : parameters) {
      if (leaf.requires_grad() && !is_shard_tensor(leaf) && !has_gradient_hook(leaf))
        by_dtype[leaf.scalar_type()].push_back(leaf);
    }
    for (const auto& [dtype, leaves] : by_dtype) average(leaves, mesh->group());
  }
}

}  // namespace moonhalo
