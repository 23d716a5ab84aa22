// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/axes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "moonhalo/engine/dispatch/divided_work.h"
#include "moonhalo/engine/exchange/redistribution.h"

namespace moonhalo {
namespace {

// One way to carry the operator out: a cut (or none) per axis, and the mesh dims whose Partial is passed through.
struct Strategy {
  std::vector<Cut> cuts;
  std::vector<std::optional<ReduceOp>> partials;  // per mesh dim
};

bool disjoint(const Strategy& strategy, const DeviceMesh& mesh) {
  std::vector<int> used(mesh.ndim(), 0);
  for (const Cut& cut : strategy.cuts) {
    for (const int64_t m : cut.mesh_dims) ++used[m];
  }
  for (int64_t m = 0; m < mesh.ndim(); ++m) used[m] += strategy.partials[m].has_value();
  return std::all_of(used.begin(), used.end(), [](int count) { return count <= 1; });
}

class Solver {
 public:
  Solver(const OpCall& call, const Axes& axes) : call_(call), axes_(axes), mesh_(*call.mesh()) {}

  Plan run() {
    if (axes_.fixed_output >= 0) fixed_spec_ = axes_.fixed_spec;
    weigh_work();
    collect_options();
    Strategy strategy;
    strategy.cuts.resize(axes_.kinds.size());
    strategy.partials.resize(mesh_.ndim());
    enumerate(strategy, 0);
    if (best_cost_ == std::numeric_limits<double>::infinity() && fixed_spec_ && fixed_spec_->has_partial()) {
      // The operator is not linear in what it writes to: its target is resolved first.
      fixed_spec_ = without_partial(fixed_spec_);
      collect_options();
      enumerate(strategy, 0);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(best_cost_ < std::numeric_limits<double>::infinity(), call_.name(),
                                ": no way to carry it out under these placements", "\n  have  ", call_.describe(),
                                "\n  fix   redistribute its tensors to Replicate() first");
    Plan plan;
    plan.inputs = std::move(best_inputs_);
    plan.outputs = std::move(best_outputs_);
    return plan;
  }

 private:
  PartialUse linear(size_t slot) const {
    return slot < axes_.linear.size() ? axes_.linear[slot] : PartialUse::kResolve;
  }

  // Notes, for a product with a sum, the extents of its axes and how many elements a rank sends in the time of one
  // multiplication.
  void weigh_work() {
    const double ratio = macs_per_byte(mesh_);
    const auto factors = std::count(axes_.linear.begin(), axes_.linear.end(), PartialUse::kOneFactor);
    if (std::isinf(ratio) || factors < 2 || std::count(axes_.kinds.begin(), axes_.kinds.end(), AxisKind::kReduce) == 0)
      return;
    extents_.assign(axes_.kinds.size(), 1);
    for (size_t s = 0; s < axes_.inputs.size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      for (size_t d = 0; spec && d < axes_.inputs[s].size(); ++d) {
        if (axes_.inputs[s][d] >= 0) extents_[axes_.inputs[s][d]] = spec->global_shape()[d];
      }
      if (spec && linear(s) == PartialUse::kOneFactor)
        work_weight_ = 1 / (ratio * static_cast<double>(c10::elementSize(call_.slots()[s].dtype)));
    }
  }

  // The multiplications of the rank that has most, in elements sent.
  double work(const Strategy& strategy) const {
    double macs = work_weight_;
    for (size_t a = 0; a < extents_.size(); ++a) {
      const auto& sizes = strategy.cuts[a].sizes;
      macs *= static_cast<double>(sizes.empty() ? extents_[a] : *std::max_element(sizes.begin(), sizes.end()));
    }
    return macs;
  }

  // The cuts that inputs bring along, per axis; what a fixed output dictates leaves no choice.
  void collect_options() {
    options_.assign(axes_.kinds.size(), {});
    const auto offer = [&](int axis, const Cut& cut) {
      if (axis < 0 || !cut || axes_.kinds[axis] == AxisKind::kUncut) return;
      auto& options = options_[axis];
      if (std::find(options.begin(), options.end(), cut) == options.end()) options.push_back(cut);
    };
    for (size_t s = 0; s < axes_.inputs.size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      for (size_t d = 0; spec && d < axes_.inputs[s].size(); ++d) offer(axes_.inputs[s][d], spec->cut(d));
    }
    offer_exchanges();
    partial_options_.assign(mesh_.ndim(), std::nullopt);
    for (int64_t m = 0; m < mesh_.ndim(); ++m) {
      for (size_t s = 0; s < call_.slots().size(); ++s) {
        const SpecPtr& spec = call_.slots()[s].spec;
        if (spec && spec->partial(m) && linear(s) != PartialUse::kResolve) partial_options_[m] = spec->partial(m);
      }
    }
    if (axes_.fixed_output < 0) return;
    for (auto& options : options_) options.clear();
    for (auto& option : partial_options_) option.reset();
    fixed_.assign(axes_.kinds.size(), {});
    const auto& dims = axes_.outputs[axes_.fixed_output];
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] >= 0) fixed_[dims[d]] = fixed_spec_->cut(d);
    }
    for (int64_t m = 0; m < mesh_.ndim(); ++m) partial_options_[m] = fixed_spec_->partial(m);
  }

  // A product whose sum runs over a dim that one factor alone is cut along: rather than to gather that factor, or to
  // add whole results, it may pay to cut it along another of its dims, the longest that is not cut.
  void offer_exchanges() {
    const auto factors = std::count(axes_.linear.begin(), axes_.linear.end(), PartialUse::kOneFactor);
    if (factors < 2) return;
    for (size_t s = 0; s < axes_.inputs.size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      for (size_t d = 0; spec && linear(s) == PartialUse::kOneFactor && d < axes_.inputs[s].size(); ++d) {
        const int axis = axes_.inputs[s][d];
        const Cut& cut = spec->cut(d);
        if (axis < 0 || axes_.kinds[axis] != AxisKind::kReduce || !cut || cut_by_others(s, axis)) continue;
        const auto& shape = spec->global_shape();
        size_t longest = shape.size();
        for (size_t other = 0; other < shape.size(); ++other) {
          const int to = axes_.inputs[s][other];
          if (to < 0 || axes_.kinds[to] != AxisKind::kKeep || !options_[to].empty()) continue;
          if (longest == shape.size() || shape[other] > shape[longest]) longest = other;
        }
        const auto blocks = static_cast<int64_t>(cut.sizes.size());
        if (longest == shape.size() || shape[longest] < blocks) continue;  // ranks without work
        options_[axes_.inputs[s][longest]].push_back({cut.mesh_dims, balanced_sizes(shape[longest], blocks)});
      }
    }
  }

  bool cut_by_others(size_t slot, int axis) const {
    for (size_t s = 0; s < axes_.inputs.size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      if (s == slot || !spec) continue;
      for (size_t d = 0; d < axes_.inputs[s].size(); ++d) {
        if (axes_.inputs[s][d] == axis && spec->cut(d)) return true;
      }
    }
    return false;
  }

  void enumerate(Strategy& strategy, size_t axis) {
    if (best_cost_ == 0) return;  // nothing is cheaper
    if (axis < axes_.kinds.size()) {
      if (!fixed_.empty()) {
        strategy.cuts[axis] = fixed_[axis];
        return enumerate(strategy, axis + 1);
      }
      for (const Cut& cut : options_[axis]) {
        strategy.cuts[axis] = cut;
        enumerate(strategy, axis + 1);
      }
      strategy.cuts[axis] = {};
      return enumerate(strategy, axis + 1);
    }
    enumerate_partials(strategy, 0);
  }

  void enumerate_partials(Strategy& strategy, int64_t m) {
    if (m < mesh_.ndim()) {
      if (partial_options_[m]) {
        strategy.partials[m] = partial_options_[m];
        enumerate_partials(strategy, m + 1);
        if (axes_.fixed_output >= 0) return;
      }
      strategy.partials[m].reset();
      return enumerate_partials(strategy, m + 1);
    }
    if (disjoint(strategy, mesh_) && partials_fit(strategy)) consider(strategy);
  }

  // A product passes one Partial on; a sum needs every term Partial of the same kind (a plain or replicated term
  // would be counted once per rank).
  bool partials_fit(const Strategy& strategy) const {
    for (int64_t m = 0; m < mesh_.ndim(); ++m) {
      if (!strategy.partials[m]) continue;
      int each = 0;
      bool joint = false, joint_missing = false;
      for (size_t s = 0; s < call_.slots().size(); ++s) {
        const SpecPtr& spec = call_.slots()[s].spec;
        if (!spec) continue;
        const bool is_partial = spec->partial(m) == strategy.partials[m];
        if (linear(s) == PartialUse::kOneFactor) each += is_partial;
        if (linear(s) == PartialUse::kAllTerms) (is_partial ? joint : joint_missing) = true;
      }
      const bool sums = strategy.partials[m] == ReduceOp::kSum || strategy.partials[m] == ReduceOp::kAvg;
      if (!sums || (joint && joint_missing) || each + joint != 1) return false;
    }
    // A cut contraction leaves Partial(reduce); it must not be combined with a Partial of another kind.
    for (size_t a = 0; a < axes_.kinds.size(); ++a) {
      if (axes_.kinds[a] != AxisKind::kReduce || !strategy.cuts[a]) continue;
      for (const auto& op : strategy.partials) {
        if (op && *op != axes_.reduce) return false;
      }
    }
    if (axes_.reduce != ReduceOp::kSum) {
      return std::none_of(strategy.partials.begin(), strategy.partials.end(),
                          [](const auto& p) { return p.has_value(); });
    }
    return true;
  }

  // The spec of a tensor that is cut as the strategy says: one of `known` if it fits, which saves the search.
  SpecPtr spec_of(const std::vector<int>& dims, const std::vector<int64_t>& shape, const Strategy& strategy,
                  const std::vector<std::optional<ReduceOp>>& partials, uint64_t stored,
                  std::initializer_list<const SpecPtr*> known) const {
    static const Cut kUncut;
    const auto cut = [&](size_t d) -> const Cut& {
      return d < dims.size() && dims[d] >= 0 ? strategy.cuts[dims[d]] : kUncut;
    };
    for (const SpecPtr* spec : known) {
      if (!*spec || (*spec)->global_shape() != shape || (*spec)->layout().partials != partials) continue;
      if (((*spec)->layout().stored & ~stored) != 0) continue;
      bool fits = true;
      for (size_t d = 0; fits && d < shape.size(); ++d) fits = (*spec)->cut(d) == cut(d);
      if (fits) return *spec;
    }
    Layout layout(call_.mesh(), shape);
    for (size_t d = 0; d < shape.size(); ++d) layout.cuts[d] = cut(d);
    layout.partials = partials;
    layout.stored = stored;
    return intern(std::move(layout));
  }

  std::vector<SpecPtr> inputs(const Strategy& strategy) const {
    std::vector<SpecPtr> specs;
    specs.reserve(call_.slots().size());
    std::vector<std::optional<ReduceOp>> partials(mesh_.ndim());
    for (size_t s = 0; s < call_.slots().size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      if (!spec) {
        specs.push_back(nullptr);
        continue;
      }
      for (int64_t m = 0; m < mesh_.ndim(); ++m) {
        const bool kept =
            strategy.partials[m] && linear(s) != PartialUse::kResolve && spec->partial(m) == strategy.partials[m];
        partials[m] = kept ? strategy.partials[m] : std::nullopt;
      }
      specs.push_back(
          spec_of(axes_.inputs[s], spec->global_shape(), strategy, partials, spec->layout().stored, {&spec}));
    }
    return specs;
  }

  // A result of stored tensors alone is stored as they are (a weight's transpose, an optimizer's averages).
  uint64_t stored_results(const std::vector<SpecPtr>& inputs) const {
    if (fixed_spec_) return fixed_spec_->layout().stored;
    uint64_t stored = 0, cut = 0;
    for (const SpecPtr& spec : inputs) {
      if (!spec || !spec->has_cut()) continue;
      stored |= spec->layout().stored;
      for (const Cut& own : spec->layout().cuts) {
        for (const int64_t m : own.mesh_dims) cut |= (~spec->layout().stored & uint64_t{1} << m);
      }
    }
    return stored & ~cut;
  }

  std::vector<SpecPtr> outputs(const Strategy& strategy, const std::vector<SpecPtr>& inputs) const {
    std::vector<std::optional<ReduceOp>> partials = strategy.partials;
    for (size_t a = 0; a < axes_.kinds.size(); ++a) {
      if (axes_.kinds[a] != AxisKind::kReduce) continue;
      for (const int64_t m : strategy.cuts[a].mesh_dims) partials[m] = axes_.reduce;
    }
    const uint64_t stored = stored_results(inputs);
    const SpecPtr none;
    std::vector<SpecPtr> specs;
    specs.reserve(axes_.outputs.size());
    for (size_t o = 0; o < axes_.outputs.size(); ++o) {
      const SpecPtr &first = inputs.empty() ? none : inputs.front(), &previous = specs.empty() ? none : specs.back();
      specs.push_back(
          spec_of(axes_.outputs[o], axes_.output_shapes[o], strategy, partials, stored, {&first, &previous}));
    }
    return specs;
  }

  // Keeps the strategy if it is cheaper than the best so far.
  void consider(const Strategy& strategy) {
    // Strategies with more cuts come first, so that a tie keeps the work divided.
    const double bound = best_cost_ * (1 - 1e-12);
    double cost = extents_.empty() ? 0 : work(strategy);
    if (cost >= bound) return;
    auto required = inputs(strategy);
    for (size_t s = 0; s < required.size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      if (required[s] && required[s] != spec) cost += redistribution_cost(*spec, *required[s]);
    }
    if (cost >= bound) return;
    auto results = outputs(strategy, required);
    // A Partial result must be reduced some day.
    for (const SpecPtr& output : results) {
      if (output->has_partial()) cost += redistribution_cost(*output, *without_partial(output));
    }
    if (cost >= bound) return;
    best_cost_ = cost;
    best_inputs_ = std::move(required);
    best_outputs_ = std::move(results);
  }

  const OpCall& call_;
  const Axes& axes_;
  const DeviceMesh& mesh_;
  std::vector<std::vector<Cut>> options_;
  std::vector<int64_t> extents_;  // where work counts
  double work_weight_ = 0;
  SpecPtr fixed_spec_;  // of the result that is written in place
  std::vector<Cut> fixed_;
  std::vector<std::optional<ReduceOp>> partial_options_;
  double best_cost_ = std::numeric_limits<double>::infinity();
  std::vector<SpecPtr> best_inputs_, best_outputs_;
};

}  // namespace

Plan solve(const OpCall& call, const Axes& axes) {
  TORCH_INTERNAL_ASSERT(axes.inputs.size() == call.slots().size(), "axes of ", call.name(), " name ",
                        axes.inputs.size(), " inputs of ", call.slots().size());
  return Solver(call, axes).run();
}

Axes broadcast_axes(const OpCall& call) {
  Axes axes;
  std::vector<int64_t> shape;
  for (const TensorArgument& slot : call.slots()) {
    if (!slot.spec) continue;
    const auto& sizes = slot.spec->global_shape();
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t& extent = shape[shape.size() - sizes.size() + d];
      TORCH_CHECK_VALUE(extent == sizes[d] || extent == 1 || sizes[d] == 1, call.name(),
                        ": the sizes of the tensors do not broadcast\n  have  ", call.describe(),
                        "\n  fix   dims are matched from the last one: give equal sizes, or 1, which fits every size");
      if (extent == 1) extent = sizes[d];
    }
  }
  axes.kinds.assign(shape.size(), AxisKind::kKeep);
  for (const TensorArgument& slot : call.slots()) {
    std::vector<int> dims;
    const auto& sizes = slot.spec ? slot.spec->global_shape() : std::vector<int64_t>{};
    for (size_t d = 0; d < sizes.size(); ++d) {
      const size_t axis = shape.size() - sizes.size() + d;
      dims.push_back(sizes[d] == shape[axis] ? static_cast<int>(axis) : -1);
    }
    axes.inputs.push_back(std::move(dims));
  }
  std::vector<int> all(shape.size());
  for (size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int>(d);
  for (size_t r = 0; r < call.op.schema().returns().size(); ++r) {
    axes.outputs.push_back(all);
    axes.output_shapes.push_back(shape);
  }
  return axes;
}

}  // namespace moonhalo
