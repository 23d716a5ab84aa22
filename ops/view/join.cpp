// SPDX-License-Identifier: Apache-2.0
// cat and stack.
//
// Along a cut dim the result's boundaries are put where no row has to move, if there is such a place for every one:
//
//     pieces   |0 0 0| + |0 0 1| + |1 1 1|    (the owner of each row)    result   |0 0 0 0 0|1 1 1 1|
//
// Otherwise each rank keeps as many rows as it had in all the pieces together, and what is elsewhere moves. The rows of
// pieces that these mesh dims do not cut are new, as in padding: set_output_cut applies (grown_sizes).
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/grown_blocks.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// cat has always skipped empty 1-D tensors, whatever the others look like.
bool skipped(const ShardSpec& piece, size_t ndim) {
  return ndim != 1 && piece.ndim() == 1 && piece.global_shape()[0] == 0;
}

std::vector<int64_t> joined_sizes(const std::vector<SpecPtr>& pieces, int64_t dim,
                                  const std::vector<int64_t>& mesh_dims, size_t blocks, int64_t extent) {
  std::vector<int64_t> low(blocks - 1, 0), high(blocks - 1, extent), rows(blocks, 0), old(blocks, 0);
  int64_t start = 0;
  for (const SpecPtr& piece : pieces) {
    const int64_t size = piece->global_shape()[dim];
    if (piece->cut(dim).mesh_dims == mesh_dims) {
      int64_t begin = start;
      for (size_t b = 0; b < blocks; ++b) {
        const int64_t end = begin + piece->cut(dim).sizes[b];
        rows[b] += end - begin;
        old[b] += end - begin;
        if (end > begin) {
          for (size_t i = b; i + 1 < blocks; ++i) low[i] = std::max(low[i], end);
          for (size_t i = 0; i < b; ++i) high[i] = std::min(high[i], begin);
        }
        begin = end;
      }
    } else {
      const auto balanced = balanced_sizes(size, static_cast<int64_t>(blocks));
      for (size_t b = 0; b < blocks; ++b) rows[b] += balanced[b];
    }
    start += size;
  }
  bool in_place = true;
  for (size_t i = 0; i + 1 < blocks; ++i) in_place = in_place && low[i] <= high[i];
  if (in_place) rows = nearly_balanced(extent, low, high);
  std::vector<int64_t> growth;
  for (size_t b = 0; b < blocks; ++b) growth.push_back(rows[b] - old[b]);
  return grown_sizes(std::move(rows), growth);
}

// The specs of pieces and result when everything is cut as `leader` is.
struct Joined {
  std::vector<SpecPtr> pieces;
  SpecPtr result;
  double cost = 0;
};

Joined join_like(const OpCall& call, const std::vector<SpecPtr>& pieces, const ShardSpec& leader, int64_t dim,
                 at::IntArrayRef shape, const std::vector<std::optional<ReduceOp>>& partials) {
  Layout layout(call.mesh(), shape);
  layout.partials = partials;
  for (int64_t d = 0; d < leader.ndim(); ++d) {
    if (d != dim) layout.cuts[d] = leader.cut(d);
  }
  std::vector<int64_t> sizes;
  if (leader.is_cut(dim)) {
    const Cut& cut = leader.cut(dim);
    std::vector<SpecPtr> taken;
    for (const SpecPtr& piece : pieces) {
      if (!skipped(*piece, shape.size())) taken.push_back(piece);
    }
    sizes = joined_sizes(taken, dim, cut.mesh_dims, cut.sizes.size(), shape[dim]);
    layout.cuts[dim] = {cut.mesh_dims, sizes};
  }
  Joined joined;
  joined.result = intern(layout);
  int64_t start = 0;
  for (const SpecPtr& piece : pieces) {
    if (skipped(*piece, shape.size())) {
      joined.pieces.push_back(replicated(call.mesh(), piece->global_shape()));
      continue;
    }
    Layout required = layout;
    const int64_t end = start + piece->global_shape()[dim];
    required.global_shape[dim] = end - start;
    int64_t row = 0;
    for (size_t b = 0; b < sizes.size(); ++b) {
      required.cuts[dim].sizes[b] = std::max<int64_t>(0, std::min(row + sizes[b], end) - std::max(row, start));
      row += sizes[b];
    }
    joined.pieces.push_back(intern(std::move(required)));
    joined.cost += redistribution_cost(*piece, *joined.pieces.back());
    start = end;
  }
  return joined;
}

std::optional<Plan> plan_cat(const OpCall& call) {
  std::vector<SpecPtr> pieces;
  for (const TensorArgument& slot : call.slots()) pieces.push_back(slot.spec);
  const auto shape = *call.output_shapes()[0];
  const int64_t dim = at::maybe_wrap_dim(call.integer("dim"), static_cast<int64_t>(shape.size()));
  // A sum stays lazy only when every piece is one.
  std::vector<std::optional<ReduceOp>> partials(call.mesh()->ndim());
  for (int64_t m = 0; m < call.mesh()->ndim(); ++m) {
    partials[m] = pieces[0]->partial(m);
    for (const SpecPtr& piece : pieces) {
      if (piece->partial(m) != partials[m]) partials[m].reset();
    }
  }
  std::optional<Joined> best;
  std::vector<SpecPtr> tried;
  for (const SpecPtr& piece : pieces) {
    if (skipped(*piece, shape.size()) || std::find(tried.begin(), tried.end(), piece) != tried.end()) continue;
    tried.push_back(piece);
    if (!piece->has_cut() && std::any_of(pieces.begin(), pieces.end(), [](const auto& p) { return p->has_cut(); }))
      continue;
    Layout cuts = piece->layout();
    auto kept = partials;
    for (int64_t m = 0; m < call.mesh()->ndim(); ++m) {
      cuts.partials[m].reset();
      if (cuts.uses(m)) kept[m].reset();
    }
    Joined joined = join_like(call, pieces, *intern(std::move(cuts)), dim, shape, kept);
    if (!best || joined.cost < best->cost) best = std::move(joined);
  }
  Plan plan;
  if (!best) {  // nothing but skipped pieces
    for (const SpecPtr& piece : pieces) plan.inputs.push_back(replicated(call.mesh(), piece->global_shape()));
    plan.outputs = {replicated(call.mesh(), shape)};
    return plan;
  }
  plan.inputs = std::move(best->pieces);
  plan.outputs = {std::move(best->result)};
  return plan;
}

std::optional<Plan> plan_stack(const OpCall& call) {
  const auto shape = *call.output_shapes()[0];
  const auto ndim = static_cast<int64_t>(shape.size());
  Axes axes;
  std::vector<int> dims(ndim - 1);
  for (int d = 0; d + 1 < ndim; ++d) dims[d] = d;
  axes.kinds.assign(ndim - 1, AxisKind::kKeep);
  axes.inputs.assign(call.slots().size(), dims);
  axes.linear.assign(call.slots().size(), PartialUse::kAllTerms);
  dims.insert(dims.begin() + call.dim("dim", ndim), -1);
  axes.outputs = {dims};
  axes.output_shapes = {shape};
  return solve(call, axes);
}

const Register join_rules{
    {.op = "aten::cat",
     .plan = plan_cat,
     .supports =
         "any cut; along a cut dim rows move only where the blocks of the pieces interleave, or where blocks are "
         "balanced again"},
    {.op = "aten::stack", .plan = plan_stack, .supports = "any cut"},
};

}  // namespace
}  // namespace moonhalo
