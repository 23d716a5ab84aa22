// SPDX-License-Identifier: Apache-2.0
// `view` and its kin: the same elements in the same order under other dims.
//
// The dims of both shapes fall into groups of equal extent, as [4, 9, 2, 3] -> [4, 18, 3] does into 4 | 9 2 -> 18 | 3.
// Within a group only the outermost dim can be cut, for its blocks are runs of the elements on both sides:
//
//     [9, 2] cut 5 + 4  ->  [18] cut 10 + 8         every boundary falls on a row of both: nothing moves
//     [18] cut 7 + 11   ->  [9, 2] cut 4 + 5        boundary 7 is within a row: it moves to 8 first
//     [9, 4] cut 9 | 2 + 2 -> [36]                  an inner cut becomes one of the outermost dim first
//
// An outermost dim that is too short to be shared out is one of parts (packed_dim.h), as queries, keys and values are:
//
//     [48] cut 24 + 24  ->  [3, 4, 4] cut 3 | 2 + 2 | 4     and back
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/ops/support/packed_dim.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

struct Group {
  std::vector<int64_t> from,
      to;  // dims of the input and of the result with the same product of sizes
};

// Neither shape has a zero.
std::vector<Group> groups_of(at::IntArrayRef from, at::IntArrayRef to) {
  std::vector<Group> groups;
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    Group group;
    int64_t a = 1, b = 1;
    const auto take_from = [&] { a *= from[i], group.from.push_back(static_cast<int64_t>(i++)); };
    const auto take_to = [&] { b *= to[j], group.to.push_back(static_cast<int64_t>(j++)); };
    if (i < from.size()) take_from();
    if (j < to.size()) take_to();
    while (a != b) a < b ? take_from() : take_to();
    groups.push_back(std::move(group));
  }
  return groups;
}

// Boundaries of `sizes` (in units of `unit` elements) moved to the nearest multiples of `grain` elements; in grains.
std::vector<int64_t> on_grains(const std::vector<int64_t>& sizes, int64_t unit, int64_t grain) {
  std::vector<int64_t> result;
  int64_t end = 0, begin_grain = 0;
  for (const int64_t size : sizes) {
    end += size * unit;
    const int64_t end_grain = (end + grain / 2) / grain;
    result.push_back(end_grain - begin_grain);
    begin_grain = end_grain;
  }
  return result;
}

struct Regrouped {
  Layout required, result;
};

void regroup(const ShardSpec& self, const Group& group, Regrouped& layouts) {
  const auto& from_shape = self.global_shape();
  const auto& to_shape = layouts.result.global_shape;
  if (group.from.size() == 1 && group.to.size() == 1) {
    layouts.result.cuts[group.to[0]] = self.cut(group.from[0]);
    return;
  }
  int64_t extent = 1, outer_from = -1, outer_to = -1;
  for (const int64_t d : group.from) {
    extent *= from_shape[d];
    if (outer_from < 0 && from_shape[d] > 1) outer_from = d;
  }
  for (const int64_t d : group.to) {
    if (outer_to < 0 && to_shape[d] > 1) outer_to = d;
  }
  std::vector<int64_t> inner_mesh_dims;
  for (const int64_t d : group.from) {
    if (d == outer_from) continue;
    for (const int64_t m : self.cut(d).mesh_dims) inner_mesh_dims.push_back(m);
    layouts.required.cuts[d] = {};
  }
  if (outer_from < 0) return;
  const int64_t unit = extent / from_shape[outer_from], unit_to = extent / to_shape[outer_to];
  const int64_t grain = std::lcm(unit, unit_to);
  if (extent == grain) {
    layouts.required.cuts[outer_from] = {};
    return;
  }
  Cut cut = self.cut(outer_from);
  std::vector<int64_t> grains = cut ? on_grains(cut.sizes, unit, grain) : std::vector<int64_t>{extent / grain};
  for (const int64_t m : inner_mesh_dims) {
    std::vector<int64_t> finer;
    for (const int64_t block : grains) {
      for (const int64_t part : balanced_sizes(block, self.mesh()->size(m))) finer.push_back(part);
    }
    grains = std::move(finer);
    cut.mesh_dims.push_back(m);
  }
  // Nested cuts are written outermost mesh dim first, in the order of the mesh.
  std::sort(cut.mesh_dims.begin(), cut.mesh_dims.end());
  if (!cut) return;
  const auto in_rows = [&](int64_t row) {
    Cut rows{cut.mesh_dims, grains};
    for (int64_t& size : rows.sizes) size = size * grain / row;
    return rows;
  };
  layouts.required.cuts[outer_from] = in_rows(unit);
  layouts.result.cuts[outer_to] = in_rows(unit_to);
}

// A group of one dim on one side, and of several on the other: the first is too short to be cut, so another one is.
struct Parts {
  bool splits = false;              // the single dim is that of the input
  int64_t single = 0, cut = 0;      // the single dim, and that of the others which is cut
  int64_t n = 1, below = 1;         // products of the dims before and behind the latter
  std::vector<int64_t> sizes = {};  // blocks of the result's cut
};

// The second of the several dims is cut. Where it is the last, operators may sum over it: then only if ranks would have
// nothing to do otherwise.
std::optional<Parts> split_of(const ShardSpec& self, const Group& group, at::IntArrayRef to_shape) {
  if (group.from.size() != 1 || !self.is_cut(group.from[0])) return std::nullopt;
  const Cut& cut = self.cut(group.from[0]);
  std::vector<int64_t> dims;
  for (const int64_t d : group.to) {
    if (to_shape[d] > 1) dims.push_back(d);
  }
  if (dims.size() < 2) return std::nullopt;
  const int64_t first = to_shape[dims[0]], second = to_shape[dims[1]];
  const auto blocks = static_cast<int64_t>(cut.sizes.size());
  const bool short_first = dims.size() > 2 ? divides_badly(first, blocks) : first < blocks;
  if (!short_first || divides_badly(second, blocks)) return std::nullopt;
  return Parts{true,
               group.from[0],
               dims[1],
               first,
               self.global_shape()[group.from[0]] / (first * second),
               proportional_sizes(cut.sizes, second)};
}

// The inverse.
std::optional<Parts> merge_of(const ShardSpec& self, const Group& group, at::IntArrayRef to_shape) {
  if (group.to.size() != 1) return std::nullopt;
  Parts parts{.single = group.to[0], .cut = -1};
  for (const int64_t d : group.from) {
    if (!self.is_cut(d)) {
      (parts.cut < 0 ? parts.n : parts.below) *= self.global_shape()[d];
    } else if (std::exchange(parts.cut, d) >= 0) {
      return std::nullopt;
    }
  }
  if (parts.cut < 0 || parts.n == 1) return std::nullopt;
  const std::vector<int64_t>& sizes = self.cut(parts.cut).sizes;
  if (!divides_badly(parts.n, static_cast<int64_t>(sizes.size()))) return std::nullopt;
  parts.sizes = proportional_sizes(sizes, to_shape[parts.single]);
  return parts;
}

// `self` with the dims of a group made one, cut so.
SpecPtr with_single_dim(const ShardSpec& self, const Group& group, Cut cut) {
  std::vector<int64_t> shape = self.global_shape();
  std::vector<Cut> cuts = self.layout().cuts;
  const auto first = group.from.front(), behind = group.from.back() + 1;
  shape[first] = c10::sum_integers(cut.sizes);
  cuts[first] = std::move(cut);
  shape.erase(shape.begin() + first + 1, shape.begin() + behind);
  cuts.erase(cuts.begin() + first + 1, cuts.begin() + behind);
  Layout layout(self.mesh(), shape);
  layout.cuts = std::move(cuts);
  layout.partials = self.layout().partials;
  return intern(std::move(layout));
}

// Moves rows between the single dim and the parts. `in_parts`: the block's shape with the parts' dims as n and width.
Run move_parts(std::shared_ptr<const PackedDim> packed, bool splits, std::vector<int64_t> in_parts,
               std::vector<int64_t> shape, Arg at_self) {
  const auto to_parts = [packed](const at::Tensor& single) { return packed->unpack(single); };
  const auto to_single = [packed, in_parts](const at::Tensor& parts) { return packed->pack(parts.reshape(in_parts)); };
  return [=](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    const at::Tensor copy = splits ? to_parts(local) : to_single(local);
    if (!splits) mark_merged(!local.is_contiguous());
    mark_copied(
        copy, [=](const at::Tensor& original) { return splits ? to_parts(original) : to_single(original); },
        [=](const at::Tensor& copied, const at::Tensor& original) {
          original.copy_((splits ? to_single(copied) : to_parts(copied)).view(original.sizes()));
        });
    call.give(copy.view(shape));
  };
}

// The plan of a view with one group of parts, whose other dims stay where they are.
std::optional<Plan> plan_parts(const OpCall& call, const SpecPtr& self, const std::vector<int64_t>& shape) {
  if (self->has_stored() || output_cut() == OutputCut::kKeep) return std::nullopt;
  Regrouped layouts{self->layout(), Layout(call.mesh(), shape)};
  std::optional<Parts> parts;
  Group its_group;
  for (Group& group : groups_of(self->global_shape(), shape)) {
    std::optional<Parts> found = split_of(*self, group, shape);
    if (!found) found = merge_of(*self, group, shape);
    if (!found) {
      regroup(*self, group, layouts);
    } else if (parts) {
      return std::nullopt;
    } else {
      parts = std::move(found);
      its_group = std::move(group);
    }
  }
  if (!parts || layouts.required.cuts != self->layout().cuts) return std::nullopt;
  const Cut& cut = self->cut(parts->splits ? parts->single : parts->cut);
  const Cut result_cut{cut.mesh_dims, parts->sizes};
  layouts.result.cuts[parts->splits ? parts->cut : parts->single] = result_cut;
  const SpecPtr result = intern(std::move(layouts.result));
  std::vector<int64_t> widths = parts->splits ? parts->sizes : cut.sizes;
  for (int64_t& width : widths) width *= parts->below;
  const SpecPtr single = parts->splits ? self : with_single_dim(*self, its_group, result_cut);
  const int64_t dim = its_group.from[0];
  const SpecPtr in_parts = with_parts(single, dim, parts->n, std::move(widths));
  Plan plan = unary_plan(call, self, {result});
  plan.breaks_alias = true;
  plan.run = move_parts(std::make_shared<const PackedDim>(single, in_parts, dim), parts->splits,
                        in_parts->local_shape(), result->local_shape(), call.arg("self"));
  return plan;
}

std::optional<Plan> plan_view(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const std::vector<int64_t> shape = *call.output_shapes()[0];
  if (shape != self->global_shape() && self->global_numel() > 0) {
    if (auto plan = plan_parts(call, self, shape)) return plan;
  }
  Regrouped layouts{self->layout(), Layout(call.mesh(), shape)};
  bool merges = false;
  if (shape == self->global_shape()) {
    layouts.result = self->layout();
  } else if (self->global_numel() == 0) {
    layouts.required = Layout(call.mesh(), self->global_shape());
  } else {
    for (const Group& group : groups_of(self->global_shape(), shape)) {
      regroup(*self, group, layouts);
      merges |= std::count_if(group.from.begin(), group.from.end(),
                              [&](int64_t d) { return self->global_shape()[d] > 1; }) > 1;
    }
  }
  const SpecPtr result = intern(std::move(layouts.result));
  Plan plan = unary_plan(call, intern(std::move(layouts.required)), {result});
  // A block of a narrowed tensor has gaps that the global tensor does not have, so `view` may have to copy.
  const bool fresh = call.name() == "aten::view_copy" || call.name() == "aten::_reshape_copy";
  plan.run = [shape = result->local_shape(), fresh, merges, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    at::Tensor viewed = local.is_contiguous() ? local.view(shape) : local.reshape(shape);
    if (fresh) {
      if (viewed.is_alias_of(local)) viewed = viewed.clone();
    } else {
      const bool gaps = !viewed.is_alias_of(local);
      if (merges) mark_merged(gaps);
      if (gaps) {
        const at::Tensor dense = local.clone(at::MemoryFormat::Contiguous);
        mark_copied(dense);
        viewed = dense.view(shape);
      }
    }
    call.give(std::move(viewed));
  };
  return plan;
}

std::optional<Plan> plan_view_dtype(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const std::vector<int64_t> shape = *call.output_shapes()[0];
  const int64_t last = self->ndim() - 1;
  const bool resized = shape != self->global_shape();
  const SpecPtr required = resized ? without_cuts(self, {last}) : self;
  std::vector<int64_t> source = all_dims(self->ndim());
  if (resized) source[last] = -1;
  Plan plan = unary_plan(call, required, {with_cuts_of(required, shape, source)});
  if (plan.breaks_alias || resized) {
    // Bytes are regrouped along the last dim, which therefore has to be dense.
    plan.breaks_alias = true;
    plan.run = [at_self = call.arg("self"), at_dtype = call.arg("dtype")](LocalCall& call) {
      const at::Tensor dense = call.tensor(at_self).clone(at::MemoryFormat::Contiguous);
      const auto dtype = call.value(at_dtype).toScalarType();
      mark_copied(dense);
      call.give(dense.view(dtype));
    };
  }
  return plan;
}

const char* const kSupports =
    "any cut; block boundaries are moved to rows of the outermost dim of a group, or of the next if that is too short";

const Register view_rules{
    {.op = {"aten::view", "aten::view_copy", "aten::_reshape_copy", "aten::_unsafe_view", "aten::_reshape_alias"},
     .plan = plan_view,
     .supports = kSupports,
     .traffic = Traffic::kHalo},
    {.op = {"aten::view.dtype", "aten::view_copy.dtype"},
     .plan = plan_view_dtype,
     .supports = "any cut off the last dim"},
};

}  // namespace
}  // namespace moonhalo
