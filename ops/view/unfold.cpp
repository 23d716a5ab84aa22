// SPDX-License-Identifier: Apache-2.0
// Tensor.unfold: overlapping windows along one dim. A window belongs to the rank that holds its first row; along a cut
// dim the rows that its last windows still need are fetched, and gradients go back the same way.
//
//     rows      |0 1 2 3 4|5 6 7 8|       windows of 3 every 2 rows: 0-2 2-4 4-6 | 6-8
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/ops/support/grown_blocks.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

struct Windows {
  int64_t dim = 0, size = 1, step = 1, count = 0;
  /// The number that begin before `row`.
  int64_t before(int64_t row) const { return std::clamp<int64_t>((row + step - 1) / step, 0, count); }
  /// The rows of these windows.
  Interval rows(const Interval& windows) const {
    return windows.empty() ? Interval{} : Interval{windows.begin * step, (windows.end - 1) * step + size};
  }
};

// Spec of the windows of a tensor of spec `self`.
SpecPtr windows_spec(const SpecPtr& self, at::IntArrayRef shape, const Windows& windows) {
  std::vector<int64_t> source = all_dims(self->ndim());
  source[windows.dim] = -1;
  source.push_back(-1);
  Cut cut = self->cut(windows.dim);
  int64_t row = 0;
  for (int64_t& size : cut.sizes) {
    const int64_t begin = windows.before(row);
    row += size;
    size = windows.before(row) - begin;
  }
  return with_cut(with_cuts_of(self, shape, source), windows.dim, std::move(cut), windows.count);
}

// The rows that every rank's windows need.
std::shared_ptr<const IntervalMap> windows_map(const SpecPtr& self, const SpecPtr& result, const Windows& windows) {
  return std::make_shared<const IntervalMap>(self, [&](int64_t rank) {
    Box box = block_box(*self, rank);
    box[windows.dim] = windows.rows(result->block_range(windows.dim, rank));
    return requests_for(box);
  });
}

// Windows that do not overlap can be written: each row is in one window at most, so what ranks put back does not
// overlap.
at::Tensor own_windows(const std::shared_ptr<const IntervalMap>& map, const Windows& windows,
                       const std::vector<int64_t>& shape, const at::Tensor& block, at::Tensor rows) {
  if (rows.is_alias_of(block)) rows = rows.clone();
  const auto put_back = [map](const at::Tensor& copy, const at::Tensor& original) {
    const at::Tensor held = scatter_add(*map, at::ones_like(copy, at::dtype(at::kDouble)));
    const at::Tensor values = scatter_add(*map, copy.contiguous());
    original.copy_(at::where(held.ne(0), values, original));
  };
  mark_copied(
      rows, [map](const at::Tensor& original) { return gather(*map, original); }, put_back);
  return shape[windows.dim] == 0 ? rows.narrow(windows.dim, 0, 0).unsqueeze(-1).expand(shape)
                                 : rows.unfold(windows.dim, windows.size, windows.step);
}

std::optional<Plan> plan_unfold(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  if (self->ndim() == 0) return unary_plan(call, self, {replicated(call.mesh(), shape)});
  Windows windows{call.dim("dimension", self->ndim()), call.integer("size"), call.integer("step")};
  windows.count = shape[windows.dim];
  if (windows.size == 0 && self->is_cut(windows.dim)) return std::nullopt;
  const SpecPtr result = windows_spec(self, shape, windows);
  Plan plan = unary_plan(call, self, {result});
  if (!self->is_cut(windows.dim)) return plan;
  plan.breaks_alias = true;
  plan.run = [map = windows_map(self, result, windows), windows, shape = result->local_shape(),
              at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor rows = gather(*map, call.tensor(at_self), 0, call.halo_source(at_self));
    if (windows.step >= windows.size) return call.give(own_windows(map, windows, shape, call.tensor(at_self), rows));
    call.give(shape[windows.dim] == 0 ? at::empty(shape, rows.options())
                                      : rows.unfold(windows.dim, windows.size, windows.step).clone());
  };
  return plan;
}

// The cut of the rows is not known. Every boundary between the first rows of two windows leaves the windows where they
// are; of those the nearest to balanced blocks is taken, unless a block would get far more rows than the others.
SpecPtr rows_spec(const SpecPtr& grad, at::IntArrayRef shape, const Windows& windows) {
  std::vector<int64_t> source = all_dims(static_cast<int64_t>(shape.size()));
  source[windows.dim] = -1;
  const int64_t extent = shape[windows.dim];
  return with_cut(with_cuts_of(grad, shape, source), windows.dim,
                  grown_cut(grad->cut(windows.dim), extent, /*start=*/0, windows.step), extent);
}

std::optional<Plan> plan_unfold_backward(const OpCall& call) {
  const auto shape = call.integers("input_sizes");
  const auto ndim = static_cast<int64_t>(shape.size());
  if (ndim == 0) return std::nullopt;
  const SpecPtr grad = without_cuts(resolve_nonlinear(call.spec("grad_in")), {ndim});
  Windows windows{call.dim("dim", ndim), call.integer("size"), call.integer("step")};
  windows.count = grad->global_shape()[windows.dim];
  if (windows.size == 0) return std::nullopt;
  const SpecPtr result = rows_spec(grad, shape, windows);
  Plan plan = unary_plan(call, grad, {result});
  plan.argument_overrides = {{call.arg("input_sizes"), int_list(result->local_shape())}};
  if (!grad->is_cut(windows.dim)) return plan;
  plan.argument_overrides.clear();
  plan.run = [map = windows_map(result, grad, windows), windows, at_grad_in = call.arg("grad_in")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_grad_in);
    const auto& rows = map->needed_shape();
    const at::Tensor own = local.size(windows.dim) == 0
                               ? at::zeros(rows, local.options())
                               : at::unfold_backward(local, rows, windows.dim, windows.size, windows.step);
    const at::Tensor result = scatter_add(*map, own);
    call.give(result.is_alias_of(local) ? result.clone() : result);
  };
  return plan;
}

const char* const kUnfoldAny = "any cut";

const Register unfold_rules{
    {.op = {"aten::unfold", "aten::unfold_copy"},
     .plan = plan_unfold,
     .supports = kUnfoldAny,
     .traffic = Traffic::kHalo},
    {.op = "aten::unfold_backward", .plan = plan_unfold_backward, .supports = kUnfoldAny, .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
