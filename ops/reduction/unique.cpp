// SPDX-License-Identifier: Apache-2.0
// Sets of values. Every rank makes the set of its block, only these are sent, and every rank joins them into the
// same whole: the set is replicated, the places of the elements in it stay cut as the elements are.
#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/ops/support/all_gather_lists.h"
#include "moonhalo/ops/support/reductions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

using Dims = std::vector<int64_t>;

struct Unique {
  bool consecutive = false;  // only neighbours are joined
  bool inverse = false;      // places are required
  bool counts = false;
  int64_t dim = -1;  // rows of this dim are compared, or elements (-1)
};

struct Found {
  at::Tensor values, inverse, counts;
};

Found find_unique(const at::Tensor& x, const Unique& how) {
  Found found;
  if (how.dim >= 0) {
    std::tie(found.values, found.inverse, found.counts) = how.consecutive
                                                              ? at::unique_dim_consecutive(x, how.dim, true, true)
                                                              : at::unique_dim(x, how.dim, true, true, true);
  } else {
    std::tie(found.values, found.inverse, found.counts) =
        how.consecutive ? at::unique_consecutive(x, true, true) : at::_unique2(x, true, true, true);
  }
  return found;
}

// The answer for no rows.
Found found_nothing(const at::Tensor& x, const Unique& how) {
  const at::Tensor none = at::empty({0}, x.options().dtype(at::kLong));
  if (how.dim >= 0) return {x, none, none};
  return {at::empty({0}, x.options()), at::empty(x.sizes(), none.options()), none};
}

// The set of this block, joined with those of the other ranks along `mesh_dims`.
Found join(const at::Tensor& x, const Unique& how, const MeshPtr& mesh, const Dims& mesh_dims) {
  const bool empty = how.dim >= 0 ? x.size(how.dim) == 0 : x.numel() == 0;
  const Found mine = empty ? found_nothing(x, how) : find_unique(x, how);
  const int64_t dim = std::max<int64_t>(how.dim, 0);
  const GatheredLists values = all_gather_lists(mine.values.movedim(dim, 0), mesh, mesh_dims);
  const GatheredLists counts = all_gather_lists(mine.counts, mesh, mesh_dims);
  Found joined = find_unique(values.all.movedim(0, dim), how);
  const at::Tensor places = joined.inverse.flatten();
  joined.counts = at::zeros_like(joined.counts).index_add_(0, places, counts.all);
  joined.inverse = places.index_select(0, mine.inverse.flatten() + values.begin).view_as(mine.inverse);
  return joined;
}

// Neighbours in the flattened tensor stand together in blocks of its first dim alone.
SpecPtr in_rows(const SpecPtr& spec) {
  Layout layout(spec->mesh(), spec->global_shape());
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    if (!spec->is_cut(d)) continue;
    const Cut& cut = spec->cut(d);
    const auto blocks = static_cast<int64_t>(cut.sizes.size());
    layout.cuts[0] = d == 0 ? cut : Cut{cut.mesh_dims, balanced_sizes(spec->global_shape()[0], blocks)};
    break;
  }
  return intern(std::move(layout));
}

Plan plan_set(const OpCall& call, const Unique& how) {
  const SpecPtr from = without_partial(call.spec("self"));
  SpecPtr required = how.dim < 0 && how.consecutive ? in_rows(from) : from;
  if (how.dim >= 0) {
    Dims others = all_dims(from->ndim());
    others.erase(others.begin() + how.dim);
    required = without_cuts(from, others);
  }
  Dims mesh_dims;
  for (int64_t d = 0; d < from->ndim(); ++d) {
    const Dims& cut = required->cut(d).mesh_dims;
    mesh_dims.insert(mesh_dims.end(), cut.begin(), cut.end());
  }
  Plan plan{.inputs = {required}, .outputs = {}};
  if (mesh_dims.empty() || from->global_numel() == 0) return plan;
  SpecPtr places = required;
  if (how.dim >= 0) {
    Layout layout(from->mesh(), {from->global_shape()[how.dim]});
    layout.cuts[0] = required->cut(how.dim);
    places = intern(std::move(layout));
  }
  // The size of the set is known after the run only, which says itself how its results are held.
  plan.outputs.resize(call.op.schema().returns().size());
  plan.run = [=, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    const Found found = join(x, how, places->mesh(), mesh_dims);
    const auto whole = [&](const at::Tensor& t) { return wrap_new(t, replicated(places->mesh(), t.sizes())); };
    const at::Tensor none = at::empty({0}, x.options().dtype(at::kLong));
    const size_t results = call.op.schema().returns().size();
    call.give(whole(found.values), how.inverse ? wrap_new(found.inverse, places) : whole(none));
    if (results == 3) call.add(whole(how.counts ? found.counts : none));
  };
  return plan;
}

std::optional<Plan> plan_unique(const OpCall& call) {
  return plan_set(call, {.inverse = call.flag("return_inverse"),
                         .counts = call.has("return_counts") && call.flag("return_counts")});
}

// The kernels that compare rows give places and counts, asked or not.
std::optional<Plan> plan_unique_rows(const OpCall& call) {
  const int64_t dim = call.dim("dim", call.spec("self")->ndim());
  const bool consecutive = call.op.operator_name().name != "aten::unique_dim";
  return plan_set(call, {.consecutive = consecutive, .inverse = true, .counts = true, .dim = dim});
}

std::optional<Plan> plan_consecutive(const OpCall& call) {
  if (call.given("dim")) return plan_unique_rows(call);
  return plan_set(call,
                  {.consecutive = true, .inverse = call.flag("return_inverse"), .counts = call.flag("return_counts")});
}

constexpr auto* kUniqueSupports = "any cut; places stay cut";

const Register unique_rules{
    {.op = {"aten::_unique", "aten::_unique2"},
     .plan = plan_unique,
     .supports = kUniqueSupports,
     .traffic = Traffic::kDataDependent},
    {.op = {"aten::unique_dim", "aten::unique_dim_consecutive"},
     .plan = plan_unique_rows,
     .supports = kUniqueSupports,
     .traffic = Traffic::kDataDependent},
    {.op = "aten::unique_consecutive",
     .plan = plan_consecutive,
     .supports = kUniqueSupports,
     .traffic = Traffic::kDataDependent},
};

}  // namespace
}  // namespace moonhalo
