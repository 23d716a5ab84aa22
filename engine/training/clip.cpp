// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/clip.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/model/stage_parameters.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/training/gradient_sync.h"

namespace moonhalo {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

// The mesh of all gradients: their own if they have one, what theirs are slices of if they have several. Null: all are
// plain.
MeshPtr common_mesh(const std::vector<at::Tensor>& gradients) {
  MeshPtr mesh;
  for (const at::Tensor& grad : gradients) {
    if (!is_shard_tensor(grad)) continue;
    const MeshPtr& own = spec(grad)->mesh();
    if (!mesh) mesh = own;
    if (own == mesh) continue;
    TORCH_CHECK_VALUE(own->root() == mesh->root(), "clip_grad_norm: the gradients live on different meshes\n  have  ",
                      mesh->to_string(), " and ", own->to_string(), "\n  fix   slice both from one mesh");
    mesh = whole_mesh(mesh);
  }
  return mesh;
}

// The number of ranks of `mesh` hold the same block.
int64_t copies_of(const at::Tensor& grad, const DeviceMesh& mesh) {
  if (!is_shard_tensor(grad)) return mesh.size();
  int64_t blocks = 1;
  for (const Cut& cut : spec(grad)->layout().cuts) blocks *= cut ? static_cast<int64_t>(cut.sizes.size()) : 1;
  return mesh.size() / blocks;
}

// Returns the norm of this rank's block; undefined for one without elements.
at::Tensor norm_of_block(const at::Tensor& grad, double p) {
  at::Tensor block = is_shard_tensor(grad) ? shard_impl(grad)->local() : grad;
  if (block.numel() == 0) return {};
  if (block.scalar_type() == at::kHalf || block.scalar_type() == at::kBFloat16) block = block.to(at::kFloat);
  return at::linalg_vector_norm(block, p);
}

// Sums |x|^p over this rank's blocks, each divided by the number of ranks that have it, or takes the largest |x|, in
// float64. Numbers of the CPU are put together here: an operator for each costs as much as a small norm.
at::Tensor power_sum(const std::vector<at::Tensor>& gradients, const DeviceMesh* mesh, double p) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // which costs as much as a small norm, too
  double total = 0;
  at::Tensor elsewhere;
  for (const at::Tensor& grad : gradients) {
    const at::Tensor norm = norm_of_block(grad, p);
    if (!norm.defined()) continue;
    const double copies = mesh != nullptr && !std::isinf(p) ? static_cast<double>(copies_of(grad, *mesh)) : 1;
    if (norm.is_cpu()) {
      const double value = norm.item<double>();
      // std::max would lose a NaN.
      total =
          std::isinf(p) ? (value > total || std::isnan(value) ? value : total) : total + std::pow(value, p) / copies;
    } else {
      const at::Tensor part = std::isinf(p) ? norm.to(at::kDouble) : norm.to(at::kDouble).pow(p) / copies;
      elsewhere = !elsewhere.defined() ? part : std::isinf(p) ? at::maximum(elsewhere, part) : elsewhere + part;
    }
  }
  if (!elsewhere.defined()) return at::scalar_tensor(total, at::kDouble);
  return std::isinf(p) ? elsewhere.clamp_min(total) : elsewhere + total;
}

bool has_double(const std::vector<at::Tensor>& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](const at::Tensor& grad) { return c10::toRealValueType(grad.scalar_type()) == at::kDouble; });
}

// Parameters of a pipeline's stages, or, without a group, of none.
struct Part {
  CommunicatorPtr stages;
  std::vector<at::Tensor> gradients;  // those that count here
};

std::vector<Part> parts_of(const std::vector<at::Tensor>& parameters, const CommunicatorPtr& stages) {
  std::vector<Part> parts;
  const auto part_of = [&](const CommunicatorPtr& group) -> Part& {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.stages == group; });
    return found == parts.end() ? parts.emplace_back(Part{group, {}}) : *found;
  };
  if (stages) part_of(stages);
  for (const at::Tensor& parameter : parameters) {
    const std::optional<StageParameter> stage = stage_parameter(parameter);
    Part& part = part_of(stage ? stage->group : nullptr);
    if (parameter.grad().defined() && (!stage || stage->counts)) part.gradients.push_back(parameter.grad());
  }
  return parts;
}

// Sums of one part over its ranks: |x|^p, or the largest |x|; and whether any gradient is of double.
std::pair<at::Tensor, bool> reduced_sum(const Part& part, double norm_type) {
  const std::vector<at::Tensor>& gradients = part.gradients;
  const ReduceOp op = std::isinf(norm_type) ? ReduceOp::kMax : ReduceOp::kSum;
  const MeshPtr mesh = common_mesh(gradients);
  at::Tensor total = power_sum(gradients, mesh.get(), norm_type);
  bool is_double = has_double(gradients);
  if (!gradients.empty()) {
    total = total.to((is_shard_tensor(gradients[0]) ? to_local(gradients[0]) : gradients[0]).device());
  }
  if (mesh) {
    const auto describe = [&] { return std::to_string(gradients.size()) + " gradients"; };
    const CallScope scope(gradients.size(), "clip_grad_norm", describe);
    mesh->group().all_reduce(total, op);
  }
  if (part.stages) {  // which have other gradients, or none
    const auto describe = [] { return std::string("the norms of stages"); };
    const CallScope scope(fingerprint_of(std::string("stages")), "clip_grad_norm", describe);
    at::Tensor all = at::tensor({total.item<double>(), is_double ? 1.0 : 0.0}, at::kDouble);
    part.stages->all_reduce(all, op);
    total = all[0].to(total.device());
    is_double = all[1].item<double>() > 0;
  }
  return {total, is_double};
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type, const CommunicatorPtr& stages) {
  TORCH_CHECK_VALUE(norm_type > 0, "clip_grad_norm: norm_type is ", norm_type,
                    ", expected a positive number or infinity");
  const c10::AutoGradMode no_grad(false);
  finish_grad_sync(parameters);
  at::Tensor total;
  bool is_double = false;
  for (const Part& part : parts_of(parameters, stages)) {
    if (part.gradients.empty() && !part.stages) continue;
    const auto [sum, of_double] = reduced_sum(part, norm_type);
    is_double = is_double || of_double;
    if (!total.defined()) {
      total = sum;
    } else {
      const at::Tensor here = sum.to(total.device());
      total = std::isinf(norm_type) ? at::maximum(total, here) : total + here;
    }
  }
  if (!total.defined()) return at::zeros({});
  if (!std::isinf(norm_type)) total = total.pow(1 / norm_type);
  return total.to(is_double ? at::kDouble : at::kFloat);
}

at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                          bool error_if_nonfinite, const CommunicatorPtr& stages) {
  const c10::AutoGradMode no_grad(false);
  TORCH_CHECK_VALUE(max_norm >= 0,
                    "clip_grad_norm: max_norm is not a norm: it would turn the gradients round or make them NaN",
                    "\n  have  max_norm = ", max_norm, "\n  fix   a number that is not negative");
  const at::Tensor norm = grad_norm(parameters, norm_type, stages);
  TORCH_CHECK_VALUE(!error_if_nonfinite || norm.isfinite().item<bool>(),
                    "clip_grad_norm: the norm of the gradients is ", norm.item<double>(),
                    ", and error_if_nonfinite is set");
  const double factor = max_norm / (norm.item<double>() + 1e-6);
  if (factor < 1 || std::isnan(factor)) {
    for (at::Tensor& grad : gradients_of(parameters)) grad.mul_(factor);
  }
  return norm;
}

void scale_grads(const std::vector<at::Tensor>& parameters, double factor) {
  TORCH_CHECK_VALUE(!awaits_gradient_sync(parameters), "scale_grads: gradients are still sums over the ranks",
                    "\n  fix   call sync_shard_grad (finish_grad_sync) first");
  const c10::AutoGradMode no_grad(false);
  for (at::Tensor& grad : gradients_of(parameters)) grad.mul_(factor);
}

}  // namespace moonhalo
