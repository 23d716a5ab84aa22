// SPDX-License-Identifier: Apache-2.0
// Convolution of any kernel, stride, dilation, padding, groups, transposed or not, on any cut: an output row belongs
// to the rank that owns the centre of its window, so every rank fetches the input rows that its outputs need, and
// then convolves what it has without padding along the cut dims.
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
#include "moonhalo/ops/window/conv_local.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

// Describes the operator in global terms.
struct Geometry {
  std::vector<Window> windows;  // per spatial dim
  std::vector<int64_t> output_padding;
  bool transposed = false;
  int64_t groups = 1;
  std::vector<int64_t> output_shape;

  int64_t out_dim() const { return transposed ? 1 : 0; }  // the weight's dim of output channels (groups == 1)
  int64_t in_dim() const { return transposed ? 0 : 1; }
};

// A call's shapes, for messages.
struct Shapes {
  const std::vector<int64_t>&input, &weight;
  std::string have(int64_t groups) const {
    return "\n  have  input " + shape_string(input) + ", weight " + shape_string(weight) + ", groups " +
           std::to_string(groups);
  }
};

void check_channels(const Geometry& g, const Shapes& shapes) {
  const auto& [x, w] = shapes;
  TORCH_CHECK_VALUE(x.size() == w.size() && x.size() >= 3, "convolution: an input of ", x.size(),
                    " dims and a weight of ", w.size(), shapes.have(g.groups),
                    "\n  fix   give both a batch and a channel dim first");
  TORCH_CHECK_VALUE(g.groups > 0 && w[0] % g.groups == 0, "convolution: the weight's ", w[0],
                    " channels do not divide into ", g.groups, " groups", shapes.have(g.groups));
  const int64_t takes = g.transposed ? w[0] : w[1] * g.groups;
  TORCH_CHECK_VALUE(x[1] == takes, "convolution: the input has ", x[1], " channels, the weight takes ", takes,
                    shapes.have(g.groups), "\n  fix   use a weight for ", x[1], " channels");
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
void add_dim(Geometry& g, const Window& window, int64_t rows, int64_t output_padding, const std::string& have) {
  const size_t dim = g.output_shape.size();
  TORCH_CHECK_VALUE(window.stride > 0 && window.dilation > 0 && window.padding >= 0,
                    "convolution: stride and dilation must be positive and padding not negative");
  const int64_t below = std::max(window.stride, window.dilation);
  TORCH_CHECK_VALUE(!g.transposed || (output_padding >= 0 && output_padding < below), "convolution: output padding ",
                    output_padding, " along dim ", dim, " is not below the stride of ", window.stride,
                    " or the dilation of ", window.dilation, have, "\n  fix   use one of 0 to ", below - 1);
  const int64_t extent = g.transposed
                             ? (rows - 1) * window.stride - 2 * window.padding + window.reach() + output_padding
                             : window_outputs(window, rows);
  TORCH_CHECK_VALUE(extent > 0 || rows == 0, "convolution: a window of ", window.reach(), " rows along dim ", dim,
                    " is larger than the padded input of ", rows + 2 * window.padding, have,
                    "\n  fix   use a smaller kernel or dilation, or pad the input");
  g.windows.push_back(window);
  g.output_padding.push_back(output_padding);
  g.output_shape.push_back(std::max<int64_t>(extent, 0));
}

Geometry geometry_of(const OpCall& call, const ShardSpec& input, const ShardSpec& weight) {
  Geometry g;
  g.transposed = call.has("transposed") ? call.flag("transposed") : call.name().find("transpose") != std::string::npos;
  if (call.has("groups")) g.groups = call.integer("groups");
  const Shapes shapes{input.global_shape(), weight.global_shape()};
  check_channels(g, shapes);
  const auto& [x, w] = shapes;
  const std::string have = shapes.have(g.groups);
  const auto given = [&](const char* argument, std::optional<int64_t> otherwise = {}) {
    return numbers_of(call, argument, otherwise, x.size() - 2, have);
  };
  const auto stride = given("stride"), padding = given("padding"), dilation = given("dilation", 1),
             output_padding = given("output_padding", 0);
  g.output_shape = {x[0], g.transposed ? w[1] * g.groups : w[0]};
  if (const SpecPtr bias = call.has("bias") ? call.spec("bias") : nullptr) {
    TORCH_CHECK_VALUE(bias->global_shape() == std::vector<int64_t>{g.output_shape[1]}, "convolution: a bias of shape ",
                      shape_string(bias->global_shape()), " for ", g.output_shape[1], " output channels", have,
                      "\n  fix   give one number for each output channel");
  }
  for (size_t i = 0; i < stride.size(); ++i)
    add_dim(g, {w[i + 2], stride[i], dilation[i], padding[i], g.transposed}, x[i + 2], output_padding[i], have);
  return g;
}

// A rank without rows calls no kernel that would tell.
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

// Says how the tensors of a convolution are held.
struct Layouts {
  SpecPtr input, weight, bias, output;
  std::vector<bool> contracts;            // per spatial dim: the weight's rows are cut and summed over
  std::vector<int64_t> sample_mesh_dims;  // that cut batch or space: gradients of the weights are Partial there
  std::vector<int64_t> out_mesh_dims;     // that cut the output channels (groups == 1): grad_input is Partial there
};

Layouts finish_layouts(const Geometry& g, Layout x, Layout w, std::vector<bool> contracts) {
  Layouts result;
  Layout out(x.mesh, g.output_shape);
  out.cuts[0] = x.cuts[0];
  const auto partial_over = [&](const Cut& cut) {
    for (const int64_t m : cut.mesh_dims) out.partials[m] = ReduceOp::kSum;
  };
  if (g.groups == 1) {
    out.cuts[1] = w.cuts[g.out_dim()];
    result.out_mesh_dims = out.cuts[1].mesh_dims;
    partial_over(x.cuts[1]);
  } else if (x.cuts[1]) {
    out.cuts[1] = scaled_cut(x.cuts[1], x.global_shape[1] / g.groups, g.output_shape[1] / g.groups);
  }
  result.sample_mesh_dims = x.cuts[0].mesh_dims;
  for (size_t i = 0; i < g.windows.size(); ++i) {
    const Cut& cut = x.cuts[i + 2];
    if (contracts[i]) {
      partial_over(w.cuts[i + 2]);
    } else if (cut) {
      out.cuts[i + 2] = {cut.mesh_dims, g.windows[i].output_sizes(cut.sizes, g.output_shape[i + 2])};
    }
    result.sample_mesh_dims.insert(result.sample_mesh_dims.end(), cut.mesh_dims.begin(), cut.mesh_dims.end());
  }
  Layout bias(x.mesh, {g.output_shape[1]});
  bias.cuts[0] = out.cuts[1];
  bias.partials = out.partials;  // added once, not by every rank
  result.contracts = std::move(contracts);
  result.input = intern(std::move(x));
  result.weight = intern(std::move(w));
  result.output = intern(std::move(out));
  result.bias = intern(std::move(bias));
  return result;
}

// Follows the input's cuts; the weight's cuts of channels are kept where their mesh dims are free.
// `may_contract`: a weight that is itself a cut field (second derivatives) is summed over block by
// block instead of being gathered.
Layouts choose(const Geometry& g, const SpecPtr& input, const SpecPtr& weight, bool may_contract) {
  Layout x = without_partial(input)->layout();
  Layout w(x.mesh, weight->global_shape());
  std::vector<bool> contracts(g.windows.size(), false);
  if (g.groups > 1) {
    const int64_t x_unit = x.global_shape[1] / g.groups, w_unit = w.global_shape[0] / g.groups;
    const Cut& own = weight->cut(0);
    if (x.cuts[1]) {
      x.cuts[1] = scaled_cut(x.cuts[1], x_unit, x_unit);
    } else if (own && !intersects(own.mesh_dims, cutting(x))) {
      x.cuts[1] = scaled_cut(own, w_unit, x_unit);
    }
    if (x.cuts[1]) w.cuts[0] = scaled_cut(x.cuts[1], x_unit, w_unit);
    return finish_layouts(g, std::move(x), std::move(w), std::move(contracts));
  }

  const Cut& own_in = weight->cut(g.in_dim());
  const Cut& own_out = weight->cut(g.out_dim());
  if (x.cuts[1] && own_out && intersects(own_out.mesh_dims, x.cuts[1].mesh_dims)) {
    // Both channel axes want the same mesh dim: gather the input, or cut the weight again and sum the outputs.
    Layout gathered = x;
    gathered.cuts[1] = {};
    Layout recut = w, kept = w;
    recut.cuts[g.in_dim()] = x.cuts[1];
    if (!intersects(own_out.mesh_dims, cutting(gathered))) kept.cuts[g.out_dim()] = own_out;
    const Layouts first = finish_layouts(g, gathered, kept, contracts);
    const Layouts second = finish_layouts(g, x, recut, contracts);
    const auto cost = [&](const Layouts& way) {
      return redistribution_cost(*input, *way.input) + redistribution_cost(*weight, *way.weight) +
             redistribution_cost(*way.output, *without_partial(way.output));
    };
    return cost(first) <= cost(second) ? first : second;
  }
  if (!x.cuts[1] && own_in && !intersects(own_in.mesh_dims, cutting(x))) x.cuts[1] = own_in;
  w.cuts[g.in_dim()] = x.cuts[1];
  if (own_out && !intersects(own_out.mesh_dims, cutting(x))) w.cuts[g.out_dim()] = own_out;
  for (size_t i = 0; may_contract && !g.transposed && i < g.windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const Cut& cut = weight->cut(dim);
    const bool field = g.output_shape[dim] <= w.global_shape[dim];
    const bool together = !x.cuts[dim] || x.cuts[dim].mesh_dims == cut.mesh_dims;
    if (!cut || !field || !together || intersects(cut.mesh_dims, cutting(x, dim)) ||
        intersects(cut.mesh_dims, cutting(w))) {
      continue;
    }
    w.cuts[dim] = cut;
    contracts[i] = true;
  }
  return finish_layouts(g, std::move(x), std::move(w), std::move(contracts));
}

// The windows of a rank, per spatial dim: of a weight that is a cut field, those of the rank's rows of it.
std::vector<Window> windows_of(const Geometry& g, const Layouts& layouts, int64_t rank) {
  std::vector<Window> windows = g.windows;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (!layouts.contracts[i]) continue;
    const Interval rows = layouts.weight->block_range(static_cast<int64_t>(i) + 2, rank);
    windows[i].kernel = rows.size();
    windows[i].padding -= rows.begin * windows[i].dilation;
  }
  return windows;
}

// The rows that a rank needs.
Box rows_needed(const Geometry& g, const Layouts& layouts, int64_t rank) {
  const std::vector<Window> windows = windows_of(g, layouts, rank);
  Box box = block_box(*layouts.input, rank);
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    if (!layouts.contracts[i] && !spans_ranks(layouts.input, dim)) continue;
    box[dim] = windows[i].kernel > 0 ? windows[i].input_needed(layouts.output->block_range(dim, rank)) : Interval{0, 0};
  }
  return box;
}

// True if on every rank the owned rows with symmetric padding give exactly its outputs, along the dims that are cut.
bool gives_outputs(const Geometry& g, const Layouts& layouts) {
  for (size_t i = 0; i < g.windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    for (int64_t rank = 0; spans_ranks(layouts.input, dim) && rank < layouts.input->mesh()->size(); ++rank) {
      const Interval rows = layouts.input->block_range(dim, rank), outputs = layouts.output->block_range(dim, rank);
      Window window = g.windows[i];
      window.padding = rows.begin - window.input_needed(outputs).begin;
      if (outputs.empty()) continue;
      if (rows.empty() || window.padding < 0 || window_outputs(window, rows.size()) != outputs.size()) return false;
    }
  }
  return true;
}

// The call of LibTorch's kernel for a part.
LocalConv::Call call_of(const HaloSplit::Part& part, const Geometry& g, const Layouts& layouts) {
  LocalConv::Call call{part, {}, {}, {}};
  const std::vector<Window> windows = windows_of(g, layouts, layouts.input->mesh()->rank());
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const Interval outputs = part.output[dim];
    call.padding.push_back(windows[i].padding);
    call.crop.push_back(0);
    call.uncropped.push_back(outputs.size());
    if (outputs.empty()) continue;
    if (!g.transposed) {
      call.padding.back() = part.input[dim].begin - windows[i].input_needed(outputs).begin;
    } else if (spans_ranks(layouts.input, dim)) {
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

// Divides this rank's outputs, and has the maps that bring what it fetches. Backward, a transposed convolution stays
// whole: its weight's gradient then overlaps with returning the gradients of the halo rows.
std::pair<HaloSplit, HaloMaps> divide(const Geometry& g, const Layouts& layouts, bool backward) {
  const int64_t rank = layouts.input->mesh()->rank();
  const HaloReach reach = reach_of(layouts.input, layouts.output, g.windows);
  HaloMaps maps = halo_maps(reach, layouts.input);
  const bool contracts = std::find(layouts.contracts.begin(), layouts.contracts.end(), true) != layouts.contracts.end();
  const bool divides = g.transposed ? !backward && !maps.empty() : gives_outputs(g, layouts);
  if (!contracts && (divides || reach.cut.empty())) return {split_inputs(reach, rank), std::move(maps)};
  return {undivided(block_box(*layouts.output, rank), rows_needed(g, layouts, rank)),
          {std::make_shared<const IntervalMap>(layouts.input,
                                               [&](int64_t r) { return requests_for(rows_needed(g, layouts, r)); })}};
}

// The local call of this rank.
LocalConv localize(const Geometry& g, const Layouts& layouts, bool backward) {
  LocalConv local;
  local.transposed = g.transposed;
  local.groups = g.groups;
  if (g.groups > 1 && layouts.input->is_cut(1)) {
    local.groups = layouts.input->local_shape()[1] / (layouts.input->global_shape()[1] / g.groups);
  }
  for (size_t i = 0; i < g.windows.size(); ++i) {
    local.stride.push_back(g.windows[i].stride);
    local.dilation.push_back(g.windows[i].dilation);
    local.output_padding.push_back(spans_ranks(layouts.input, static_cast<int64_t>(i) + 2) ? 0 : g.output_padding[i]);
  }
  local.block = block_box(*layouts.output, layouts.output->mesh()->rank());
  HaloSplit split;
  std::tie(split, local.maps) = divide(g, layouts, backward);
  if (split.interior) local.interior = call_of(*split.interior, g, layouts);
  for (const HaloSplit::Part& slab : split.slabs) local.slabs.push_back(call_of(slab, g, layouts));
  local.halo_rows = std::move(split.halo_rows);
  return local;
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
  const Geometry g = geometry_of(call, *input, *weight);
  check_types(call, {x, "weight", "bias"});
  const Layouts layouts = choose(g, input, weight, /*may_contract=*/true);
  Plan plan;
  plan.inputs.resize(call.slots().size());
  plan.inputs[call.slot(x)] = layouts.input;
  plan.inputs[call.slot("weight")] = layouts.weight;
  if (const int slot = call.slot("bias"); slot >= 0 && call.slots()[slot].spec) plan.inputs[slot] = layouts.bias;
  plan.outputs = {layouts.output};
  plan.run = [local = localize(g, layouts, /*backward=*/false), x = call.arg(x), w = call.arg("weight"),
              b = call.arg("bias")](LocalCall& call) {
    const auto bias = call.value(b).toOptional<at::Tensor>();
    at::Tensor out = local.forward(call.tensor(x), call.tensor(w), bias, call.halo_source(x));
    call.give(std::move(out));
  };
  return plan;
}

std::optional<Plan> plan_backward(const OpCall& call) {
  const char* const x = call.has("input") ? "input" : "self";
  if (!covered(call, x)) return std::nullopt;
  const SpecPtr input = call.spec(x), weight = call.spec("weight");
  const Geometry g = geometry_of(call, *input, *weight);
  TORCH_CHECK_VALUE(call.spec("grad_output")->global_shape() == g.output_shape,
                    "convolution_backward: the gradient of the output has shape ",
                    shape_string(call.spec("grad_output")->global_shape()), ", the output ",
                    shape_string(g.output_shape));
  check_types(call, {x, "weight", "grad_output"});
  const Layouts layouts = choose(g, input, weight, /*may_contract=*/false);
  Plan plan;
  plan.inputs = {without_partial(layouts.output), layouts.input, layouts.weight};

  const auto partial_over = [](const SpecPtr& spec, const std::vector<int64_t>& mesh_dims) {
    Layout layout = without_partial(spec)->layout();
    for (const int64_t m : mesh_dims) layout.partials[m] = ReduceOp::kSum;
    return intern(std::move(layout));
  };
  std::array<bool, 3> mask{};
  const auto flags = call.value("output_mask").toBoolList();
  for (size_t i = 0; i < 3; ++i) mask[i] = flags[i];
  if (mask[0]) plan.outputs.push_back(partial_over(layouts.input, layouts.out_mesh_dims));
  if (!mask[0]) plan.outputs.push_back(nullptr);
  plan.outputs.push_back(mask[1] ? partial_over(layouts.weight, layouts.sample_mesh_dims) : nullptr);
  plan.outputs.push_back(mask[2] ? partial_over(layouts.bias, layouts.sample_mesh_dims) : nullptr);
  plan.run = [local = localize(g, layouts, /*backward=*/true), mask, at_grad_output = call.arg("grad_output"),
              at_x = call.arg(x), at_weight = call.arg("weight")](LocalCall& call) {
    auto [input, weight, bias] = local.backward(call.tensor(at_grad_output), call.tensor(at_x), call.tensor(at_weight),
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
