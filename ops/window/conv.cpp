// SPDX-License-Identifier: Apache-2.0
// Convolution of any kernel, stride, dilation, padding, groups, transposed or not, on any cut: an output row belongs
// to the rank that owns the centre of its window, so every rank fetches the input rows that its outputs need, and
// then convolves what it has without padding along the cut dims. A rule fills a ConvPlan in three steps: arguments,
// layouts, parts.
#include "moonhalo/ops/window/conv.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

// Checks the channels of an input of shape `x` and a weight of shape `w`. `have` ends messages.
void check_channels(const ConvPlan& plan, at::IntArrayRef x, at::IntArrayRef w, const std::string& have) {
  TORCH_CHECK_VALUE(x.size() == w.size() && x.size() >= 3, "convolution: an input of ", x.size(),
                    " dims and a weight of ", w.size(), have, "\n  fix   give both a batch and a channel dim first");
  TORCH_CHECK_VALUE(plan.groups > 0 && w[0] % plan.groups == 0, "convolution: the weight's ", w[0],
                    " channels do not divide into ", plan.groups, " groups", have);
  const int64_t takes = plan.transposed ? w[0] : w[1] * plan.groups;
  TORCH_CHECK_VALUE(x[1] == takes, "convolution: the input has ", x[1], " channels, the weight takes ", takes, have,
                    "\n  fix   use a weight for ", x[1], " channels");
}

// An argument of one number, or one per spatial dim; absent: `otherwise`.
std::vector<int64_t> numbers_of(const OpCall& call, const char* argument, std::optional<int64_t> otherwise,
                                size_t spatial, const std::string& have) {
  if (otherwise && !call.has(argument)) return std::vector<int64_t>(spatial, *otherwise);
  std::vector<int64_t> values = call.integers(argument);
  TORCH_CHECK_VALUE(values.size() == 1 || values.size() == spatial, "convolution: ", argument, " has ", values.size(),
                    " numbers for ", spatial, " dims", have, "\n  fix   give one number, or ", spatial);
  if (values.size() == 1) values.resize(spatial, values[0]);
  return values;
}

// Adds one spatial dim: its window and the extent of its outputs.
void add_dim(ConvPlan& plan, const Window& window, int64_t rows, int64_t output_padding, const std::string& have) {
  const size_t dim = plan.output_shape.size();
  TORCH_CHECK_VALUE(window.stride > 0 && window.dilation > 0 && window.padding >= 0,
                    "convolution: stride and dilation must be positive and padding not negative");
  const int64_t below = std::max(window.stride, window.dilation);
  TORCH_CHECK_VALUE(!plan.transposed || (output_padding >= 0 && output_padding < below), "convolution: output padding ",
                    output_padding, " along dim ", dim, " is not below the stride of ", window.stride,
                    " or the dilation of ", window.dilation, have, "\n  fix   use one of 0 to ", below - 1);
  const int64_t extent = plan.transposed
                             ? (rows - 1) * window.stride - 2 * window.padding + window.reach() + output_padding
                             : window_outputs(window, rows);
  TORCH_CHECK_VALUE(extent > 0 || rows == 0, "convolution: a window of ", window.reach(), " rows along dim ", dim,
                    " is larger than the padded input of ", rows + 2 * window.padding, have,
                    "\n  fix   use a smaller kernel or dilation, or pad the input");
  plan.windows.push_back(window);
  plan.stride.push_back(window.stride);
  plan.dilation.push_back(window.dilation);
  plan.output_padding.push_back(output_padding);
  plan.output_shape.push_back(std::max<int64_t>(extent, 0));
}

// Step 1: reads and checks the arguments.
ConvPlan read_arguments(const OpCall& call, const ShardSpec& input, const ShardSpec& weight) {
  ConvPlan plan;
  plan.transposed =
      call.has("transposed") ? call.flag("transposed") : call.name().find("transpose") != std::string::npos;
  if (call.has("groups")) plan.groups = call.integer("groups");
  const std::vector<int64_t>&x = input.global_shape(), &w = weight.global_shape();
  const std::string have =
      "\n  have  input " + shape_string(x) + ", weight " + shape_string(w) + ", groups " + std::to_string(plan.groups);
  check_channels(plan, x, w, have);
  const auto given = [&](const char* argument, std::optional<int64_t> otherwise = {}) {
    return numbers_of(call, argument, otherwise, x.size() - 2, have);
  };
  const auto stride = given("stride"), padding = given("padding"), dilation = given("dilation", 1),
             output_padding = given("output_padding", 0);
  plan.output_shape = {x[0], plan.transposed ? w[1] * plan.groups : w[0]};
  if (const SpecPtr bias = call.has("bias") ? call.spec("bias") : nullptr) {
    TORCH_CHECK_VALUE(bias->global_shape() == std::vector<int64_t>{plan.output_shape[1]},
                      "convolution: a bias of shape ", shape_string(bias->global_shape()), " for ",
                      plan.output_shape[1], " output channels", have,
                      "\n  fix   give one number for each output channel");
  }
  for (size_t i = 0; i < stride.size(); ++i)
    add_dim(plan, {w[i + 2], stride[i], dilation[i], padding[i], plan.transposed}, x[i + 2], output_padding[i], have);
  return plan;
}

// LibTorch's kernels check this, too, but a rank without rows calls none.
void check_types(const OpCall& call, std::initializer_list<const char*> names) {
  const TensorArgument* first = nullptr;
  for (const char* name : names) {
    const int at = call.has(name) ? call.slot(name) : -1;
    if (at < 0 || !call.slots()[at].spec) continue;
    const TensorArgument& slot = call.slots()[at];
    if (!first) first = &slot;
    TORCH_CHECK_TYPE(slot.dtype == first->dtype, "convolution: the ", *names.begin(), " is ", first->dtype, ", the ",
                     name, " ", slot.dtype, "\n  have  ", call.describe(), "\n  fix   convert them to one type");
  }
}

// Mesh dims that a layout cuts with, except along one dim.
std::vector<int64_t> cutting(const Layout& layout, int64_t except = -1) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < layout.cuts.size(); ++d) {
    if (static_cast<int64_t>(d) == except) continue;
    dims.insert(dims.end(), layout.cuts[d].mesh_dims.begin(), layout.cuts[d].mesh_dims.end());
  }
  return dims;
}

// The same cut of an axis whose rows come in multiples of `unit` here and become multiples of
// `scaled`; boundaries move to the nearest multiple.
Cut scaled_cut(const Cut& cut, int64_t unit, int64_t scaled) {
  Cut result{cut.mesh_dims, {}};
  int64_t end = 0, previous = 0;
  for (const int64_t size : cut.sizes) {
    end += size;
    const int64_t units = (end + unit / 2) / unit;
    result.sizes.push_back((units - previous) * scaled);
    previous = units;
  }
  return result;
}

// The plan whose input and weight are cut as `x` and `w` say, with the bias and the output that follow.
ConvPlan with_layouts(ConvPlan plan, Layout x, Layout w) {
  Layout out(x.mesh, plan.output_shape);
  out.cuts[0] = x.cuts[0];
  const auto partial_over = [&](const Cut& cut) {
    for (const int64_t m : cut.mesh_dims) out.partials[m] = ReduceOp::kSum;
  };
  if (plan.groups == 1) {
    out.cuts[1] = w.cuts[plan.out_dim()];
    partial_over(x.cuts[1]);
  } else if (x.cuts[1]) {
    out.cuts[1] = scaled_cut(x.cuts[1], x.global_shape[1] / plan.groups, plan.output_shape[1] / plan.groups);
  }
  for (size_t d = 2; d < out.cuts.size(); ++d) {
    const Cut& cut = x.cuts[d];
    if (w.cuts[d]) {
      partial_over(w.cuts[d]);
    } else if (cut) {
      out.cuts[d] = {cut.mesh_dims, plan.windows[d - 2].output_sizes(cut.sizes, plan.output_shape[d])};
    }
  }
  Layout bias(x.mesh, {plan.output_shape[1]});
  bias.cuts[0] = out.cuts[1];
  bias.partials = out.partials;  // added once, not by every rank
  plan.input_spec = intern(std::move(x));
  plan.weight_spec = intern(std::move(w));
  plan.output_spec = intern(std::move(out));
  plan.bias_spec = intern(std::move(bias));
  return plan;
}

// Step 2: chooses how the tensors are cut. Follows the input's cuts; the weight's cuts of channels are kept where their
// mesh dims are free. `may_contract`: a weight that is itself a cut field (second derivatives) is summed over block by
// block instead of being gathered.
ConvPlan choose_layouts(const ConvPlan& plan, const SpecPtr& input, const SpecPtr& weight, bool may_contract) {
  Layout x = without_partial(input)->layout();
  Layout w(x.mesh, weight->global_shape());
  if (plan.groups > 1) {
    const int64_t x_unit = x.global_shape[1] / plan.groups, w_unit = w.global_shape[0] / plan.groups;
    const Cut& own = weight->cut(0);
    if (x.cuts[1]) {
      x.cuts[1] = scaled_cut(x.cuts[1], x_unit, x_unit);
    } else if (own && !intersects(own.mesh_dims, cutting(x))) {
      x.cuts[1] = scaled_cut(own, w_unit, x_unit);
    }
    if (x.cuts[1]) w.cuts[0] = scaled_cut(x.cuts[1], x_unit, w_unit);
    return with_layouts(plan, std::move(x), std::move(w));
  }

  const Cut& own_in = weight->cut(plan.in_dim());
  const Cut& own_out = weight->cut(plan.out_dim());
  if (x.cuts[1] && own_out && intersects(own_out.mesh_dims, x.cuts[1].mesh_dims)) {
    // Both channel axes want the same mesh dim: gather the input, or cut the weight again and sum the outputs.
    Layout gathered = x;
    gathered.cuts[1] = {};
    Layout recut = w, kept = w;
    recut.cuts[plan.in_dim()] = x.cuts[1];
    if (!intersects(own_out.mesh_dims, cutting(gathered))) kept.cuts[plan.out_dim()] = own_out;
    const ConvPlan first = with_layouts(plan, gathered, kept);
    const ConvPlan second = with_layouts(plan, x, recut);
    const auto cost = [&](const ConvPlan& way) {
      return redistribution_cost(*input, *way.input_spec) + redistribution_cost(*weight, *way.weight_spec) +
             redistribution_cost(*way.output_spec, *without_partial(way.output_spec));
    };
    return cost(first) <= cost(second) ? first : second;
  }
  if (!x.cuts[1] && own_in && !intersects(own_in.mesh_dims, cutting(x))) x.cuts[1] = own_in;
  w.cuts[plan.in_dim()] = x.cuts[1];
  if (own_out && !intersects(own_out.mesh_dims, cutting(x))) w.cuts[plan.out_dim()] = own_out;
  for (int64_t dim = 2; may_contract && !plan.transposed && dim < input->ndim(); ++dim) {
    const Cut& cut = weight->cut(dim);
    const bool field = plan.output_shape[dim] <= w.global_shape[dim];
    const bool together = !x.cuts[dim] || x.cuts[dim].mesh_dims == cut.mesh_dims;
    if (cut && field && together && !intersects(cut.mesh_dims, cutting(x, dim)) &&
        !intersects(cut.mesh_dims, cutting(w))) {
      w.cuts[dim] = cut;
    }
  }
  return with_layouts(plan, std::move(x), std::move(w));
}

// The windows of a rank, per spatial dim: of a weight that is a cut field, those of the rank's rows of it.
std::vector<Window> windows_of(const ConvPlan& plan, int64_t rank) {
  std::vector<Window> windows = plan.windows;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (!plan.contracts(i)) continue;
    const Interval rows = plan.weight_spec->block_range(static_cast<int64_t>(i) + 2, rank);
    windows[i].kernel = rows.size();
    windows[i].padding -= rows.begin * windows[i].dilation;
  }
  return windows;
}

// The rows that a rank needs.
Box rows_needed(const ConvPlan& plan, int64_t rank) {
  const std::vector<Window> windows = windows_of(plan, rank);
  Box box = block_box(*plan.input_spec, rank);
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    if (!plan.contracts(i) && !spans_ranks(plan.input_spec, dim)) continue;
    box[dim] =
        windows[i].kernel > 0 ? windows[i].input_needed(plan.output_spec->block_range(dim, rank)) : Interval{0, 0};
  }
  return box;
}

// True if on every rank the owned rows with symmetric padding give exactly its outputs, along the dims that are cut.
bool gives_outputs(const ConvPlan& plan) {
  for (size_t i = 0; i < plan.windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    for (int64_t rank = 0; spans_ranks(plan.input_spec, dim) && rank < plan.input_spec->mesh()->size(); ++rank) {
      const Interval rows = plan.input_spec->block_range(dim, rank), outputs = plan.output_spec->block_range(dim, rank);
      Window window = plan.windows[i];
      window.padding = rows.begin - window.input_needed(outputs).begin;
      if (outputs.empty()) continue;
      if (rows.empty() || window.padding < 0 || window_outputs(window, rows.size()) != outputs.size()) return false;
    }
  }
  return true;
}

// The call of LibTorch's kernel for a part of this rank, whose windows are `windows`.
ConvPlan::Call call_of(const ConvPlan& plan, const std::vector<Window>& windows, const HaloSplit::Part& part) {
  ConvPlan::Call call{part, {}, {}, {}};
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const Interval outputs = part.output[dim];
    call.padding.push_back(windows[i].padding);
    call.crop.push_back(0);
    call.uncropped.push_back(outputs.size());
    if (outputs.empty()) continue;
    if (!plan.transposed) {
      call.padding.back() = part.input[dim].begin - windows[i].input_needed(outputs).begin;
    } else if (spans_ranks(plan.input_spec, dim)) {
      // The kernel's own padding cuts off what both ends have too much.
      const Interval fed = windows[i].outputs_fed(part.input[dim]);
      const int64_t before = outputs.begin - fed.begin, both = std::min(before, fed.end - outputs.end);
      call.padding.back() = both;
      call.crop.back() = before - both;
      call.uncropped.back() = fed.size() - 2 * both;
    }
  }
  return call;
}

// Step 3: divides this rank's outputs, and makes the maps that bring what it fetches. Backward, a transposed
// convolution stays whole: its weight's gradient then overlaps with returning the gradients of the halo rows.
void divide(ConvPlan& plan, bool backward) {
  const SpecPtr& input = plan.input_spec;
  const int64_t rank = input->mesh()->rank();
  plan.local_groups = plan.groups;
  if (plan.groups > 1 && input->is_cut(1)) {
    plan.local_groups = input->local_shape()[1] / (input->global_shape()[1] / plan.groups);
  }
  bool contracts = false;
  for (size_t i = 0; i < plan.windows.size(); ++i) {
    if (spans_ranks(input, static_cast<int64_t>(i) + 2)) plan.output_padding[i] = 0;
    contracts |= plan.contracts(i);
  }
  plan.block = block_box(*plan.output_spec, rank);
  const HaloReach reach = reach_of(input, plan.output_spec, plan.windows);
  plan.maps = halo_maps(reach, input);
  const bool divides = plan.transposed ? !backward && !plan.maps.empty() : gives_outputs(plan);
  HaloSplit split;
  if (!contracts && (divides || reach.cut.empty())) {
    split = split_inputs(reach, rank);
  } else {
    split = undivided(plan.block, rows_needed(plan, rank));
    const auto requests = [&](int64_t r) { return requests_for(rows_needed(plan, r)); };
    plan.maps = {std::make_shared<const IntervalMap>(input, requests)};
  }
  const std::vector<Window> windows = windows_of(plan, rank);
  if (split.interior) plan.interior = call_of(plan, windows, *split.interior);
  for (const HaloSplit::Part& slab : split.slabs) plan.slabs.push_back(call_of(plan, windows, slab));
  plan.halo_rows = std::move(split.halo_rows);
}

// Operators that stand for one way to compute a convolution, by other names and with fewer arguments, are carried out
// as convolutions. They also take an input without a batch, which the fallback serves.
bool covered(const OpCall& call, const char* input) {
  return call.has("groups") || call.spec(input)->ndim() == call.spec("weight")->ndim();
}

std::optional<Plan> plan_forward(const OpCall& call) {
  const char* const x = call.has("input") ? "input" : "self";
  if (!covered(call, x)) return std::nullopt;
  const SpecPtr input = call.spec(x), weight = call.spec("weight");
  ConvPlan conv = read_arguments(call, *input, *weight);
  check_types(call, {x, "weight", "bias"});
  conv = choose_layouts(conv, input, weight, /*may_contract=*/true);
  divide(conv, /*backward=*/false);
  Plan plan;
  plan.inputs.resize(call.slots().size());
  plan.inputs[call.slot(x)] = conv.input_spec;
  plan.inputs[call.slot("weight")] = conv.weight_spec;
  if (const int slot = call.slot("bias"); slot >= 0 && call.slots()[slot].spec) plan.inputs[slot] = conv.bias_spec;
  plan.outputs = {conv.output_spec};
  plan.run = [conv = std::move(conv), x = call.arg(x), w = call.arg("weight"), b = call.arg("bias")](LocalCall& call) {
    const auto bias = call.value(b).toOptional<at::Tensor>();
    at::Tensor out = conv.forward(call.tensor(x), call.tensor(w), bias, call.halo_source(x));
    call.give(std::move(out));
  };
  return plan;
}

std::optional<Plan> plan_backward(const OpCall& call) {
  const char* const x = call.has("input") ? "input" : "self";
  if (!covered(call, x)) return std::nullopt;
  const SpecPtr input = call.spec(x), weight = call.spec("weight");
  ConvPlan conv = read_arguments(call, *input, *weight);
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == conv.output_shape,
                    "convolution_backward: the gradient of the output has shape ",
                    shape_string(call.spec("grad_output")->global_shape()), ", the output ",
                    shape_string(conv.output_shape));
  check_types(call, {x, "weight", "grad_output"});
  conv = choose_layouts(conv, input, weight, /*may_contract=*/false);
  divide(conv, /*backward=*/true);
  Plan plan;
  plan.inputs = {without_partial(conv.output_spec), conv.input_spec, conv.weight_spec};

  std::array<bool, 3> mask{};
  const auto flags = call.value("output_mask").toBoolList();
  for (size_t i = 0; i < 3; ++i) mask[i] = flags[i];
  // The input's gradient is a sum over the output channels (one group), the others over batch and space.
  const std::vector<int64_t> samples = cutting(conv.input_spec->layout(), /*except=*/1),
                             channels = conv.groups == 1 ? conv.output_spec->cut(1).mesh_dims : std::vector<int64_t>{};
  const auto add_output = [&](bool wanted, const SpecPtr& spec, const std::vector<int64_t>& partial_over) {
    Layout layout = without_partial(spec)->layout();
    for (const int64_t m : partial_over) layout.partials[m] = ReduceOp::kSum;
    plan.outputs.push_back(wanted ? intern(std::move(layout)) : nullptr);
  };
  add_output(mask[0], conv.input_spec, channels);
  add_output(mask[1], conv.weight_spec, samples);
  add_output(mask[2], conv.bias_spec, samples);
  plan.run = [conv = std::move(conv), mask, at_grad_output = call.arg("grad_output"), at_x = call.arg(x),
              at_weight = call.arg("weight")](LocalCall& call) {
    auto [input, weight, bias] = conv.backward(call.tensor(at_grad_output), call.tensor(at_x), call.tensor(at_weight),
                                               mask, call.halo_source(at_x));
    call.give(std::move(input), std::move(weight), std::move(bias));
  };
  return plan;
}

const Register conv_rules{
    {.op = "aten::convolution",
     .plan = plan_forward,
     .supports = "1-3 spatial dims, any kernel, stride, dilation, padding, groups, transposed; "
                 "cuts of batch, channels "
                 "and space",
     .traffic = Traffic::kHalo},
    {.op = "aten::_convolution", .plan = plan_forward, .supports = "as convolution", .traffic = Traffic::kHalo},
    {.op = "aten::convolution_backward",
     .plan = plan_backward,
     .supports = "as convolution; gradients of weight and bias stay sums over the mesh",
     .traffic = Traffic::kHalo},
    {.op = {"aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::slow_conv_dilated2d",
            "aten::slow_conv_dilated3d", "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d"},
     .plan = plan_forward,
     .supports = "as convolution, with a batch",
     .traffic = Traffic::kHalo},
    {.op = "aten::_slow_conv2d_backward.output_mask",
     .plan = plan_backward,
     .supports = "as convolution_backward, with a batch",
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
