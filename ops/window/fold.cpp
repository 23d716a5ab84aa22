// SPDX-License-Identifier: Apache-2.0
// unfold and fold of sliding blocks (im2col, col2im). The columns are numbered row by row, so a cut
// of the rows is a cut of the columns; a cut of the other spatial dim is moved to the rows, or
// gathered where the rows are cut already.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

std::vector<int64_t> pair(std::vector<int64_t> values) {
  return values.size() == 1 ? std::vector<int64_t>(2, values[0]) : values;
}

struct Sliding {
  std::vector<Window> windows;     // rows, columns
  std::vector<int64_t> positions;  // number of windows along each
  int64_t elements = 1;            // of a window
};

Sliding sliding_of(const OpCall& call, int64_t height, int64_t width) {
  Sliding s;
  const auto kernel = pair(call.integers("kernel_size")), dilation = pair(call.integers("dilation"));
  const auto padding = pair(call.integers("padding")), stride = pair(call.integers("stride"));
  const int64_t extents[] = {height, width};
  for (size_t i = 0; i < 2; ++i) {
    const Window window{kernel[i], stride[i], dilation[i], padding[i]};
    TORCH_CHECK_VALUE(window.kernel > 0 && window.stride > 0 && window.dilation > 0 && window.padding >= 0, call.name(),
                      ": kernel_size, stride and dilation must be positive and padding not negative");
    const int64_t count = window_outputs(window, extents[i]);
    TORCH_CHECK_VALUE(count > 0, call.name(), ": a window of ", window.reach(),
                      " rows is larger than the padded input of ", extents[i] + 2 * window.padding);
    s.windows.push_back(window);
    s.positions.push_back(count);
    s.elements *= window.kernel;
  }
  return s;
}

// Sizes times `factor`.
Cut times(Cut cut, int64_t factor) {
  for (int64_t& size : cut.sizes) size *= factor;
  return cut;
}

std::optional<Plan> plan_unfold(const OpCall& call) {
  const SpecPtr self = call.spec("self");
  const int64_t ndim = self->ndim(), rows = ndim - 2, columns = ndim - 1;
  TORCH_CHECK_VALUE(ndim == 3 || ndim == 4, call.name(), ": an input of ", ndim, " dims\n  have  ", call.describe());
  const Sliding s = sliding_of(call, self->global_shape()[rows], self->global_shape()[columns]);
  Layout in = without_partial(self)->layout();
  if (in.cuts[columns]) {
    const std::vector<int64_t> mesh_dims = in.cuts[columns].mesh_dims;
    if (!in.cuts[rows]) {
      in.cuts[rows] = {mesh_dims,
                       balanced_sizes(in.global_shape[rows], static_cast<int64_t>(in.cuts[columns].sizes.size()))};
    }
    in.cuts[columns] = {};
  }
  Layout plane = in;  // one element per window
  plane.global_shape[rows] = s.positions[0];
  plane.global_shape[columns] = s.positions[1];
  if (in.cuts[rows]) plane.cuts[rows].sizes = s.windows[0].output_sizes(in.cuts[rows].sizes, s.positions[0]);
  Layout out = plane;
  out.global_shape.pop_back();
  out.cuts.pop_back();
  out.global_shape[rows] = s.positions[0] * s.positions[1];
  out.cuts[rows] = times(plane.cuts[rows], s.positions[1]);
  out.global_shape[rows - 1] *= s.elements;
  out.cuts[rows - 1] = times(in.cuts[rows - 1], s.elements);

  Plan plan;
  plan.inputs = {intern(in)};
  plan.outputs = {intern(std::move(out))};
  const auto halo = window_map(plan.inputs[0], intern(std::move(plane)), s.windows);
  if (halo) plan.argument_overrides.emplace_back(call.arg("padding"), int_list({0, s.windows[1].padding}));
  plan.run = [halo, shape = plan.outputs[0]->local_shape(), at_self = call.arg("self")](LocalCall& call) {
    at::Tensor x = call.tensor(at_self);
    if (halo) x = gather(*halo, x);
    if (c10::multiply_integers(shape) == 0) return call.give(at::empty(shape, x.options()));
    call.value(at_self) = x;
    call.run();
  };
  return plan;
}

// Moves the ends of the blocks of a cut to multiples of `unit`.
void round_blocks(Cut& cut, int64_t unit) {
  int64_t end = 0, previous = 0;
  for (int64_t& block : cut.sizes) {
    end += block;
    const int64_t boundary = (end + unit / 2) / unit;
    block = (boundary - previous) * unit;
    previous = boundary;
  }
}

// The layouts of a fold: of its input, blocks of whole rows of windows and whole channels; of one element per window;
// and of its output.
struct FoldLayouts {
  Layout in, plane, out;
};

FoldLayouts fold_layouts(const SpecPtr& self, const Sliding& s, at::IntArrayRef size) {
  const int64_t last = self->ndim() - 1;
  Layout in = without_partial(self)->layout();
  round_blocks(in.cuts[last], s.positions[1]);
  round_blocks(in.cuts[last - 1], s.elements);
  Layout out = in;
  out.global_shape[last] = size[0];
  out.global_shape.push_back(size[1]);
  out.cuts.emplace_back();
  out.global_shape[last - 1] /= s.elements;
  for (int64_t& block : out.cuts[last - 1].sizes) block /= s.elements;
  Layout plane = out;
  plane.global_shape[last] = s.positions[0];
  plane.global_shape[last + 1] = s.positions[1];
  for (int64_t& block : plane.cuts[last].sizes) block /= s.positions[1];
  // The rows whose windows' centres are in the block, as unfold would have cut them.
  const Window& window = s.windows[0];
  int64_t end = 0, previous = 0;
  for (size_t i = 0; i < out.cuts[last].sizes.size(); ++i) {
    end += plane.cuts[last].sizes[i];
    int64_t boundary = end * window.stride - window.padding + (window.reach() - 1) / 2;
    boundary = end == 0 ? 0 : end == s.positions[0] ? size[0] : std::clamp(boundary, previous, size[0]);
    out.cuts[last].sizes[i] = boundary - previous;
    previous = boundary;
  }
  return {std::move(in), std::move(plane), std::move(out)};
}

std::optional<Plan> plan_fold(const OpCall& call) {
  const SpecPtr self = call.spec("self");
  const int64_t ndim = self->ndim(), last = ndim - 1;
  TORCH_CHECK_VALUE(ndim == 2 || ndim == 3, call.name(), ": an input of ", ndim, " dims\n  have  ", call.describe());
  const auto size = pair(call.integers("output_size"));
  const Sliding s = sliding_of(call, size[0], size[1]);
  const auto& shape = self->global_shape();
  TORCH_CHECK_VALUE(shape[last] == s.positions[0] * s.positions[1] && shape[last - 1] % s.elements == 0, call.name(),
                    ": ", s.positions[0] * s.positions[1], " windows of ", s.elements,
                    " elements are expected\n  have  ", call.describe());
  FoldLayouts layouts = fold_layouts(self, s, size);

  Plan plan;
  plan.inputs = {intern(std::move(layouts.in))};
  plan.outputs = {intern(std::move(layouts.out))};
  const auto halo = window_map(plan.outputs[0], intern(std::move(layouts.plane)), s.windows);
  if (!halo) {
    plan.run = [shape = plan.outputs[0]->local_shape(), at_self = call.arg("self")](LocalCall& call) {
      const at::Tensor x = call.tensor(at_self);
      if (x.numel() == 0) return call.give(at::zeros(shape, x.options()));
      call.run();
    };
    return plan;
  }
  const std::vector<int64_t> extended = halo->needed_shape();
  plan.argument_overrides.emplace_back(call.arg("padding"), int_list({0, s.windows[1].padding}));
  plan.argument_overrides.emplace_back(call.arg("output_size"), int_list({extended[last], extended[last + 1]}));
  plan.run = [halo, at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    if (x.numel() == 0) {
      const at::Tensor nothing = at::zeros(halo->needed_shape(), x.options());
      return call.give(scatter_add(*halo, nothing));
    }
    call.run();
    call.give(scatter_add(*halo, call.result()));
  };
  return plan;
}

const Register fold_rules{
    {.op = "aten::im2col",
     .plan = plan_unfold,
     .supports = "any window; cuts of batch, channels and rows, a cut of the last dim moves to the rows",
     .traffic = Traffic::kHalo},
    {.op = "aten::col2im",
     .plan = plan_fold,
     .supports = "any window; cuts of batch, channels and columns, at whole rows of windows",
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
