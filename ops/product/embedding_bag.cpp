// SPDX-License-Identifier: Apache-2.0
// Sums, means and maxima of bags of words. A table cut in columns gives columns; the words themselves, the indices and
// the offsets of the bags are whole.
#include <ATen/ATen.h>

#include <cmath>
#include <tuple>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

constexpr int64_t kMax = 2;  // mode

// Every tensor whole but for the columns of those named.
Axes column_axes(const OpCall& call, std::initializer_list<const char*> with_columns, AxisKind kind) {
  Axes axes;
  axes.kinds = {kind};
  for (const TensorArgument& slot : call.slots()) axes.inputs.emplace_back(slot.spec ? slot.spec->ndim() : 0, -1);
  for (const char* name : with_columns) {
    TORCH_CHECK_VALUE(call.spec(name)->ndim() == 2, call.name(), ": ", name, " must have two dims\n  have  ",
                      call.describe());
    axes.inputs[call.slot(name)][1] = 0;
  }
  return axes;
}

std::optional<Plan> plan_forward(const OpCall& call) {
  Axes axes = column_axes(call, {"weight"}, AxisKind::kKeep);
  const SpecPtr& offsets = call.spec("offsets");
  const int64_t bags = offsets->global_numel() - (call.flag("include_last_offset") ? 1 : 0);
  axes.outputs = {{-1, 0}};
  axes.output_shapes = {{bags, call.spec("weight")->global_shape()[1]}};
  Plan plan = solve(call, axes);
  const SpecPtr result = plan.outputs[0];
  plan.outputs.clear();
  if (!result->has_cut()) return plan;
  // The shapes of the notes for the backward pass are the kernel's own affair.
  plan.outputs.resize(4);
  plan.run = [result, max = call.integer("mode") == kMax](LocalCall& call) {
    call.run();
    const auto results = call.values();
    for (size_t r = 0; r < 4; ++r) {
      const at::Tensor t = results[r].toTensor();
      const bool columns = r == 0 || (r == 3 && max);
      results[r] = wrap_new(t, columns ? result : replicated(result->mesh(), t.sizes()));
    }
  };
  return plan;
}

// CUDA's kernels for derivatives divide by the number of columns, and a rank may own none.
Run run_unless_empty(const OpCall& call, const Plan& plan) {
  return [at_grad = call.arg("grad"), result = plan.outputs[0]](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad);
    if (grad.numel() > 0) return call.run();
    call.give(at::zeros(result->local_shape(), grad.options()));
  };
}

std::optional<Plan> plan_backward(const OpCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.has("sparse") || !call.flag("sparse"), call.name(),
                              ": sparse gradients of ShardTensors\n  have  ", call.describe(),
                              "\n  fix   give sparse = false");
  Axes axes = column_axes(call, {"grad"}, AxisKind::kKeep);
  if (call.integer("mode") == kMax) axes.inputs[call.slot("maximum_indices")].back() = 0;
  axes.outputs = {{-1, 0}};
  axes.output_shapes = {{call.integer("num_weights"), call.spec("grad")->global_shape()[1]}};
  Plan plan = solve(call, axes);
  plan.run = run_unless_empty(call, plan);
  return plan;
}

// A word's weight multiplies all columns: sums over cut ones.
std::optional<Plan> plan_weights_backward(const OpCall& call) {
  Axes axes = column_axes(call, {"grad", "weight"}, AxisKind::kReduce);
  axes.outputs = {{-1}};
  axes.output_shapes = {call.spec("indices")->global_shape()};
  Plan plan = solve(call, axes);
  plan.run = run_unless_empty(call, plan);
  return plan;
}

// Scales the named rows down to the greatest norm that is allowed. Every rank scales the rows that it owns.
std::optional<Plan> plan_embedding_renorm(const OpCall& call) {
  const SpecPtr table = without_partial(call.spec("self"));
  TORCH_CHECK_VALUE(table->ndim() == 2, call.name(), ": the table must have two dims\n  have  ", call.describe());
  Plan plan{.inputs = {table, replicated(call.mesh(), call.spec("indices")->global_shape())}, .outputs = {table}};
  if (!table->has_cut()) return plan;
  plan.run = [table, group = CutGroup(table, 1), at_self = call.arg("self"), at_indices = call.arg("indices"),
              at_max_norm = call.arg("max_norm"), at_norm_type = call.arg("norm_type")](LocalCall& call) {
    at::Tensor rows = call.tensor(at_self);
    const at::Tensor indices = call.tensor(at_indices);
    const double limit = call.value(at_max_norm).toDouble(), p = call.value(at_norm_type).toDouble();
    const OwnedRows owned = owned_rows(indices, *table, 0, false, "embedding_renorm_");
    const at::Tensor mine = std::get<0>(at::_unique2(owned.index.masked_select(owned.valid)));
    if (mine.numel() > 0) {
      const at::Tensor named = rows.index_select(0, mine);
      at::Tensor norms = at::sum(named.abs().pow(std::isinf(p) ? 1 : p), 1, true);
      if (std::isinf(p)) {
        if (named.size(1) > 0) norms = at::amax(named.abs(), 1, true);
        norms = group.all_reduce(norms, ReduceOp::kMax);
      } else {
        norms = group.all_reduce(norms).pow(1 / p);
      }
      const at::Tensor factors = at::where(norms.gt(limit), limit / (norms + 1e-7), at::ones({}, norms.options()));
      rows.index_copy_(0, mine, named * factors);
    }
    call.give(rows);
  };
  return plan;
}

using Planner = std::optional<Plan> (*)(const OpCall& call);

constexpr auto* kColumns = "any cut of columns; cut words, indices and offsets are gathered";

const Register embedding_bag_rules{
    {.op = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}, .plan = plan_forward, .supports = kColumns},
    {.op = {"aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward"},
     .plan = plan_backward,
     .supports = kColumns},
    {.op = "aten::_embedding_bag_per_sample_weights_backward",
     .plan = plan_weights_backward,
     .supports = "any cut of columns; leaves sums"},
    {.op = "aten::embedding_renorm_",
     .plan = plan_embedding_renorm,
     .supports = "any cut of the table",
     .traffic = Traffic::kAllReduce},
};

}  // namespace
}  // namespace moonhalo
