// SPDX-License-Identifier: Apache-2.0
// as_strided refers to memory, which a ShardTensor does not have as a whole. What it can mean is read off the
// strides that a ShardTensor declares (row-major): every result dim walks along one input dim, or stands still;
// input dims that no result dim walks along are selected by the offset.
//
//     [4, 9]   as_strided({3, 2}, {2, 9}, 10)     dim 1 from column 1 in steps of 2; dim 0 from row 1
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

/// A result dim: `size` rows of input dim `from` (-1: the same element over and over) in steps of `step`.
struct Walk {
  int64_t from = -1, size = 1, step = 1;
};

struct Geometry {
  std::vector<int64_t> start;  // per input dim
  std::vector<Walk> walks;     // per result dim
};

std::optional<Geometry> decode(at::IntArrayRef shape, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  const auto ndim = static_cast<int64_t>(shape.size());
  std::vector<int64_t> dense(ndim, 1), walked(ndim, 0);
  for (int64_t d = ndim - 2; d >= 0; --d) dense[d] = dense[d + 1] * shape[d + 1];
  Geometry geometry;
  for (int64_t d = 0; d < ndim; ++d) {
    if (shape[d] == 0) return std::nullopt;
    geometry.start.push_back(offset / dense[d] % shape[d]);
  }
  if (offset < 0 || (ndim == 0 ? offset != 0 : offset / dense[0] >= shape[0])) return std::nullopt;
  for (size_t r = 0; r < size.size(); ++r) {
    Walk walk{.size = size[r]};
    if (size[r] == 0) return std::nullopt;
    if (size[r] > 1 && stride[r] != 0) {
      for (int64_t d = 0; d < ndim && walk.from < 0; ++d) {
        const bool fits = stride[r] > 0 && stride[r] % dense[d] == 0 && !walked[d] &&
                          geometry.start[d] + (size[r] - 1) * (stride[r] / dense[d]) < shape[d];
        if (fits) walk.from = d;
      }
      if (walk.from < 0) return std::nullopt;
      walked[walk.from] = 1;
      walk.step = stride[r] / dense[walk.from];
    }
    geometry.walks.push_back(walk);
  }
  return geometry;
}

std::optional<Plan> plan_as_strided(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const auto size = call.integers("size"), stride = call.integers("stride");
  const int64_t offset = call.given("storage_offset") ? call.integer("storage_offset") : 0;
  const auto geometry =
      size.size() == stride.size() ? decode(self->global_shape(), size, stride, offset) : std::nullopt;
  TORCH_CHECK_NOT_IMPLEMENTED(geometry, "as_strided: size ", shape_string(size), ", stride ", shape_string(stride),
                              " and offset ", offset, " do not step along the dims of a ShardTensor\n  have  ",
                              call.describe(), "\n  fix   use view, slice, select, transpose, expand or unfold");
  // Dims that are walked along in full keep their cut.
  std::vector<int64_t> source(size.size(), -1), changed = all_dims(self->ndim());
  for (size_t r = 0; r < size.size(); ++r) {
    const Walk& walk = geometry->walks[r];
    if (walk.from < 0 || walk.size != self->global_shape()[walk.from]) continue;
    source[r] = walk.from;
    std::erase(changed, walk.from);
  }
  const SpecPtr required = without_cuts(self, changed);
  const SpecPtr result = with_cuts_of(required, size, source);
  Plan plan = unary_plan(call, required, {result});
  const bool fresh = call.name() == "aten::as_strided_copy";
  plan.run = [geometry = *geometry, source, fresh, shape = result->local_shape(),
              at_self = call.arg("self")](LocalCall& call) {
    at::Tensor local = call.tensor(at_self);
    const auto ndim = local.dim();
    for (int64_t d = 0; d < ndim; ++d) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          local.stride(d) != 0 || local.size(d) <= 1,
          "as_strided: an expanded ShardTensor has no rows to step along\n  fix   clone() it first");
    }
    std::vector<int64_t> order, kept;
    for (size_t r = 0; r < geometry.walks.size(); ++r) {
      const Walk& walk = geometry.walks[r];
      if (walk.from < 0) continue;
      order.push_back(walk.from);
      if (source[r] >= 0) continue;
      const int64_t start = geometry.start[walk.from];
      local = local.slice(walk.from, start, start + (walk.size - 1) * walk.step + 1, walk.step);
    }
    for (int64_t d = ndim - 1; d >= 0; --d) {
      if (std::find(order.begin(), order.end(), d) != order.end()) continue;
      local = local.select(d, geometry.start[d]);
      for (int64_t& o : order) o -= o > d;
    }
    local = local.permute(order);
    for (size_t r = 0; r < geometry.walks.size(); ++r) {
      if (geometry.walks[r].from < 0) local = local.unsqueeze(static_cast<int64_t>(r));
    }
    local = local.expand(shape);
    call.give(fresh ? local.clone(at::MemoryFormat::Contiguous) : local);
  };
  return plan;
}

const Register as_strided_rules{
    {.op = {"aten::as_strided", "aten::as_strided_copy"},
     .plan = plan_as_strided,
     .supports = "strides that step along dims; whole dims keep their cut"},
};

}  // namespace
}  // namespace moonhalo
