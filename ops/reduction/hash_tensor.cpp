// SPDX-License-Identifier: Apache-2.0
// The hash of a tensor is the xor of the bits of its elements, so it is the xor of the hashes of its blocks.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

// The xor of all ranks' hashes along mesh dim `m`. The operator itself computes it: of int64 it takes the bits.
at::Tensor xor_along(const at::Tensor& hashes, const DeviceMesh& mesh, int64_t m) {
  const TrafficScope moving(Traffic::kAllReduce);
  Communicator& group = mesh.group(m);
  const at::Tensor mine = hashes.view(at::kLong).reshape({-1});
  at::Tensor all = at::empty({group.size() * mine.numel()}, mine.options());
  group.all_gather(mine, std::vector<int64_t>(group.size(), mine.numel()), all);
  return at::hash_tensor(all.view({group.size(), mine.numel()}), 0).view(hashes.sizes());
}

std::optional<Plan> plan_hash_tensor(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const auto dims = reduced_dims(call, from->ndim());
  call.output_shapes();  // refuses dims that are named twice
  // Only the kernel refuses modes and dtypes, and blocks without elements do not call it.
  if (from->global_numel() > 0)
    at::hash_tensor(at::zeros({1}, call.tensor("self").dtype), at::IntArrayRef(), false,
                    call.given("mode") ? call.integer("mode") : 0);
  Plan plan{.inputs = {from}, .outputs = {reduced_spec(from, dims, keeps_dims(call))}};
  if (!blocks_may_be_empty(from, dims)) return plan;
  plan.run = [from, dims, at_self = call.arg("self")](LocalCall& local) {
    const at::Tensor x = local.tensor(at_self);
    std::vector<int64_t> shape = x.sizes().vec();
    for (const int64_t d : dims) shape[d] = std::max<int64_t>(shape[d], 1);
    // The bits of a zero change no hash.
    if (x.sizes() != shape) local.value(at_self) = at::zeros(shape, x.options());
    local.run();
    at::Tensor hashes = local.result();
    for (const int64_t d : dims) {
      for (const int64_t m : from->cut(d).mesh_dims) hashes = xor_along(hashes, *from->mesh(), m);
    }
    local.give(hashes);
  };
  return plan;
}

const Register hash_tensor_rules{{.op = "aten::hash_tensor",
                                  .plan = plan_hash_tensor,
                                  .supports = "any cut; every rank's hash is sent",
                                  .traffic = Traffic::kAllReduce}};

}  // namespace
}  // namespace moonhalo
