// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// `spec` with `dim` whole: its cut goes to the longest dim that is free, or the ranks hold copies.
SpecPtr with_whole(const SpecPtr& spec, int64_t dim) {
  Layout layout = spec->layout();
  const Cut cut = std::exchange(layout.cuts[dim], Cut{});
  int64_t free = -1;
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    if (d == dim || spec->is_cut(d)) continue;
    if (free < 0 || spec->global_shape()[d] > spec->global_shape()[free]) free = d;
  }
  if (free >= 0 && spec->global_shape()[free] > 1) {
    layout.cuts[free] = {cut.mesh_dims,
                         balanced_sizes(spec->global_shape()[free], static_cast<int64_t>(cut.sizes.size()))};
  }
  return intern(std::move(layout));
}

// Operators that need whole lines: the tensor is transposed over the ranks so that each holds whole lines of some
// slices, and the results return to the cut of the input. Twice the tensor is sent, but none holds all of it.
template <bool kReduces>
std::optional<Plan> plan_lines(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const int64_t dim = at::maybe_wrap_dim(call.integer("dim"), from->ndim());
  const bool keepdim = keeps_dims(call);
  const auto result = [&](const SpecPtr& spec) {
    return kReduces && from->ndim() > 0 ? reduced_spec(spec, dim, keepdim) : spec;
  };
  Plan plan{.inputs = {from}, .outputs = {result(from), result(from)}};
  if (from->ndim() == 0 || CutGroup(from, dim).alone()) return plan;
  const SpecPtr whole = with_whole(from, dim);
  const auto there = std::make_shared<Redistribution>(from, whole);
  const auto back = std::make_shared<Redistribution>(result(whole), result(from));
  plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
    c10::IValue& self = call.value(at_self);
    self = there->apply(self.toTensor());
    call.run();
    const at::Tensor values = back->apply(call.result(0));
    call.give(values, back->apply(call.result(1)));
  };
  return plan;
}

// The k greatest of all are among the k greatest of every block, so only these are sent. LibTorch's order of sorted
// = false is what is left of its search through the whole line, which no rank holds: here it is that of sorted =
// true, on any blocks.
std::optional<Plan> plan_topk(const OpCall& call) {
  const SpecPtr from = without_partial(call.spec("self"));
  const int64_t dim = at::maybe_wrap_dim(call.integer("dim"), from->ndim()), k = call.integer("k");
  if (from->ndim() == 0) return Plan{.inputs = {from}, .outputs = {from, from}};
  TORCH_CHECK_VALUE(k >= 0 && k <= from->global_shape()[dim], "topk: k ", k, " of a dim of ", from->global_shape()[dim],
                    "\n  have  ", call.describe(), "\n  fix   ask for at most as many as there are");
  const SpecPtr result = with_cut(without_cuts(from, dim), dim, {}, k);
  Plan plan{.inputs = {from}, .outputs = {result, result}};
  if (CutGroup(from, dim).alone()) return plan;
  Cut offered = from->cut(dim);
  for (int64_t& size : offered.sizes) size = std::min(size, k);
  const int64_t extent = std::accumulate(offered.sizes.begin(), offered.sizes.end(), int64_t{0});
  const SpecPtr candidates = with_cut(from, dim, offered, extent);
  const auto gather = std::make_shared<Redistribution>(candidates, without_cuts(candidates, dim));
  plan.run = [=, offset = from->offsets()[dim], mine = candidates->local_shape()[dim], largest = call.flag("largest"),
              at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    const auto [values, indices] = at::topk(x, mine, dim, largest, /*sorted=*/false);
    const at::Tensor every = gather->apply(values), where = gather->apply(indices + offset);
    const auto [best, place] = at::topk(every, k, dim, largest, /*sorted=*/true);
    call.give(best, where.gather(dim, place));
  };
  return plan;
}

constexpr auto* kLines = "any cut";

const Register sort_rules{
    {.op = "aten::topk",
     .plan = plan_topk,
     .supports = "any cut; sorted = false is free to give any order: along a cut dim it gives the sorted one",
     .traffic = Traffic::kRedistribute},
    {.op = {"aten::sort", "aten::cummax", "aten::cummin"},
     .plan = plan_lines<false>,
     .supports = kLines,
     .traffic = Traffic::kRedistribute},
    {.op = {"aten::kthvalue", "aten::median.dim", "aten::nanmedian.dim", "aten::mode"},
     .plan = plan_lines<true>,
     .supports = kLines,
     .traffic = Traffic::kRedistribute},
};

}  // namespace
}  // namespace moonhalo
