// SPDX-License-Identifier: Apache-2.0
// Convolution of any kernel, stride, dilation, padding, groups, transposed or not, on any cut: an
// output row belongs to the rank that owns the centre of its window, so every rank borrows the
// input rows that its outputs need, and then convolves what it has without padding along the cut
// dims.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/tensor/tensor_halos.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/conv_local.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

// What the operator computes, in global terms.
struct Geometry {
  std::vector<Window> windows;  // per spatial dim
  std::vector<int64_t> output_padding;
  bool transposed = false;
  int64_t groups = 1;
  std::vector<int64_t> output_shape;

  int64_t out_dim() const { return transposed ? 1 : 0; }  // the weight's dim of output channels (groups == 1)
  int64_t in_dim() const { return transposed ? 0 : 1; }
};

Geometry geometry_of(const OpCall& call, const ShardSpec& input, const ShardSpec& weight) {
  Geometry g;
  g.transposed = call.has("transposed") ? call.flag("transposed") : call.name().find("transpose") != std::string::npos;
  if (call.has("groups")) g.groups = call.integer("groups");
  const auto& x = input.global_shape();
  const auto& w = weight.global_shape();
  const auto have = [&] {
    return "\n  have  input " + shape_string(x) + ", weight " + shape_string(w) + ", groups " +
           std::to_string(g.groups);
  };
  TORCH_CHECK_VALUE(x.size() == w.size() && x.size() >= 3, "convolution: an input of ", x.size(),
                    " dims and a weight of ", w.size(), have(),
                    "\n  fix   give both a batch and a channel dim first");
  const size_t spatial = x.size() - 2;
  TORCH_CHECK_VALUE(g.groups > 0 && w[0] % g.groups == 0, "convolution: the weight's ", w[0],
                    " channels do not divide into ", g.groups, " groups", have());
  const int64_t takes = g.transposed ? w[0] : w[1] * g.groups;
  TORCH_CHECK_VALUE(x[1] == takes, "convolution: the input has ", x[1],
                    " channels, the weight takes ", takes, have(), "\n  fix   use a weight for ",
                    x[1], " channels");
  const auto per_dim = [&](const char* argument) {
    std::vector<int64_t> values = call.integers(argument);
    TORCH_CHECK_VALUE(values.size() == 1 || values.size() == spatial, "convolution: ", argument, " has ",
                      values.size(), " numbers for ", spatial, " dims", have(), "\n  fix   give one number, or ", spatial);
    if (values.size() == 1) values.resize(spatial, values[0]);
    return values;
  };
  const auto given = [&](const char* argument, int64_t otherwise) {
    return call.has(argument) ? per_dim(argument) : std::vector<int64_t>(spatial, otherwise);
  };
  const auto stride = per_dim("stride"), padding = per_dim("padding");
  const auto dilation = given("dilation", 1);
  g.output_padding = given("output_padding", 0);
  g.output_shape = {x[0], g.transposed ? w[1] * g.groups : w[0]};
  if (const SpecPtr bias = call.has("bias") ? call.spec("bias") : nullptr) {
    TORCH_CHECK_VALUE(bias->global_shape() == std::vector<int64_t>{g.output_shape[1]}, "convolution: a bias of shape ",
                      shape_string(bias->global_shape()), " for ", g.output_shape[1], " output channels", have(),
                      "\n  fix   give one number for each output channel");
  }
  for (size_t i = 0; i < spatial; ++i) {
    const Window window{w[i + 2], stride[i], dilation[i], padding[i], g.transposed};
    TORCH_CHECK_VALUE(window.stride > 0 && window.dilation > 0 && window.padding >= 0,
                      "convolution: stride and dilation must be positive and padding not negative");
    TORCH_CHECK_VALUE(!g.transposed || (g.output_padding[i] >= 0 &&
                                        g.output_padding[i] < std::max(stride[i], dilation[i])),
                      "convolution: output padding ", g.output_padding[i], " along dim ", i + 2,
                      " does not lie below the stride of ", stride[i], " or the dilation of ",
                      dilation[i], have(), "\n  fix   use one of 0 to ",
                      std::max(stride[i], dilation[i]) - 1);
    const int64_t extent =
        g.transposed ? (x[i + 2] - 1) * window.stride - 2 * window.padding + window.reach() + g.output_padding[i]
                     : window_outputs(window, x[i + 2]);
    TORCH_CHECK_VALUE(extent > 0 || x[i + 2] == 0, "convolution: a window of ", window.reach(),
                      " rows along dim ", i + 2, " is larger than the padded input of ",
                      x[i + 2] + 2 * window.padding, have(),
                      "\n  fix   use a smaller kernel or dilation, or pad the input");
    g.windows.push_back(window);
    g.output_shape.push_back(std::max<int64_t>(extent, 0));
  }
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

// How the tensors of a convolution are held.
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
    // Both channel axes want the same mesh dim: gather the input, or cut the weight anew and sum
    // the outputs.
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

// The rows of one spatial dim that a rank needs.
Interval rows_needed(const Geometry& g, const Layouts& layouts, size_t i, int64_t rank) {
  const auto dim = static_cast<int64_t>(i) + 2;
  const Window& window = g.windows[i];
  if (layouts.contracts[i]) {
    const auto [begin, end] = layouts.weight->block_range(dim, rank);
    if (begin == end) return {0, 0};
    return {begin * window.dilation - window.padding,
            (g.output_shape[dim] - 1) * window.stride - window.padding + (end - 1) * window.dilation + 1};
  }
  if (!spans_ranks(layouts.input, dim)) return block_rows(*layouts.input, dim, rank);
  return window.input_needed(block_rows(*layouts.output, dim, rank));
}

// The local call of this rank.
LocalConv localize(const Geometry& g, const Layouts& layouts) {
  const int64_t rank = layouts.input->mesh()->rank();
  LocalConv local;
  local.transposed = g.transposed;
  local.groups = g.groups;
  if (g.groups > 1 && layouts.input->is_cut(1)) {
    local.groups = layouts.input->local_shape()[1] / (layouts.input->global_shape()[1] / g.groups);
  }
  local.output_shape = layouts.output->local_shape();
  bool moves = false;
  for (size_t i = 0; i < g.windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const Window& window = g.windows[i];
    const bool windowed = layouts.contracts[i] || spans_ranks(layouts.input, dim);
    moves |= windowed;
    local.stride.push_back(window.stride);
    local.dilation.push_back(window.dilation);
    local.padding.push_back(windowed ? 0 : window.padding);
    local.output_padding.push_back(windowed ? 0 : g.output_padding[i]);
    local.crop_before.push_back(0);
    local.uncropped.push_back(local.output_shape[dim]);
    if (!windowed || !g.transposed) continue;
    // What both ends have too much is cut off by the kernel's own padding.
    const Interval out = block_rows(*layouts.output, dim, rank);
    const int64_t before = window.crop_before(out), full = window.uncropped(out);
    if (out.empty()) continue;
    const int64_t both = std::min(before, full - before - out.size());
    local.padding.back() = both;
    local.crop_before.back() = before - both;
    local.uncropped.back() = full - 2 * both;
  }
  if (!moves) return local;
  // Where no weight is a cut field, edges can often be done apart, without a copy of the block.
  const bool contracts =
      std::any_of(layouts.contracts.begin(), layouts.contracts.end(), [](bool contracted) { return contracted; });
  if (!g.transposed && !contracts) {
    local.strips = conv_strips(layouts.input, layouts.output, g.windows);
    if (local.strips) return local;
  }
  if (g.transposed) local.spread = conv_spread(layouts.input, layouts.output, g.windows);
  local.halo = std::make_shared<const IntervalMap>(layouts.input, [&](int64_t r) {
    Box box = block_box(*layouts.input, r);
    for (int64_t d = 2; d < box.ndim(); ++d) box[d] = rows_needed(g, layouts, d - 2, r);
    return requests_for(box);
  });
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
  plan.run = [local = localize(g, layouts), x = call.arg(x), w = call.arg("weight"),
              b = call.arg("bias")](LocalCall& call) {
    const auto bias = call.value(b).toOptional<at::Tensor>();
    at::Tensor out = local.forward(call.tensor(x), call.tensor(w), bias, halo_cache_of_argument(x.index));
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
  plan.run = [local = localize(g, layouts), mask, at_grad_output = call.arg("grad_output"), at_x = call.arg(x),
              at_weight = call.arg("weight")](LocalCall& call) {
    auto [input, weight, bias] = local.backward(call.tensor(at_grad_output), call.tensor(at_x), call.tensor(at_weight),
                                                mask, halo_cache_of_argument(at_x.index));
    call.give(std::move(input), std::move(weight), std::move(bias));
  };
  return plan;
}

constexpr Rule one_way(std::string_view op) {
  return {.op = op, .plan = plan_forward, .source = "PyTorch convolution", .supports = "as convolution, with a batch"};
}

const Register rules{
    {.op = "aten::convolution",
     .plan = plan_forward,
     .source = "PyTorch convolution",
     .supports = "1-3 spatial dims, any kernel, stride, dilation, padding, groups, transposed; "
                 "cuts of batch, channels "
                 "and space"},
    {.op = "aten::_convolution", .plan = plan_forward, .source = "PyTorch _convolution", .supports = "as convolution"},
    {.op = "aten::convolution_backward",
     .plan = plan_backward,
     .source = "PyTorch convolution_backward",
     .supports = "as convolution; gradients of weight and bias stay sums over the mesh"},
    one_way("aten::_slow_conv2d_forward"),
    one_way("aten::slow_conv3d_forward"),
    one_way("aten::slow_conv_dilated2d"),
    one_way("aten::slow_conv_dilated3d"),
    one_way("aten::slow_conv_transpose2d"),
    one_way("aten::slow_conv_transpose3d"),
    {.op = "aten::_slow_conv2d_backward.output_mask",
     .plan = plan_backward,
     .source = "PyTorch convolution_backward",
     .supports = "as convolution_backward, with a batch"},
};

}  // namespace
}  // namespace moonhalo
