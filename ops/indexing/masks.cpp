// SPDX-License-Identifier: Apache-2.0
// Elements that a mask picks: masked_select, nonzero, x[mask], and the inverses masked_scatter and x[mask] = values.
//
// The number of elements depends on the values, so results are cut unevenly, by counts that the ranks exchange:
//
//     mask   |1 0 1 1|0 1 0|      x[mask]   |x0 x2 x3|x5|
//
// Elements stand in row-major order, so a tensor that is cut in an inner dim is first cut in its first dim instead.
// A tensor that is written keeps its own cut. Then the place of each true element among all is counted.
#include "moonhalo/ops/indexing/masks.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/ops/support/mask_positions.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// Wraps the rows that this rank has picked: dim `dim` of the result is cut as the counts say.
at::Tensor wrap_picked(const at::Tensor& local, Layout layout, int64_t dim, const Cut& cut) {
  if (cut) {
    layout.cuts[dim] = {cut.mesh_dims,
                        counts_of_blocks(*replicated(layout.mesh, {}), cut, local.size(dim), local.device())};
    const auto& sizes = layout.cuts[dim].sizes;
    layout.global_shape[dim] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  } else {
    layout.cuts[dim] = {};
    layout.global_shape[dim] = local.size(dim);
  }
  return wrap_new(local, intern(std::move(layout)));
}

// `spec`'s cuts on a tensor of shape `shape` that broadcasts with it, aligned at the last dim; Partial dropped.
SpecPtr aligned(const SpecPtr& spec, at::IntArrayRef shape) {
  const auto ndim = static_cast<int64_t>(shape.size());
  std::vector<int64_t> source(ndim, -1);
  for (int64_t d = 0; d < ndim; ++d) {
    const int64_t from = d - ndim + spec->ndim();
    if (from >= 0 && spec->global_shape()[from] == shape[d]) source[d] = from;
  }
  return with_cuts_of(without_partial(spec), shape, source);
}

std::vector<int64_t> broadcast_shape(const OpCall& call, const SpecPtr& a, const SpecPtr& b) {
  const size_t ndim = std::max(a->ndim(), b->ndim());
  std::vector<int64_t> shape(ndim, 1);
  for (const SpecPtr& spec : {a, b}) {
    for (int64_t d = 0; d < spec->ndim(); ++d) {
      int64_t& extent = shape[ndim - spec->ndim() + d];
      const int64_t size = spec->global_shape()[d];
      TORCH_CHECK_VALUE(extent == size || extent == 1 || size == 1, call.name(), ": shapes ",
                        shape_string(a->global_shape()), " and ", shape_string(b->global_shape()),
                        " do not broadcast\n  have  ", call.describe());
      if (extent == 1) extent = size;
    }
  }
  return shape;
}

void check_mask(const OpCall& call) {
  const TensorArgument& slot = call.tensor("mask");
  TORCH_CHECK_VALUE(is_mask(slot), call.name(), ": the mask holds ", slot.dtype, ", not bool\n  have  ",
                    call.describe(), "\n  fix   compare with a number, or convert the mask to bool");
}

std::optional<Plan> plan_masked_select(const OpCall& call) {
  check_mask(call);
  const SpecPtr self = resolve_nonlinear(call.spec("self")), mask = without_partial(call.spec("mask"));
  const auto shape = broadcast_shape(call, self, mask);
  const auto ndim = static_cast<int64_t>(shape.size());
  const SpecPtr both = cut_in_front(aligned(self->has_cut() ? self : mask, shape), 0, ndim);
  Layout values = aligned(both, self->global_shape())->layout(), result(call.mesh(), {0});
  for (int64_t m = 0; m < call.mesh()->ndim(); ++m) {
    if (!both->layout().uses(m)) values.partials[m] = result.partials[m] = self->partial(m);
  }
  Plan plan;
  plan.inputs = {intern(std::move(values)), aligned(both, mask->global_shape())};
  plan.outputs = {nullptr};
  plan.run = [both, result, ndim](LocalCall& call) {
    call.run();
    call.give(wrap_picked(call.result(), result, 0, front_cut(*both, 0, ndim)));
  };
  return plan;
}

// The rows of nonzero that this rank owns, in global indices.
at::Tensor nonzero_rows(const at::Tensor& local, const ShardSpec& self) {
  at::Tensor rows = local.nonzero();
  return rows + at::tensor(self.offsets(), rows.options());
}

std::optional<Plan> plan_nonzero(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const int64_t ndim = self->ndim();
  const SpecPtr required = cut_in_front(self, 0, ndim);
  Plan plan = unary_plan(call, required, {nullptr});
  plan.run = [required, ndim, layout = Layout(call.mesh(), {0, ndim}), at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor rows = nonzero_rows(call.tensor(at_self), *required);
    call.give(wrap_picked(rows, layout, 0, front_cut(*required, 0, ndim)));
  };
  return plan;
}

// The number of rows is given: each rank puts its own where they belong, and the result stays a sum.
std::optional<Plan> plan_nonzero_static(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const int64_t ndim = self->ndim(), size = call.integer("size"), fill = call.integer("fill_value");
  TORCH_CHECK_VALUE(size >= 0, call.name(), ": a size of ", size, " rows\n  have  ", call.describe());
  const SpecPtr required = cut_in_front(self, 0, ndim);
  Layout result(call.mesh(), {size, ndim});
  const Cut cut = front_cut(*required, 0, ndim);
  for (const int64_t m : cut.mesh_dims) result.partials[m] = ReduceOp::kSum;
  Plan plan = unary_plan(call, required, {intern(std::move(result))});
  if (!cut) return plan;
  plan.run = [required, cut, size, fill, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor rows = nonzero_rows(call.tensor(at_self), *required);
    const auto counts = counts_of_blocks(*required, cut, rows.size(0), rows.device());
    const int64_t mine = block_of(*required->mesh(), cut, required->mesh()->rank());
    const int64_t start = std::accumulate(counts.begin(), counts.begin() + mine, int64_t{0});
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    at::Tensor placed = at::zeros({size, rows.size(1)}, rows.options());
    const int64_t taken = std::clamp<int64_t>(size - start, 0, rows.size(0));
    if (taken > 0) placed.narrow(0, start, taken).copy_(rows.narrow(0, 0, taken));
    if (mine == 0 && total < size) placed.narrow(0, total, size - total).fill_(fill);
    call.give(std::move(placed));
  };
  return plan;
}

// Rows [start, start + count of a rank) of `dim` go to each rank, where the counts are known only now; other dims of
// the source stay as they are.
at::Tensor fetch_run(const at::Tensor& local, const SpecPtr& source, int64_t dim, const Cut& cut,
                     const std::vector<int64_t>& counts) {
  const TrafficScope moving(Traffic::kDataDependent);
  const IntervalMap map(source, [&](int64_t rank) {
    const int64_t block = block_of(*source->mesh(), cut, rank);
    const int64_t start = std::accumulate(counts.begin(), counts.begin() + block, int64_t{0});
    std::vector<HaloRequest> requests = requests_for(block_box(*source, rank));
    requests[dim] = {.rows = {start, start + counts[block]}};
    return requests;
  });
  return gather(map, local);
}

std::optional<Plan> plan_masked_scatter(const OpCall& call) {
  check_mask(call);
  const bool in_place = call.writes("self");
  const SpecPtr self = without_partial(call.spec("self")), mask = without_partial(call.spec("mask"));
  const SpecPtr source = without_partial(call.spec("source"));
  const auto shape = broadcast_shape(call, self, mask);
  TORCH_CHECK_VALUE(!in_place || shape == self->global_shape(), call.name(), ": a mask of shape ",
                    shape_string(mask->global_shape()), " does not fit ", shape_string(self->global_shape()),
                    "\n  have  ", call.describe());
  const SpecPtr both = aligned(self->has_cut() || in_place ? self : mask, shape);
  const auto ndim = static_cast<int64_t>(shape.size());
  const SpecPtr front = cut_in_front(both, 0, ndim);
  const Cut cut = front_cut(*front, 0, ndim);
  // Runs of a cut source are fetched by the ranks that have the elements in order, and then move where they belong, if
  // that is less than the source on every rank; of any other, each rank takes what it needs from the whole.
  const bool less =
      front == both || source->global_numel() * static_cast<int64_t>(cut.sizes.size()) > both->global_numel();
  const bool runs = cut && less && source->ndim() == 1 && source->has_cut();
  const SpecPtr held = runs ? source : replicated(call.mesh(), source->global_shape());
  Plan plan;
  plan.inputs = {aligned(both, self->global_shape()), aligned(both, mask->global_shape()), held};
  plan.outputs = {both};
  plan.run = [both, held, cut, runs, in_place, to_front = std::make_shared<const Redistribution>(both, front),
              back = std::make_shared<const Redistribution>(front, both), at_self = call.arg("self"),
              at_source = call.arg("source"), at_mask = call.arg("mask")](LocalCall& call) {
    at::Tensor target = call.tensor(at_self);
    const at::Tensor source = call.tensor(at_source);
    const at::Tensor mask = call.tensor(at_mask).to(at::kBool).expand(both->local_shape());
    if (!in_place) target = target.expand(both->local_shape()).clone(at::MemoryFormat::Contiguous);
    const int64_t available = held->global_numel();
    const auto check_enough = [&](int64_t needed) {
      TORCH_CHECK_VALUE(needed <= available, call.op.operator_name().name, ": the mask has ", needed,
                        " true elements, the source only ", available, "\n  have  ", both->to_string(),
                        "\n  fix   give a source of at least as many elements");
    };
    if (!runs) {
      const TruePlaces order = true_places(mask, *both);
      check_enough(order.count);
      const at::Tensor values = source.flatten().index_select(0, order.places.masked_select(mask));
      return call.give(target.masked_scatter_(mask, values));
    }
    const at::Tensor picked = to_front->apply(mask);
    const auto counts = counts_of_blocks(*to_front->to(), cut, picked.sum().item<int64_t>(), mask.device());
    check_enough(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    const at::Tensor values = fetch_run(source, held, 0, cut, counts);
    if (to_front->from() == to_front->to()) return call.give(target.masked_scatter_(mask, values));
    const at::Tensor placed = back->apply(at::zeros(picked.sizes(), values.options()).masked_scatter_(picked, values));
    call.give(target.copy_(at::where(mask, placed, target)));
  };
  return plan;
}

const char* const kCounts = "any cut; results are cut by counts, a cut of an inner dim moves to the first";

const Register masks_rules{
    {.op = "aten::masked_select", .plan = plan_masked_select, .supports = kCounts, .traffic = Traffic::kDataDependent},
    {.op = "aten::nonzero", .plan = plan_nonzero, .supports = kCounts, .traffic = Traffic::kDataDependent},
    {.op = "aten::nonzero_static",
     .plan = plan_nonzero_static,
     .supports = "any cut; the result stays a sum",
     .traffic = Traffic::kDataDependent},
    {.op = {"aten::masked_scatter", "aten::masked_scatter_"},
     .plan = plan_masked_scatter,
     .supports = "any cut; a 1-D source is fetched in runs",
     .traffic = Traffic::kDataDependent | Traffic::kRedistribute},
};

}  // namespace

bool is_mask(const TensorArgument& slot) { return slot.spec && (slot.dtype == at::kBool || slot.dtype == at::kByte); }

std::optional<MaskIndex> single_mask(const OpCall& call) {
  const Arg list = call.arg("indices");
  const SpecPtr& self = call.spec("self");
  std::optional<MaskIndex> found;
  for (size_t s = 0; s < call.slots().size(); ++s) {
    const TensorArgument& slot = call.slots()[s];
    if (slot.arg != list || !slot.spec) continue;
    if (found || !is_mask(slot) || slot.item + slot.spec->ndim() > self->ndim() || slot.spec->ndim() == 0)
      return std::nullopt;
    const auto& sizes = slot.spec->global_shape();
    if (!std::equal(sizes.begin(), sizes.end(), self->global_shape().begin() + slot.item)) return std::nullopt;
    found = MaskIndex{s, slot.item, slot.item + slot.spec->ndim()};
  }
  return found;
}

namespace {

// Dims of a tensor of `spec` in which the masked dims became one; its cut is to be filled in.
Layout picked_layout(const ShardSpec& spec, const MaskIndex& mask) {
  Layout layout(spec.mesh(), {});
  layout.partials = spec.layout().partials;
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    if (d > mask.first && d < mask.last) continue;
    layout.global_shape.push_back(d == mask.first ? 0 : spec.global_shape()[d]);
    layout.cuts.push_back(d == mask.first ? Cut{} : spec.cut(d));
  }
  return layout;
}

// The mask, cut as the dims of `spec` are for which it stands.
SpecPtr mask_spec(const SpecPtr& spec, const OpCall& call, const MaskIndex& mask) {
  std::vector<int64_t> source(mask.last - mask.first);
  std::iota(source.begin(), source.end(), mask.first);
  return with_cuts_of(without_partial(spec), call.slots()[mask.slot].spec->global_shape(), source);
}

// The spec of x in x[mask] = values. The gradient of x[mask] is written to new zeros, which are on every rank but
// need not stay so: they take the cuts that mask and values have.
SpecPtr written_by_mask(const OpCall& call, const MaskIndex& mask) {
  const SpecPtr self = without_partial(call.spec("self")), &picker = call.slots()[mask.slot].spec;
  const bool of_gradient = call.name() == "aten::_index_put_impl_" && call.flag("unsafe");
  if (!of_gradient || call.tensor("self").plain || !self->is_replicate()) return self;
  Layout layout = self->layout();
  const auto take = [&layout](int64_t dim, const Cut& cut) {
    if (is_free(cut, layout)) layout.cuts[dim] = cut;
  };
  for (int64_t d = mask.first; d < mask.last; ++d) take(d, picker->cut(d - mask.first));
  const SpecPtr& values = call.spec("values");
  const int64_t fewer = self->ndim() - values->ndim();
  for (int64_t d = 0; d < values->ndim() && fewer == mask.last - mask.first - 1; ++d) {
    const int64_t to = d > mask.first ? d + fewer : d;
    const Cut& cut = values->cut(d);
    if (d != mask.first) {
      take(to, cut);
    } else if (cut && !picker->has_cut()) {
      take(to, {cut.mesh_dims, balanced_sizes(self->global_shape()[to], static_cast<int64_t>(cut.sizes.size()))});
    }
  }
  return cut_in_front(intern(std::move(layout)), mask.first, mask.last);
}

// Values for x[mask]: `spec`, and cut along `dim` as they are given, if those mesh dims are not needed otherwise.
SpecPtr keeping_cut(const SpecPtr& spec, const SpecPtr& given, int64_t dim) {
  const Cut& cut = given->cut(dim);
  return is_free(cut, spec->layout()) ? with_cut(spec, dim, cut, given->global_shape()[dim]) : spec;
}

}  // namespace

Plan plan_read_mask(const OpCall& call, const MaskIndex& mask) {
  const SpecPtr self = cut_in_front(resolve_nonlinear(call.spec("self")), mask.first, mask.last);
  Plan plan = unary_plan(call, self, {nullptr});
  plan.inputs[mask.slot] = mask_spec(self, call, mask);
  plan.run = [layout = picked_layout(*self, mask), dim = mask.first,
              cut = front_cut(*self, mask.first, mask.last)](LocalCall& call) {
    call.run();
    call.give(wrap_picked(call.result(), layout, dim, cut));
  };
  return plan;
}

Plan plan_write_mask(const OpCall& call, const MaskIndex& mask) {
  const SpecPtr self = written_by_mask(call, mask);
  const int slot = call.slot("values");
  const auto& sizes = call.slots()[slot].spec->global_shape();
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t masked = mask.last - mask.first, picked_ndim = self->ndim() - masked + 1;
  TORCH_CHECK_VALUE(ndim <= picked_ndim, call.name(), ": values of ", ndim, " dims for ", picked_ndim,
                    " dims\n  have  ", call.describe());
  // Values take the cut of the dims that are not masked; `along` is the dim that the mask fills.
  const int64_t along = mask.first - picked_ndim + ndim;
  std::vector<int64_t> source(ndim, -1);
  for (int64_t d = 0; d < ndim; ++d) {
    const int64_t picked = d + picked_ndim - ndim, from = picked + (picked > mask.first ? masked - 1 : 0);
    if (picked == mask.first) continue;
    TORCH_CHECK_VALUE(sizes[d] == 1 || sizes[d] == self->global_shape()[from], call.name(), ": values of ", sizes[d],
                      " rows for the ", self->global_shape()[from], " of dim ", from, "\n  have  ", call.describe());
    if (sizes[d] == self->global_shape()[from]) source[d] = from;
  }
  Plan plan = unary_plan(call, self, {self});
  const SpecPtr held = mask_spec(self, call, mask);
  plan.inputs[mask.slot] = held;
  plan.inputs[slot] = with_cuts_of(self, sizes, source);
  if (along < 0 || sizes[along] == 1 || !held->has_cut()) return plan;
  // Where values are cut, and true elements are in order on the ranks, each rank fetches the run that it writes.
  const auto masked_dims = static_cast<int64_t>(held->ndim());
  const Cut& front = front_cut(*held, 0, masked_dims);
  const SpecPtr kept = keeping_cut(plan.inputs[slot], call.slots()[slot].spec, along);
  const Cut cut = cut_in_front(held, 0, masked_dims) == held && kept->is_cut(along) ? front : Cut{};
  if (cut) plan.inputs[slot] = kept;
  plan.run = [held, kept, cut, along, item = mask.first, given = sizes[along], at_indices = call.arg("indices"),
              at_values = call.arg("values")](LocalCall& call) {
    c10::IValue& values = call.value(at_values);
    const at::Tensor given_mask = *call.value(at_indices).to<Indices>().get(item);
    const at::Tensor mask = given_mask.to(values.toTensor().device(), at::kBool);
    std::vector<int64_t> counts;
    TruePlaces order;
    if (cut) {
      counts = counts_of_blocks(*held, cut, mask.sum().item<int64_t>(), mask.device());
      order.count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    } else {
      order = true_places(mask, *held);
    }
    TORCH_CHECK_VALUE(order.count == given, call.op.operator_name().name, ": ", given, " values for the ", order.count,
                      " true elements of the mask\n  have  mask ", held->to_string(),
                      "\n  fix   give one value, or as many as the mask has true elements");
    const at::Tensor all = values.toTensor();
    values = cut ? fetch_run(all, kept, along, cut, counts) : all.index_select(along, order.places.masked_select(mask));
    call.run();
  };
  return plan;
}

}  // namespace moonhalo
