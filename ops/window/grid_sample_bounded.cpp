// SPDX-License-Identifier: Apache-2.0
// grid_sample with a stated bound on displacements: outputs are cut as the grid is, and each rank fetches the box of
// the input that its outputs can reach. Backward, the gradient of that box returns to its owners by the map's
// adjoint. The kernels are the host's: blocks of a device are sampled there, and rows are sent from device to
// device.
//
//     outputs   |0 1 2 3|4 5 6 7|      max_displacement 1.5, bilinear:
//     input     |0 1 2 3|4 5 6 7|      rank 0 reads rows [0, 6), rank 1 rows [2, 8)
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/grid_sample.h"
#include "moonhalo/ops/window/grid_sample_local.h"

namespace moonhalo {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensor = at::Tensor;
using Word = std::string_view;
using Bound = std::optional<at::ArrayRef<double>>;
using Pair = std::tuple<Tensor, Tensor>;

GridSample options_of(Word mode, Word padding_mode, bool align_corners, Bound bound) {
  GridSample options{std::string(mode), std::string(padding_mode), align_corners};
  if (bound) options.max_displacement = bound->vec();
  return options;
}

Sampler sampler_of(const GridSample& options, const Tensor& input, const Tensor& grid) {
  return {options, input.sizes(), grid.sizes(), input.scalar_type(), grid.scalar_type()};
}

Tensor whole(const Sampler& s, const Tensor& input, const Tensor& grid) {
  return at::grid_sampler(input, grid, static_cast<int64_t>(s.mode), static_cast<int64_t>(s.padding), s.align_corners);
}

// With a bound one device runs these kernels as blocks do: at a kink the side that a derivative is taken from
// hangs on the last bit of a position.
Tensor forward_cpu(const Tensor& input, const Tensor& grid, Word mode, Word padding_mode, bool align_corners,
                   Bound bound) {
  const Sampler sampler = sampler_of(options_of(mode, padding_mode, align_corners, bound), input, grid);
  if (!bound) return whole(sampler, input, grid);
  const std::vector<int64_t> origin(sampler.in.size(), 0);
  sampler.check_displacement(sampler.displacement(grid, origin));
  return sample_part(sampler, input, origin, grid);
}

Tensor forward_meta(const Tensor& input, const Tensor& grid, Word mode, Word padding_mode, bool align_corners,
                    Bound bound) {
  const Sampler sampler = sampler_of(options_of(mode, padding_mode, align_corners, bound), input, grid);
  std::vector<int64_t> shape = {input.size(0), input.size(1)};
  shape.insert(shape.end(), sampler.out.begin(), sampler.out.end());
  return at::empty(shape, input.options());
}

Pair backward_cpu(const Tensor& grad, const Tensor& input, const Tensor& grid, Word mode, Word padding_mode,
                  bool align_corners, Bound bound, RequiredSamples required) {
  const Sampler sampler = sampler_of(options_of(mode, padding_mode, align_corners, bound), input, grid);
  return sample_part_backward(sampler, grad, input, input.sizes(), std::vector<int64_t>(sampler.in.size(), 0), grid,
                              required);
}

Pair backward_meta(const Tensor&, const Tensor& input, const Tensor& grid, Word, Word, bool, Bound,
                   RequiredSamples required) {
  const auto like = [](const Tensor& t) { return at::empty(t.sizes(), t.options()); };
  return {required[0] ? like(input) : Tensor(), required[1] ? like(grid) : Tensor()};
}

// Autograd

Tensor call(const Tensor& input, const Tensor& grid, const GridSample& o) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::grid_sample", "").typed<decltype(forward_cpu)>();
  const Bound bound = o.max_displacement ? Bound(at::ArrayRef<double>(*o.max_displacement)) : Bound();
  return op.call(input, grid, o.mode, o.padding_mode, o.align_corners, bound);
}

Pair call_backward(const Tensor& grad, const Tensor& input, const Tensor& grid, const GridSample& o,
                   RequiredSamples required) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moonhalo::grid_sample_backward", "")
                             .typed<decltype(backward_cpu)>();
  const Bound bound = o.max_displacement ? Bound(at::ArrayRef<double>(*o.max_displacement)) : Bound();
  return op.call(grad, input, grid, o.mode, o.padding_mode, o.align_corners, bound, required);
}

bool differentiates(const Tensor& tensor) {
  return (c10::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
}

// Stands in the graph of a derivative that was recorded, to say what cannot be had.
struct SampleBackward : torch::autograd::Function<SampleBackward> {
  static variable_list forward(AutogradContext*, const Tensor& grad, const Tensor& input, const Tensor& grid,
                               const GridSample& options, RequiredSamples required) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [for_input, for_grid] = call_backward(grad, input, grid, options, required);
    // A Function has no undefined results.
    if (!required[0]) for_input = at::empty({0}, at::kFloat);
    if (!required[1]) for_grid = at::empty({0}, at::kFloat);
    return {for_input, for_grid};
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "grid_sample: its second derivative is asked for",
        "\n  have  a gradient through grid_sample_backward, which has no formula, in LibTorch neither",
        "\n  fix   do not differentiate its gradient (no create_graph)");
  }
};

struct Sample : torch::autograd::Function<Sample> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& grid, const GridSample& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    context->save_for_backward({input, grid});
    context->saved_data["mode"] = options.mode;
    context->saved_data["padding_mode"] = options.padding_mode;
    context->saved_data["align_corners"] = options.align_corners;
    if (options.max_displacement) context->saved_data["max_displacement"] = *options.max_displacement;
    return call(input, grid, options);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(3);
    auto& data = context->saved_data;
    GridSample options{data["mode"].toStringRef(), data["padding_mode"].toStringRef(), data["align_corners"].toBool()};
    if (data.count("max_displacement")) options.max_displacement = data["max_displacement"].toDoubleVector();
    const auto saved = context->get_saved_variables();
    // The graph is the same on all ranks, and so is what is asked of it.
    auto [for_input, for_grid] = call_backward(grads[0], saved[0], saved[1], options,
                                               {context->needs_input_grad(0), context->needs_input_grad(1)});
    return {for_input, for_grid, Tensor()};
  }
};

Tensor forward_autograd(const Tensor& input, const Tensor& grid, Word mode, Word padding_mode, bool align_corners,
                        Bound bound) {
  const GridSample options = options_of(mode, padding_mode, align_corners, bound);
  // Without a bound this is LibTorch's operator, whose rule gathers the input's space.
  if (!bound) return whole(sampler_of(options, input, grid), input, grid);
  if (differentiates(input) || differentiates(grid)) {
    for (const Tensor* tensor : {&input, &grid}) {
      if (c10::GradMode::is_enabled() && tensor->requires_grad()) install_gradient_hook(*tensor);
    }
    return Sample::apply(input, grid, options);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return call(input, grid, options);
}

Pair backward_autograd(const Tensor& grad, const Tensor& input, const Tensor& grid, Word mode, Word padding_mode,
                       bool align_corners, Bound bound, RequiredSamples required) {
  const GridSample options = options_of(mode, padding_mode, align_corners, bound);
  if (differentiates(grad) || differentiates(input) || differentiates(grid)) {
    const auto results = SampleBackward::apply(grad, input, grid, options, required);
    return {required[0] ? results[0] : Tensor(), required[1] ? results[1] : Tensor()};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_backward(grad, input, grid, options, required);
}

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  library.def(
      "grid_sample(Tensor input, Tensor grid, str mode=\"bilinear\", str padding_mode=\"zeros\", "
      "bool align_corners=False, *, "
      "float[]? max_displacement=None) -> Tensor");
  library.def(
      "grid_sample_backward(Tensor grad, Tensor input, Tensor grid, str mode, str padding_mode, "
      "bool align_corners, "
      "float[]? max_displacement, bool[2] output_mask) -> (Tensor grad_input, Tensor grad_grid)");
  library.impl("grid_sample", c10::DispatchKey::CPU, &forward_cpu);
  library.impl("grid_sample", c10::DispatchKey::Meta, &forward_meta);
  library.impl("grid_sample", c10::DispatchKey::Autograd, &forward_autograd);
  library.impl("grid_sample_backward", c10::DispatchKey::CPU, &backward_cpu);
  library.impl("grid_sample_backward", c10::DispatchKey::Meta, &backward_meta);
  library.impl("grid_sample_backward", c10::DispatchKey::Autograd, &backward_autograd);
}

// On blocks

struct Division {
  Sampler sampler;
  SpecPtr input, grid, output;
  std::shared_ptr<const IntervalMap> halo_map;
  std::vector<int64_t> begin;  // of the fetched box's space

  static GridSample options(const OpCall& call) {
    GridSample o{call.value("mode").toStringRef(), call.value("padding_mode").toStringRef(),
                 call.flag("align_corners")};
    if (call.given("max_displacement")) o.max_displacement = call.value("max_displacement").toDoubleVector();
    return o;
  }

  explicit Division(const OpCall& call)
      : sampler(options(call), call.spec("input")->global_shape(), call.spec("grid")->global_shape(),
                call.tensor("input").dtype, call.tensor("grid").dtype),
        input(without_partial(call.spec("input"))) {
    const int64_t dims = static_cast<int64_t>(sampler.in.size());
    std::vector<int64_t> shape = {input->global_shape()[0], input->global_shape()[1]};
    shape.insert(shape.end(), sampler.out.begin(), sampler.out.end());
    Layout out(input->mesh(), shape);
    const ShardSpec& points = *call.spec("grid");
    out.cuts[0] = points.cut(0);
    for (int64_t d = 0; d < dims; ++d) out.cuts[d + 2] = points.cut(d + 1);
    for (int64_t d = 0; d < dims + 2; ++d) {
      Cut cut = input->cut(d);
      if (out.cuts[d] || !is_free(cut, out)) continue;
      if (cut && d >= 2) cut.sizes = proportional_sizes(cut.sizes, shape[d]);
      out.cuts[d] = std::move(cut);
    }
    // Ranks that give the same output would each add to the input's gradient.
    for (int64_t d = 0; d < dims + 2; ++d) {
      const auto& mesh_dims = input->cut(d).mesh_dims;
      if (!std::all_of(mesh_dims.begin(), mesh_dims.end(), [&](int64_t m) { return out.uses(m); }))
        input = without_cuts(input, d);
    }
    output = intern(std::move(out));

    Layout asked(input->mesh(), points.global_shape());
    asked.cuts[0] = output->cut(0);
    for (int64_t d = 0; d < dims; ++d) asked.cuts[d + 1] = output->cut(d + 2);
    grid = intern(std::move(asked));

    const auto box = [&](int64_t rank) {
      Box box = block_box(*output, rank);
      for (int64_t d = 2; d < box.ndim(); ++d) box[d] = sampler.rows_read(d - 2, box[d]);
      return box;
    };
    halo_map = std::make_shared<const IntervalMap>(input, [&](int64_t rank) { return requests_for(box(rank)); });
    for (const Interval& rows : box(input->mesh()->rank())) begin.push_back(rows.begin);
    begin.erase(begin.begin(), begin.begin() + 2);
  }

  // A mesh dim that divides outputs but not the tensor leaves sums: of the input over all, of the grid over channels.
  SpecPtr sums(const SpecPtr& like, const std::vector<int64_t>& dims_of_output) const {
    Layout layout = like->layout();
    for (const int64_t d : dims_of_output) {
      for (const int64_t m : output->cut(d).mesh_dims) {
        if (!like->layout().uses(m)) layout.partials[m] = ReduceOp::kSum;
      }
    }
    return intern(std::move(layout));
  }
};

/// The largest distance between a point of `grid` and its output, along each dim.
Tensor displacement_of(const Division& d, const Tensor& grid) {
  const auto& offsets = d.output->offsets();
  return d.sampler.displacement(grid, {offsets.begin() + 2, offsets.end()});
}

/// In a dry run points that come from other ranks are zeros, and may be further away than the rows that are there. Then
/// they are not computed.
Tensor readable(const Division& d, const Tensor& grid) {
  if (!d.input->mesh()->group().is_fake() || is_fake(grid)) return grid;
  const at::DisableRecordFunctionGuard no_step_of_a_run;
  if (d.sampler.is_within_bound(displacement_of(d, grid))) return grid;
  Tensor unknown = grid.detach();
  forget_values(unknown);
  return unknown;
}

std::optional<Plan> plan_sample(const OpCall& call) {
  const auto division = std::make_shared<const Division>(call);
  Plan plan;
  plan.inputs = {division->input, division->grid};
  plan.outputs = {division->output};
  plan.run = [division, at_input = call.arg("input"), at_grid = call.arg("grid")](LocalCall& call) {
    const Division& d = *division;
    const Tensor input = call.tensor(at_input), grid = readable(d, call.tensor(at_grid).cpu());
    Tensor away = displacement_of(d, grid);
    d.input->mesh()->group().all_reduce(away, ReduceOp::kMax);
    if (!is_fake(grid)) d.sampler.check_displacement(away);
    const Tensor part = gather(*d.halo_map, input);
    call.give(sample_part(d.sampler, part.cpu(), d.begin, grid).to(input.device()));
  };
  return plan;
}

std::optional<Plan> plan_sample_backward(const OpCall& call) {
  const auto division = std::make_shared<const Division>(call);
  const int64_t ndim = division->output->ndim();
  Plan plan;
  const auto mask = call.value("output_mask").toBoolList();
  const RequiredSamples required = {mask[0], mask[1]};
  plan.inputs = {division->output, required[1] ? division->input : SpecPtr(), division->grid};
  plan.outputs = {required[0] ? division->sums(division->input, all_dims(ndim)) : SpecPtr(),
                  required[1] ? division->sums(division->grid, {1}) : SpecPtr()};
  plan.run = [division, required, at_grad = call.arg("grad"), at_grid = call.arg("grid"),
              at_input = call.arg("input")](LocalCall& call) {
    const Division& d = *division;
    const Tensor grad = call.tensor(at_grad), grid = readable(d, call.tensor(at_grid).cpu());
    Tensor part;
    if (required[1]) part = gather(*d.halo_map, call.tensor(at_input)).cpu();
    auto [for_part, for_grid] =
        sample_part_backward(d.sampler, grad.cpu(), part, d.halo_map->needed_shape(), d.begin, grid, required);
    Tensor for_input;
    if (required[0]) for_input = scatter_add(*d.halo_map, for_part.to(grad.device()));
    if (required[1]) for_grid = for_grid.to(grad.device());
    call.give(std::move(for_input), std::move(for_grid));
  };
  return plan;
}

constexpr const char* kGridSampleBoundedSource = "PyTorch grid_sample";
constexpr const char* kGridSampleBoundedSupports = "any cut";

const Register grid_sample_bounded_rules{
    {.op = "moonhalo::grid_sample",
     .plan = plan_sample,
     .source = kGridSampleBoundedSource,
     .supports = kGridSampleBoundedSupports,
     .traffic = Traffic::kHalo | Traffic::kAllReduce},
    {.op = "moonhalo::grid_sample_backward",
     .plan = plan_sample_backward,
     .source = kGridSampleBoundedSource,
     .supports = kGridSampleBoundedSupports,
     .traffic = Traffic::kHalo | Traffic::kAllReduce},
};

}  // namespace

at::Tensor grid_sample(const at::Tensor& input, const at::Tensor& grid, const GridSample& options) {
  return call(input, grid, options);
}

}  // namespace moonhalo
