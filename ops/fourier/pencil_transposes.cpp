// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/fourier/pencil_transposes.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

using Dims = std::vector<int64_t>;

bool contains(const Dims& dims, int64_t dim) { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }

Dims without(const Dims& dims, const Dims& others) {
  Dims rest;
  std::copy_if(dims.begin(), dims.end(), std::back_inserter(rest), [&](int64_t d) { return !contains(others, d); });
  return rest;
}

// Elements of a rank's block, or of what two of its blocks have in common.
double overlap(const ShardSpec& a, const ShardSpec& b, int64_t rank) {
  return static_cast<double>(block_box(a, rank).intersect(block_box(b, rank)).numel());
}

// Elements that arrive on all ranks together.
double moved(const ShardSpec& from, const ShardSpec& to) {
  double count = 0;
  for (int64_t rank = 0; rank < from.mesh()->size(); ++rank) count += overlap(to, to, rank) - overlap(from, to, rank);
  return count;
}

// The work of all ranks while the one with the largest block transforms it along `dims`.
double work(const ShardSpec& spec, const Dims& dims) {
  double most = 0;
  for (int64_t rank = 0; rank < spec.mesh()->size(); ++rank) most = std::max(most, overlap(spec, spec, rank));
  return static_cast<double>(spec.mesh()->size()) * most * static_cast<double>(dims.size());
}

class Search {
 public:
  Search(const Transform& transform, const SpecPtr& output) : transform_(transform), output_(output) {}

  std::vector<PencilStage> run(const SpecPtr& input) {
    visit(input, transform_.dims, 0);
    TORCH_CHECK_NOT_IMPLEMENTED(best_cost_ < std::numeric_limits<double>::infinity(),
                                "fft: no order of transforms under this placement", "\n  have  ", input->to_string(),
                                "\n  fix   redistribute it to Replicate() first");
    return best_;
  }

 private:
  // The dims that can be transformed while `spec` holds.
  Dims possible(const ShardSpec& spec, const Dims& remaining) const {
    const int64_t special = transform_.special;
    const auto whole = [&](int64_t d) { return spec.cut(d).sizes.size() <= 1; };
    Dims dims;
    if (transform_.special_first && contains(remaining, special) && !whole(special)) return dims;
    for (const int64_t d : remaining) {
      if (d != special && whole(d)) dims.push_back(d);
    }
    const bool others_done = dims.size() + 1 == remaining.size();
    if (contains(remaining, special) && whole(special) && (transform_.special_first || others_done))
      dims.push_back(special);
    return dims;
  }

  double bytes(const Dims& remaining) const {
    return transform_.special < 0 || contains(remaining, transform_.special) ? transform_.bytes_before
                                                                             : transform_.bytes_after;
  }

  // `spec` with the special dim's extent as it is while `remaining` wait.
  SpecPtr sized(const SpecPtr& spec, int64_t extent) const {
    const int64_t special = transform_.special;
    if (special < 0 || spec->global_shape()[special] == extent) return spec;
    Cut cut = spec->cut(special);
    if (cut) cut.sizes = {extent};
    return with_cut(spec, special, std::move(cut), extent);
  }

  void visit(const SpecPtr& held, const Dims& remaining, double cost) {
    const Dims dims = possible(*held, remaining);
    step(held, remaining, dims, cost);
    // Half a spectrum is not a smaller than the real rows that it is made of.
    const bool may_wait = path_.empty() && transform_.special_first && contains(dims, transform_.special);
    if (may_wait) step(held, remaining, {}, cost);
  }

  void step(const SpecPtr& held, const Dims& remaining, const Dims& dims, double cost) {
    const Dims rest = without(remaining, dims);
    const bool changes = contains(dims, transform_.special);
    const SpecPtr after = changes ? sized(held, output_->global_shape()[transform_.special]) : held;
    cost += work(*after, dims) * bytes(rest);
    if (cost >= best_cost_) return;
    path_.push_back({held, after, dims});
    transpose_back(after, rest, cost);
    for (const Dims& freed : choices(*after, rest)) {
      Layout layout = after->layout();
      Dims mesh_dims;
      for (const int64_t d : freed) {
        mesh_dims.insert(mesh_dims.end(), layout.cuts[d].mesh_dims.begin(), layout.cuts[d].mesh_dims.end());
        layout.cuts[d] = {};
      }
      std::sort(mesh_dims.begin(), mesh_dims.end());
      place(after, layout, freed, mesh_dims, 0, rest, cost);
    }
    path_.pop_back();
  }

  // Ends with the output's own cut, if nothing else is left to do.
  void transpose_back(const SpecPtr& after, const Dims& rest, double cost) {
    const bool waits = contains(rest, transform_.special);
    if (waits && output_->cut(transform_.special).sizes.size() > 1) return;
    const SpecPtr home = waits ? sized(output_, after->global_shape()[transform_.special]) : output_;
    const Dims dims = possible(*home, rest);
    if (dims.size() != rest.size()) return;
    cost += bytes(rest) * moved(*after, *home);
    cost += work(*output_, dims) * transform_.bytes_after;
    if (cost >= best_cost_) return;
    best_cost_ = cost;
    best_ = path_;
    best_.push_back({home, output_, dims});
  }

  // Sets of dims that may be freed of their cuts next.
  std::vector<Dims> choices(const ShardSpec& spec, const Dims& rest) const {
    Dims cut;
    for (const int64_t d : rest) {
      if (spec.cut(d).sizes.size() > 1) cut.push_back(d);
    }
    std::vector<Dims> sets;
    for (size_t bits = (size_t{1} << cut.size()) - 1; bits > 0; --bits) {
      Dims set;
      for (size_t i = 0; i < cut.size(); ++i) {
        if (bits >> i & 1) set.push_back(cut[i]);
      }
      sets.push_back(std::move(set));
    }
    return sets;
  }

  // Gives mesh dim after mesh dim a new dim to cut, or none.
  void place(const SpecPtr& from, const Layout& layout, const Dims& freed, const Dims& mesh_dims, size_t next,
             const Dims& rest, double cost) {
    if (next == mesh_dims.size()) {
      const SpecPtr to = intern(layout);
      if (possible(*to, rest).empty()) return;
      cost += bytes(rest) * moved(*from, *to);
      if (cost < best_cost_) visit(to, rest, cost);
      return;
    }
    const int64_t m = mesh_dims[next], blocks = layout.mesh->size(m);
    for (size_t d = 0; d < layout.cuts.size(); ++d) {
      if (layout.global_shape[d] < 2 || contains(freed, static_cast<int64_t>(d))) continue;
      Layout moves = layout;
      Cut& cut = moves.cuts[d];
      const Dims outer = cut ? cut.sizes : Dims{layout.global_shape[d]};
      cut.mesh_dims.push_back(m);
      cut.sizes.clear();
      for (const int64_t extent : outer) {
        const Dims sizes = balanced_sizes(extent, blocks);
        cut.sizes.insert(cut.sizes.end(), sizes.begin(), sizes.end());
      }
      place(from, moves, freed, mesh_dims, next + 1, rest, cost);
    }
    place(from, layout, freed, mesh_dims, next + 1, rest, cost);
  }

  const Transform& transform_;
  const SpecPtr& output_;
  std::vector<PencilStage> path_, best_;
  double best_cost_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<PencilStage> pencil_stages(const Transform& transform, const SpecPtr& input, const SpecPtr& output) {
  std::vector<PencilStage> stages = Search(transform, output).run(input);
  // Several dims at once take one pass over memory: a stage whose dims are whole in a later one
  // that has others to do waits for it.
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].dims.empty() || contains(stages[i].dims, transform.special)) continue;
    const auto later = std::find_if(stages.begin() + static_cast<int64_t>(i) + 1, stages.end(),
                                    [](const PencilStage& stage) { return !stage.dims.empty(); });
    if (later == stages.end()) break;
    const bool whole = std::all_of(stages[i].dims.begin(), stages[i].dims.end(),
                                   [&](int64_t d) { return later->held->cut(d).sizes.size() <= 1; });
    if (!whole) continue;
    later->dims.insert(later->dims.begin(), stages[i].dims.begin(), stages[i].dims.end());
    stages[i].dims.clear();
  }
  std::vector<PencilStage> used;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!stages[i].dims.empty() || i + 1 == stages.size()) used.push_back(stages[i]);
  }
  return used;
}

}  // namespace moonhalo
