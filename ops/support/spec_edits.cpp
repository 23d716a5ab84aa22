// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/spec_edits.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/ops/support/grown_blocks.h"

namespace moonhalo {

SpecPtr with_cuts_of(const SpecPtr& spec, at::IntArrayRef shape, const std::vector<int64_t>& source) {
  Layout layout(spec->mesh(), shape);
  layout.partials = spec->layout().partials;
  layout.stored = spec->layout().stored;
  for (size_t d = 0; d < source.size(); ++d) {
    if (source[d] < 0) continue;
    TORCH_INTERNAL_ASSERT(shape[d] == spec->global_shape()[source[d]], "a cut of ", spec->to_string(),
                          " cannot be that of dim ", d, " of ", shape);
    layout.cuts[d] = spec->cut(source[d]);
  }
  return intern(std::move(layout));
}

SpecPtr without_cuts(const SpecPtr& spec, at::IntArrayRef dims) {
  Layout layout = spec->layout();
  for (const int64_t d : dims) layout.cuts[d] = {};
  return intern(std::move(layout));
}

SpecPtr with_cut(const SpecPtr& spec, int64_t dim, Cut cut, int64_t extent) {
  Layout layout = spec->layout();
  layout.cuts[dim] = std::move(cut);
  layout.global_shape[dim] = extent;
  return intern(std::move(layout));
}

std::vector<int64_t> padded_sizes(const std::vector<int64_t>& sizes, int64_t before, int64_t extent) {
  const auto blocks = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> outer, growth(blocks, 0);
  int64_t row = 0, begin = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    row += sizes[b];
    const int64_t end = b + 1 == blocks ? extent : std::clamp<int64_t>(row + before, 0, extent);
    outer.push_back(end - begin);
    begin = end;
  }
  growth.front() += before;
  growth.back() += extent - row - before;
  return grown_sizes(std::move(outer), growth);
}

std::vector<int64_t> grown_sizes(std::vector<int64_t> sizes, at::IntArrayRef growth) {
  std::vector<int64_t> balanced = balanced_sizes(c10::sum_integers(sizes), static_cast<int64_t>(sizes.size()));
  // Blocks that were uneven before stay so; what a block grows by is a reason to move rows, unless it is a halo.
  bool pays = false;
  for (size_t b = 0; b < sizes.size(); ++b)
    pays = pays || (4 * sizes[b] > 5 * balanced[0] && 2 * growth[b] > balanced[0]);
  const OutputCut policy = output_cut();
  return policy == OutputCut::kRebalance || (policy == OutputCut::kGeometry && pays) ? balanced : sizes;
}

Cut divided_further(Cut cut, const std::vector<int64_t>& more, int64_t extent, const DeviceMesh& mesh) {
  int64_t parts = 1;
  for (const int64_t m : more) parts *= mesh.size(m);
  if (!cut) cut.sizes = {extent};
  std::vector<int64_t> sizes;
  for (const int64_t size : cut.sizes) {
    const auto inner = balanced_sizes(size, parts);
    sizes.insert(sizes.end(), inner.begin(), inner.end());
  }
  cut.mesh_dims.insert(cut.mesh_dims.end(), more.begin(), more.end());
  cut.sizes = std::move(sizes);
  return cut;
}

SpecPtr resolve_nonlinear(const SpecPtr& spec) {
  if (!spec->has_partial()) return spec;
  Layout layout = spec->layout();
  for (auto& partial : layout.partials) {
    if (partial && *partial != ReduceOp::kSum && *partial != ReduceOp::kAvg) partial.reset();
  }
  return intern(std::move(layout));
}

Plan unary_plan(const OpCall& call, const SpecPtr& required, std::vector<SpecPtr> outputs) {
  Plan plan;
  plan.inputs = {required};
  plan.inputs.resize(call.slots().size());
  plan.outputs = std::move(outputs);
  plan.breaks_alias = required && without_partial(required) != without_partial(call.slots().front().spec);
  return plan;
}

bool is_free(const Cut& cut, const Layout& layout) {
  return std::none_of(cut.mesh_dims.begin(), cut.mesh_dims.end(), [&](int64_t m) { return layout.uses(m); });
}

bool intersects(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](int64_t m) { return std::find(b.begin(), b.end(), m) != b.end(); });
}

std::vector<int64_t> all_dims(int64_t ndim) {
  std::vector<int64_t> dims(ndim);
  std::iota(dims.begin(), dims.end(), int64_t{0});
  return dims;
}

c10::IValue int_list(const std::vector<int64_t>& values) { return c10::IValue(values); }

std::vector<int64_t> proportional_sizes(const std::vector<int64_t>& sizes, int64_t extent) {
  const int64_t from = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (from == 0) return balanced_sizes(extent, static_cast<int64_t>(sizes.size()));
  std::vector<int64_t> result;
  int64_t end = 0, previous = 0;
  for (const int64_t size : sizes) {
    end += size;
    const int64_t boundary = (2 * end * extent + from) / (2 * from);
    result.push_back(boundary - previous);
    previous = boundary;
  }
  return result;
}

std::vector<int64_t> nearly_balanced(int64_t extent, const std::vector<int64_t>& low,
                                     const std::vector<int64_t>& high) {
  const std::vector<int64_t> balanced = balanced_sizes(extent, static_cast<int64_t>(low.size()) + 1);
  std::vector<int64_t> sizes;
  int64_t wish = 0, begin = 0;
  for (size_t i = 0; i < low.size(); ++i) {
    wish += balanced[i];
    const int64_t end = std::clamp(wish, low[i], high[i]);
    sizes.push_back(end - begin);
    begin = end;
  }
  sizes.push_back(extent - begin);
  return sizes;
}

Cut cut_around(Cut picked, int64_t extent, int64_t start, int64_t step) {
  if (!picked) return picked;
  const int64_t length = c10::sum_integers(picked.sizes);
  std::vector<int64_t> low, high;
  int64_t rows = 0;
  for (size_t i = 0; i + 1 < picked.sizes.size(); ++i) {
    rows += picked.sizes[i];
    low.push_back(rows == 0 ? 0 : start + (rows - 1) * step + 1);
    high.push_back(rows == length ? extent : start + rows * step);
  }
  picked.sizes = nearly_balanced(extent, low, high);
  return picked;
}

Cut grown_cut(const Cut& picked, int64_t extent, int64_t start, int64_t step) {
  Cut cut = cut_around(picked, extent, start, step);
  if (!cut) return cut;
  std::vector<int64_t> growth;
  // The rows may be those of a tensor that was cut unevenly on purpose. A block that is at most doubled by zeros was
  // long before.
  for (size_t b = 0; b < cut.sizes.size(); ++b) {
    const int64_t zeros = cut.sizes[b] - step * picked.sizes[b];
    growth.push_back(2 * zeros > cut.sizes[b] ? zeros : 0);
  }
  cut.sizes = grown_sizes(std::move(cut.sizes), growth);
  return cut;
}

}  // namespace moonhalo
