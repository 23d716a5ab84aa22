// SPDX-License-Identifier: Apache-2.0
// Embedding tables. A table cut in columns gives columns; cut in rows (the vocabulary), every rank looks up the words
// that it owns, zeros stand for the others, and the result is Partial. If the same ranks cut the indices, the rows of
// their words are sent to them.
#include <ATen/ATen.h>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/support/local_rows.h"
#include "moonhalo/ops/support/picked_rows.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_picked_words(const OpCall& call) {
  const auto rows = picked_rows(call.spec("weight"), {0}, call.spec("indices"), UncutIndex::kLeave);
  if (!rows) return std::nullopt;
  std::vector<int64_t> shape = rows->entries->global_shape();
  shape.push_back(rows->table->global_shape()[1]);
  Layout layout(call.mesh(), shape);
  layout.cuts = rows->entries->layout().cuts;
  layout.cuts.push_back(rows->table->cut(1));
  layout.partials = rows->table->layout().partials;
  const SpecPtr result = intern(std::move(layout));
  Plan plan = unary_plan(call, rows->table, {result});
  plan.inputs[call.slot("indices")] = rows->index();
  plan.asks_for_tensors = true;
  plan.run = [rows = *rows, shape = result->local_shape(), at_weight = call.arg("weight"),
              at_indices = call.arg("indices")](LocalCall& call) {
    const auto picked = route_of(rows, {call.tensor(at_indices)}, call.given(at_indices), "embedding");
    call.give(picked->route.fetch(call.tensor(at_weight), 0).view(shape));
  };
  return plan;
}

std::optional<Plan> plan_embedding(const OpCall& call) {
  const SpecPtr &weight = call.spec("weight"), &indices = call.spec("indices");
  TORCH_CHECK_VALUE(weight->ndim() == 2, "embedding: the weight has ", weight->ndim(), " dims instead of 2\n  have  ",
                    call.describe());
  if (auto plan = plan_picked_words(call)) return plan;
  const int words = 0, columns = 1, first = 2;
  Axes axes;
  axes.kinds.assign(first + indices->ndim(), AxisKind::kKeep);
  axes.kinds[words] = AxisKind::kReduce;
  std::vector<int> index_dims;
  for (int d = 0; d < static_cast<int>(indices->ndim()); ++d) index_dims.push_back(first + d);
  axes.inputs = {{words, columns}, index_dims};
  axes.linear = {PartialUse::kOneFactor, PartialUse::kResolve};
  index_dims.push_back(columns);
  axes.outputs = {index_dims};
  std::vector<int64_t> shape = indices->global_shape();
  shape.push_back(weight->global_shape()[1]);
  axes.output_shapes = {shape};
  Plan plan = solve(call, axes);
  const SpecPtr held = plan.inputs[0];
  if (!held->is_cut(0)) return plan;
  plan.run = [held, at_weight = call.arg("weight"), at_indices = call.arg("indices")](LocalCall& call) {
    const at::Tensor weight = call.tensor(at_weight), indices = call.tensor(at_indices);
    const OwnedRows owned = owned_rows(indices, *held, 0, false, "embedding");
    std::vector<int64_t> shape = indices.sizes().vec();
    shape.push_back(weight.size(1));
    if (weight.size(0) == 0) return call.give(at::zeros(shape, weight.options()));
    at::Tensor found = weight.index_select(0, owned.index.flatten()).view(shape);
    call.give(found.masked_fill_(owned.valid.logical_not().unsqueeze(-1), 0));
  };
  return plan;
}

std::optional<Plan> plan_embedding_backward(const OpCall& call) {
  const SpecPtr &grad = call.spec("grad_output"), &indices = call.spec("indices");
  const auto ndim = static_cast<int>(indices->ndim());
  // Scaling by how often a word occurs needs all of the words.
  const bool counts = call.flag("scale_grad_by_freq");
  Axes axes;
  axes.kinds.assign(ndim, counts ? AxisKind::kUncut : AxisKind::kReduce);
  axes.kinds.push_back(AxisKind::kKeep);
  std::vector<int> dims;
  for (int d = 0; d < ndim; ++d) dims.push_back(d);
  axes.inputs = {dims, dims};
  axes.inputs[0].push_back(ndim);
  axes.linear = {PartialUse::kOneFactor, PartialUse::kResolve};
  axes.outputs = {{-1, ndim}};
  axes.output_shapes = {{call.integer("num_weights"), grad->global_shape().back()}};
  return solve(call, axes);
}

const Register embedding_rules{
    {.op = "aten::embedding",
     .plan = plan_embedding,
     .source = "PyTorch embedding; Megatron-LM vocabulary-parallel tables",
     .supports = "any cut of table and indices; rows are sent where the same mesh dims cut both",
     .traffic = Traffic::kDataDependent},
    {.op = "aten::embedding_dense_backward",
     .plan = plan_embedding_backward,
     .supports = "any cut of the gradient; scale_grad_by_freq gathers the indices"},
};

}  // namespace
}  // namespace moonhalo
