// SPDX-License-Identifier: Apache-2.0
// pixel_shuffle and pixel_unshuffle: r x r channels become pixels and back. A block of h rows becomes one of h r rows,
// so cuts of the picture stay where they are; for the way back, boundaries are first moved to multiples of r.
#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// [..., c r r, h, w] -> [..., c, h r, w r]; a block may be empty.
at::Tensor shuffle(const at::Tensor& local, int64_t r) {
  std::vector<int64_t> split = local.sizes().vec();
  const auto n = static_cast<int64_t>(split.size());
  const int64_t h = split[n - 2], w = split[n - 1];
  split.resize(n - 2);
  split.back() /= r * r;
  std::vector<int64_t> merged = split;
  for (const int64_t size : {r, r, h, w}) split.push_back(size);
  merged.push_back(h * r);
  merged.push_back(w * r);
  std::vector<int64_t> order = all_dims(n - 2);
  for (const int64_t d : {n, n - 2, n + 1, n - 1}) order.push_back(d);
  return local.reshape(split).permute(order).reshape(merged);
}

// [..., c, h r, w r] -> [..., c r r, h, w]
at::Tensor unshuffle(const at::Tensor& local, int64_t r) {
  std::vector<int64_t> split = local.sizes().vec();
  const auto n = static_cast<int64_t>(split.size());
  const int64_t h = split[n - 2] / r, w = split[n - 1] / r;
  split.resize(n - 2);
  std::vector<int64_t> merged = split;
  merged.back() *= r * r;
  for (const int64_t size : {h, r, w, r}) split.push_back(size);
  merged.push_back(h);
  merged.push_back(w);
  std::vector<int64_t> order = all_dims(n - 2);
  for (const int64_t d : {n - 1, n + 1, n - 2, n}) order.push_back(d);
  return local.reshape(split).permute(order).reshape(merged);
}

template <at::Tensor (*rearrange)(const at::Tensor&, int64_t)>
Plan pixels_moved(const OpCall& call, const SpecPtr& required, Layout result, int64_t factor) {
  result.partials = required->layout().partials;
  Plan plan = unary_plan(call, required, {intern(std::move(result))});
  plan.run = [factor, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    const at::Tensor made = rearrange(local, factor);
    call.give(made.is_alias_of(local) ? made.clone() : made);
  };
  return plan;
}

std::optional<Plan> plan_shuffle(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  Layout result(call.mesh(), *call.output_shapes()[0]);
  const int64_t n = self->ndim(), factor = call.integer("upscale_factor");
  const SpecPtr required = without_cuts(self, {n - 3});
  for (int64_t d = 0; d < n; ++d) {
    result.cuts[d] = required->cut(d);
    for (int64_t& size : result.cuts[d].sizes) size *= d >= n - 2 ? factor : 1;
  }
  return pixels_moved<shuffle>(call, required, std::move(result), factor);
}

std::optional<Plan> plan_unshuffle(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  Layout result(call.mesh(), *call.output_shapes()[0]);
  const int64_t n = self->ndim(), factor = call.integer("downscale_factor");
  Layout required = without_cuts(self, {n - 3})->layout();
  for (int64_t d = 0; d < n; ++d) {
    result.cuts[d] = required.cuts[d];
    if (d < n - 2) continue;
    int64_t row = 0, begin = 0;
    for (size_t b = 0; b < required.cuts[d].sizes.size(); ++b) {
      row += self->cut(d).sizes[b];
      const int64_t end = (row + factor / 2) / factor;
      result.cuts[d].sizes[b] = end - begin;
      required.cuts[d].sizes[b] = (end - begin) * factor;
      begin = end;
    }
  }
  return pixels_moved<unshuffle>(call, intern(std::move(required)), std::move(result), factor);
}

// Channel i of group g comes to stand at place i * groups + g. A cut of the channels is undone for that, and made
// again.
std::optional<Plan> plan_channel_shuffle(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const int64_t groups = call.integer("groups");
  TORCH_CHECK_VALUE(self->ndim() > 2 && groups > 0 && self->global_shape()[1] % groups == 0, call.name(), ": ", groups,
                    " groups do not divide the channels\n  have  ", call.describe());
  Plan plan = unary_plan(call, without_cuts(self, {1}), {self});
  plan.run = [begin = self->offsets()[1], shape = self->local_shape(), at_self = call.arg("self"),
              at_groups = call.arg("groups")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    const int64_t groups = call.value(at_groups).toInt();
    const at::Tensor shuffled = local.unflatten(1, {groups, local.size(1) / groups}).transpose(1, 2).flatten(1, 2);
    call.give(shuffled.narrow(1, begin, shape[1]).clone(at::MemoryFormat::Contiguous));
  };
  return plan;
}

const char* const kChannels = "any cut; one of the channels is gathered and made again";

const Register pixel_shuffle_rules{
    {.op = {"aten::channel_shuffle", "aten::native_channel_shuffle"},
     .plan = plan_channel_shuffle,
     .supports = kChannels},
    {.op = "aten::pixel_shuffle", .plan = plan_shuffle, .supports = "any cut; one of the channels is gathered"},
    {.op = "aten::pixel_unshuffle",
     .plan = plan_unshuffle,
     .supports = "any cut; boundaries move to multiples of the factor, one of the channels is gathered"},
};

}  // namespace
}  // namespace moonhalo
