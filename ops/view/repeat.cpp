// SPDX-License-Identifier: Apache-2.0
// repeat, roll, flip, rot90 and constant padding: along a cut dim each says which rows of the input an output block
// reads.
//
//     roll by 2     output [o, e) reads [o - 2, e - 2), round the ends
//     flip          output [o, e) reads [extent - e, extent - o) backwards
//     repeat by 3   blocks grow threefold: output [3 o, 3 e) reads itself modulo the extent
//     pad           the first and the last block grow (or shrink); nothing moves, unless one would be far too long
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

using MapPtr = std::shared_ptr<const IntervalMap>;

/// The map from the blocks of `from` to what `request(dim, rows)` names for the cut dims of a result in blocks of
/// `to`; uncut dims are taken whole. Null when no dim is cut.
MapPtr map_rows(const SpecPtr& from, const SpecPtr& to, const std::vector<int64_t>& dims,
                const std::function<HaloRequest(int64_t dim, const Interval& rows)>& request) {
  if (std::none_of(dims.begin(), dims.end(), [&](int64_t d) { return from->is_cut(d); })) return nullptr;
  const int64_t added = to->ndim() - from->ndim();
  return std::make_shared<const IntervalMap>(from, [&](int64_t rank) {
    std::vector<HaloRequest> requests = requests_for(block_box(*from, rank));
    for (const int64_t d : dims) {
      if (from->is_cut(d)) requests[d] = request(d, to->block_range(d + added, rank));
    }
    return requests;
  });
}

std::optional<Plan> plan_repeat(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const auto repeats = call.integers("repeats");
  const int64_t added = static_cast<int64_t>(shape.size()) - self->ndim();
  Layout layout(call.mesh(), shape);
  layout.partials = self->layout().partials;
  std::vector<int64_t> local_repeats = repeats, mapped;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    if (!self->is_cut(d)) continue;
    Cut cut = self->cut(d);
    for (int64_t& size : cut.sizes) size *= repeats[d + added];
    layout.cuts[d + added] = std::move(cut);
    if (repeats[d + added] != 1) mapped.push_back(d), local_repeats[d + added] = 1;
  }
  const SpecPtr result = intern(std::move(layout));
  const MapPtr map = map_rows(self, result, mapped, [](int64_t, const Interval& rows) {
    return HaloRequest{rows, Boundary::kCircular};
  });
  Plan plan = unary_plan(call, self, {result});
  if (!map) return plan;
  plan.run = [map, local_repeats, at_self = call.arg("self")](LocalCall& call) {
    call.give(gather(*map, call.tensor(at_self)).repeat(local_repeats));
  };
  return plan;
}

// Says which row comes how often: a list as long as the counts add up to, the same on every rank.
std::optional<Plan> plan_repeat_counts(const OpCall& call) {
  const SpecPtr& repeats = call.spec("repeats");
  return unary_plan(call, replicated(call.mesh(), repeats->global_shape()), {});
}

std::optional<Plan> plan_roll(const OpCall& call) {
  SpecPtr self = resolve_nonlinear(call.spec("self"));
  const auto shifts = call.integers("shifts");
  auto dims = call.integers("dims");
  TORCH_CHECK_VALUE(!shifts.empty() && shifts.size() == (dims.empty() ? 1 : dims.size()), "roll: ", shifts.size(),
                    " shifts for ", dims.size(), " dims\n  fix   give one shift per dim, or one shift and no dims");
  if (dims.empty()) {
    if (self->ndim() > 1) self = without_cuts(self, all_dims(self->ndim()));  // rolls the flattened tensor
    if (self->ndim() != 1) return unary_plan(call, self, {self});
    dims = {0};
  }
  std::vector<int64_t> shift(self->ndim(), 0);
  std::vector<int64_t> local_shifts, local_dims, mapped;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t d = at::maybe_wrap_dim(dims[i], self->ndim());
    shift[d] += shifts[i];
    if (self->is_cut(d))
      mapped.push_back(d);
    else
      local_shifts.push_back(shifts[i]), local_dims.push_back(d);
  }
  const MapPtr map = map_rows(self, self, mapped, [&](int64_t d, const Interval& rows) {
    const int64_t by = self->global_shape()[d] == 0 ? 0 : shift[d] % self->global_shape()[d];
    return HaloRequest{rows.shifted(-by), Boundary::kCircular};
  });
  Plan plan = unary_plan(call, self, {self});
  if (!map) return plan;
  plan.run = [map, local_shifts, local_dims, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    at::Tensor rolled = gather(*map, local);
    if (!local_dims.empty()) rolled = rolled.roll(local_shifts, local_dims);
    call.give(rolled.is_alias_of(local) ? rolled.clone() : rolled);
  };
  return plan;
}

std::optional<Plan> plan_flip(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  std::vector<int64_t> local_dims, mapped;
  for (int64_t d : call.integers("dims")) {
    d = at::maybe_wrap_dim(d, self->ndim());
    auto& dims = self->is_cut(d) ? mapped : local_dims;
    TORCH_CHECK_VALUE(std::find(dims.begin(), dims.end(), d) == dims.end(), call.name(), ": dim ", d,
                      " appears more than once\n  have  ", call.describe());
    dims.push_back(d);
  }
  const MapPtr map = map_rows(self, self, mapped, [&](int64_t d, const Interval& rows) {
    const int64_t extent = self->global_shape()[d];
    return HaloRequest{{extent - rows.end, extent - rows.begin}, Boundary::kZero, true};
  });
  Plan plan = unary_plan(call, self, {self});
  if (!map) return plan;
  plan.run = [map, local_dims, at_self = call.arg("self")](LocalCall& call) {
    call.give(gather(*map, call.tensor(at_self)).flip(local_dims));
  };
  return plan;
}

// A quarter turn is a flip of one of the two dims and their exchange.
std::optional<Plan> plan_rot90(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  auto dims = call.integers("dims");
  TORCH_CHECK_VALUE(self->ndim() >= 2 && dims.size() == 2, call.name(),
                    ": a turn takes two dims of a tensor of two or more\n  have  ", call.describe());
  for (int64_t& d : dims) d = at::maybe_wrap_dim(d, self->ndim());
  TORCH_CHECK_VALUE(dims[0] != dims[1], call.name(), ": both dims are ", dims[0], "\n  have  ", call.describe());
  const int64_t turns = ((call.integer("k") % 4) + 4) % 4;
  const std::vector<int64_t> flipped = turns == 0   ? std::vector<int64_t>{}
                                       : turns == 1 ? std::vector<int64_t>{dims[1]}
                                       : turns == 2 ? dims
                                                    : std::vector<int64_t>{dims[0]};
  std::vector<int64_t> source = all_dims(self->ndim()), local_dims, mapped;
  std::vector<int64_t> shape = self->global_shape();
  if (turns % 2 == 1) {
    std::swap(source[dims[0]], source[dims[1]]);
    std::swap(shape[dims[0]], shape[dims[1]]);
  }
  for (const int64_t d : flipped) (self->is_cut(d) ? mapped : local_dims).push_back(d);
  const MapPtr map = map_rows(self, self, mapped, [&](int64_t d, const Interval& rows) {
    const int64_t extent = self->global_shape()[d];
    return HaloRequest{{extent - rows.end, extent - rows.begin}, Boundary::kZero, true};
  });
  Plan plan = unary_plan(call, self, {with_cuts_of(self, shape, source)});
  if (!map) return plan;
  plan.run = [map, local_dims, source, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    call.give(gather(*map, local).flip(local_dims).permute(source));
  };
  return plan;
}

// Blocks of zeros or another value beyond the ends; rows of the input move only where blocks are balanced again.
std::optional<Plan> plan_constant_pad(const OpCall& call) {
  const bool zero = call.value("value").toScalar().equal(0);
  const SpecPtr self = zero ? resolve_nonlinear(call.spec("self")) : without_partial(call.spec("self"));
  const auto shape = *call.output_shapes()[0];
  const auto pad = call.integers("pad");
  std::vector<int64_t> before(self->ndim(), 0);
  Layout layout = self->layout();
  layout.global_shape = shape;
  for (int64_t d = 0; d < self->ndim(); ++d) {
    const size_t at = 2 * static_cast<size_t>(self->ndim() - 1 - d);
    if (at < pad.size()) before[d] = pad[at];
    if (self->is_cut(d)) layout.cuts[d].sizes = padded_sizes(self->cut(d).sizes, before[d], shape[d]);
  }
  const SpecPtr padded = intern(std::move(layout));
  Plan plan = unary_plan(call, self, {padded});
  if (!self->has_cut()) return plan;
  const auto map = std::make_shared<const IntervalMap>(self, [&](int64_t rank) {
    std::vector<HaloRequest> requests;
    for (int64_t d = 0; d < self->ndim(); ++d) requests.push_back({padded->block_range(d, rank).shifted(-before[d])});
    return requests;
  });
  plan.run = [map, at_self = call.arg("self"), at_value = call.arg("value")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    const at::Tensor result = gather(*map, local, call.value(at_value).toScalar());
    call.give(result.is_alias_of(local) ? result.clone(at::MemoryFormat::Contiguous) : result);
  };
  return plan;
}

const Register repeat_rules{
    {.op = "aten::repeat",
     .plan = plan_repeat,
     .supports = "any cut; blocks of a repeated cut dim grow in the same way",
     .traffic = Traffic::kHalo},
    {.op = "aten::repeat_interleave.Tensor",
     .plan = plan_repeat_counts,
     .supports = "the counts are gathered; rows are then picked as index_select does"},
    {.op = "aten::roll",
     .plan = plan_roll,
     .supports = "any cut; without dims a tensor of several dims is gathered",
     .traffic = Traffic::kHalo},
    {.op = "aten::flip", .plan = plan_flip, .supports = "any cut", .traffic = Traffic::kHalo},
    {.op = "aten::rot90", .plan = plan_rot90, .supports = "any cut", .traffic = Traffic::kHalo},
    {.op = "aten::constant_pad_nd",
     .plan = plan_constant_pad,
     .supports = "any cut; the outer blocks grow or shrink, or blocks are balanced again",
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
