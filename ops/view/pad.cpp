// SPDX-License-Identifier: Apache-2.0
// Padding by what the field itself holds: mirrored at its ends, its end rows repeated, or going round. The outer blocks
// grow, and read their new rows from wherever they are; the gradient is the map's adjoint.
//
//     reflect by 2   |2 1 0 1 2 3 4|5 6 7 8 7 6|       blocks 5 + 4 become 7 + 6
//
// PyTorch pads circularly by writing into a plain tensor, so that is pad_interception above autograd, as an operator of
// our own.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_pad_circular_native.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/support/above_autograd.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

struct Margins {
  std::vector<int64_t> before, after;  // per dim
};

Margins margins_of(const OpCall& call, at::IntArrayRef shape, Boundary boundary) {
  const auto padding = call.integers("padding");
  const auto padded = static_cast<int64_t>(padding.size() / 2), ndim = static_cast<int64_t>(shape.size());
  TORCH_CHECK_VALUE(ndim == padded + 1 || ndim == padded + 2, call.name(), ": a tensor of ", ndim, " dims instead of ",
                    padded + 1, " or ", padded + 2, "\n  have  ", call.describe());
  Margins margins{std::vector<int64_t>(ndim, 0), std::vector<int64_t>(ndim, 0)};
  bool rows_left = false;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t d = ndim - 1 - i, extent = shape[d];
    margins.before[d] = padding[2 * i];
    margins.after[d] = padding[2 * i + 1];
    const int64_t most = std::max(margins.before[d], margins.after[d]);
    TORCH_CHECK_VALUE(boundary != Boundary::kReflect || most < extent, call.name(), ": padding ", most,
                      " reflects beyond the ", extent, " rows of dim ", d, "\n  have  ", call.describe(),
                      "\n  fix   pad by less than the extent of the dim");
    TORCH_CHECK_VALUE(boundary != Boundary::kCircular || most <= extent, call.name(), ": padding ", most,
                      " goes more than once round the ", extent, " rows of dim ", d, "\n  have  ", call.describe(),
                      "\n  fix   pad by at most the extent of the dim");
    const int64_t result = extent + margins.before[d] + margins.after[d];
    // LibTorch lets some of two or three dims be cropped to nothing, but not all.
    rows_left |= result > 0;
    TORCH_CHECK_VALUE(extent > 0 && result >= 0 && (rows_left || i + 1 < padded), call.name(),
                      ": nothing is left of the ", extent, " rows of dim ", d, "\n  have  ", call.describe());
  }
  return margins;
}

// The outer blocks grow or shrink by the margins, or blocks are balanced again.
SpecPtr padded_spec(const SpecPtr& self, const Margins& margins) {
  Layout layout = self->layout();
  for (int64_t d = 0; d < self->ndim(); ++d) {
    const int64_t extent = self->global_shape()[d] + margins.before[d] + margins.after[d];
    layout.global_shape[d] = extent;
    if (self->is_cut(d)) layout.cuts[d].sizes = padded_sizes(self->cut(d).sizes, margins.before[d], extent);
  }
  return intern(std::move(layout));
}

std::shared_ptr<const IntervalMap> map_of(const SpecPtr& self, const SpecPtr& padded, const Margins& margins,
                                          Boundary boundary) {
  const auto along = [&](int64_t d, const Interval&, const Interval& rows) {
    return HaloRequest{rows.shifted(-margins.before[d]), boundary};
  };
  return std::make_shared<const IntervalMap>(self, GridRequests{padded, along});
}

template <Boundary boundary>
std::optional<Plan> plan_pad(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const Margins margins = margins_of(call, self->global_shape(), boundary);
  const SpecPtr padded = padded_spec(self, margins);
  Plan plan = unary_plan(call, self, {padded});
  if (boundary != Boundary::kCircular && !self->has_cut()) return plan;
  plan.run = [map = map_of(self, padded, margins, boundary), at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    const at::Tensor result = gather(*map, local, 0, call.halo_source(at_self));
    call.give(result.is_alias_of(local) ? result.clone() : result);
  };
  return plan;
}

template <Boundary boundary>
std::optional<Plan> plan_pad_backward(const OpCall& call) {
  const SpecPtr self = without_partial(call.spec("self"));
  const Margins margins = margins_of(call, self->global_shape(), boundary);
  const SpecPtr padded = padded_spec(self, margins);
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == padded->global_shape(), call.name(),
                    ": a gradient of shape ", shape_string(call.spec("grad_output")->global_shape()),
                    " for a result of shape ", shape_string(padded->global_shape()));
  Plan plan;
  plan.inputs = {padded, self->has_cut() ? nullptr : self};
  plan.outputs = {self};
  if (!self->has_cut()) return plan;
  plan.run = [map = map_of(self, padded, margins, boundary), at_grad = call.arg("grad_output")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad);
    const at::Tensor result = scatter_add(*map, grad);
    call.give(result.is_alias_of(grad) ? result.clone() : result);
  };
  return plan;
}

// The spec of the tensor that was padded into one of spec `grad`: the outer blocks give up the margins.
SpecPtr unpadded_spec(const SpecPtr& grad, at::IntArrayRef shape, const Margins& margins) {
  Layout layout = grad->layout();
  layout.global_shape = shape.vec();
  for (int64_t d = 0; d < grad->ndim(); ++d) {
    auto& sizes = layout.cuts[d].sizes;
    int64_t row = -margins.before[d], begin = 0;
    for (size_t b = 0; b < sizes.size(); ++b) {
      row += sizes[b];
      const int64_t end = b + 1 == sizes.size() ? shape[d] : std::clamp<int64_t>(row, begin, shape[d]);
      sizes[b] = end - begin;
      begin = end;
    }
  }
  return intern(std::move(layout));
}

std::optional<Plan> plan_circular_backward(const OpCall& call) {
  const auto shape = call.integers("sizes");
  const Margins margins = margins_of(call, shape, Boundary::kCircular);
  const SpecPtr self = unpadded_spec(resolve_nonlinear(call.spec("grad")), shape, margins);
  const SpecPtr padded = padded_spec(self, margins);
  Plan plan = unary_plan(call, padded, {self});
  plan.run = [map = map_of(self, padded, margins, Boundary::kCircular), at_grad = call.arg("grad")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad);
    const at::Tensor result = scatter_add(*map, grad);
    call.give(result.is_alias_of(grad) ? result.clone() : result);
  };
  return plan;
}

at::Tensor pad_circular(const at::Tensor& self, at::IntArrayRef padding) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moonhalo::pad_circular", "")
                             .typed<at::Tensor(const at::Tensor&, at::IntArrayRef)>();
  return op.call(self, padding);
}

at::Tensor pad_circular_backward(const at::Tensor& grad, at::IntArrayRef sizes, at::IntArrayRef padding) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moonhalo::pad_circular_backward", "")
                             .typed<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef)>();
  return op.call(grad, sizes, padding);
}

// Both are linear, and each is the other's adjoint. What they do runs without recording, so the boundary is guarded
// here.
template <typename Linear, typename Adjoint>
at::Tensor record(const at::Tensor& self, const Linear& linear, Adjoint adjoint) {
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = linear(self);
  }
  if (c10::GradMode::is_enabled() && self.requires_grad()) install_gradient_hook(self);
  attach_backward(self, result, std::move(adjoint), linear);
  return result;
}

at::Tensor record_pad(const at::Tensor& self, at::IntArrayRef padding) {
  return record(
      self, [&](const at::Tensor& x) { return pad_circular(x, padding); },
      [sizes = self.sizes().vec(), padding = padding.vec()](const at::Tensor& grad) {
        return pad_circular_backward(grad, sizes, padding);
      });
}

at::Tensor record_pad_backward(const at::Tensor& grad, at::IntArrayRef sizes, at::IntArrayRef padding) {
  return record(
      grad, [&](const at::Tensor& x) { return pad_circular_backward(x, sizes, padding); },
      [padding = padding.vec()](const at::Tensor& padded) { return pad_circular(padded, padding); });
}

at::Tensor intercept_pad_circular(const at::Tensor& self, c10::SymIntArrayRef pad) {
  // When PyTorch crops, it goes round the rows that are left, not round all. Its composite does that.
  const bool crops = std::any_of(pad.begin(), pad.end(), [](const c10::SymInt& rows) { return rows < 0; });
  if (!is_shard_tensor(self) || crops) return at::native::_pad_circular_symint(self, pad);
  return pad_circular(self, C10_AS_INTARRAYREF_SLOW(pad));
}

void intercept_pad(torch::Library& library) { library.impl("_pad_circular", &intercept_pad_circular); }

const InterceptAboveAutograd pad_interception(&intercept_pad);

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  library.def("pad_circular(Tensor self, int[] padding) -> Tensor");
  library.def("pad_circular_backward(Tensor grad, int[] sizes, int[] padding) -> Tensor");
  library.impl("pad_circular", c10::DispatchKey::Autograd, &record_pad);
  library.impl("pad_circular_backward", c10::DispatchKey::Autograd, &record_pad_backward);
}

constexpr auto kReflect = plan_pad<Boundary::kReflect>, kReflectBack = plan_pad_backward<Boundary::kReflect>;
constexpr auto kRepeat = plan_pad<Boundary::kReplicate>, kRepeatBack = plan_pad_backward<Boundary::kReplicate>;
const char* const kPadAny = "any cut";

const Register pad_rules{
    {.op = "moonhalo::pad_circular",
     .plan = plan_pad<Boundary::kCircular>,
     .source = "PyTorch pad, circular",
     .supports = kPadAny,
     .traffic = Traffic::kHalo},
    {.op = "moonhalo::pad_circular_backward",
     .plan = plan_circular_backward,
     .source = "PyTorch pad, circular",
     .supports = kPadAny,
     .traffic = Traffic::kHalo},
    {.op = {"aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d"},
     .plan = kReflect,
     .supports = kPadAny,
     .traffic = Traffic::kHalo},
    {.op = {"aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward"},
     .plan = kReflectBack,
     .supports = kPadAny,
     .traffic = Traffic::kHalo},
    {.op = {"aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d"},
     .plan = kRepeat,
     .supports = kPadAny,
     .traffic = Traffic::kHalo},
    {.op = {"aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward"},
     .plan = kRepeatBack,
     .supports = kPadAny,
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
