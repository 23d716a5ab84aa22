// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/ops/norm/common.h"

namespace moonhalo {
namespace {

//     input [N, C, spatial...]    weight, bias, running and saved statistics [C]
//
// Channels are independent, so they may be cut freely. The ranks that share a channel combine its
// moments, so batch norm over a cut batch or a cut field is what one device computes: synchronised,
// with true counts.
struct ChannelAxes {
  Axes axes;
  std::vector<int> every;
};

// The many operators of this family name their arguments differently.
bool flag(const OpCall& call, std::initializer_list<std::string_view> names, bool otherwise) {
  const Arg arg = call.find(names);
  return arg ? call.value(arg).toBool() : otherwise;
}

double number(const OpCall& call, std::initializer_list<std::string_view> names) {
  const Arg arg = call.find(names);
  return arg ? call.value(arg).toDouble() : 0;
}

ChannelAxes channel_axes(const OpCall& call) {
  const ShardSpec& input = *call.spec("input");
  TORCH_CHECK_VALUE(input.ndim() >= 2, call.name(), ": the input needs a batch and a channel dim\n  have  input ",
                    shape_string(input.global_shape()), "\n  fix   give [N, C, ...]");
  ChannelAxes channels;
  channels.axes.kinds.assign(input.ndim(), AxisKind::kKeep);
  for (int64_t d = 0; d < input.ndim(); ++d) channels.every.push_back(static_cast<int>(d));
  const int64_t count = input.global_shape()[1];
  for (const TensorArgument& slot : call.slots()) {
    const int64_t ndim = slot.spec ? slot.spec->ndim() : 0;
    std::vector<int> dims(ndim, -1);
    if (ndim == input.ndim()) dims = channels.every;
    // Saved statistics are empty in evaluation mode.
    if (ndim == 1 && slot.spec->global_shape()[0] == count) dims = {1};
    channels.axes.inputs.push_back(std::move(dims));
  }
  return channels;
}

// Everything that describes the normalization beside its tensors.
struct Norm {
  SpecPtr spec;                       // input
  SpecPtr channels;                   // a vector with one number per channel, cut as the input's channels
  SpecPtr running_mean, running_var;  // as each is held; null without them
  CutGroup ranks;                     // that share a channel
  bool training;
  double momentum, eps;

  // Every rank has whole channels and their running statistics: the operator itself will do.
  bool is_local() const {
    const auto sizes = spec->block_sizes(1);
    const auto fits = [&](const SpecPtr& held) { return !held || held == channels; };
    return ranks.alone() && fits(running_mean) && fits(running_var) &&
           std::find(sizes.begin(), sizes.end(), 0) == sizes.end();
  }
};

// Running statistics stay where they are, so that an update reaches the tensor itself.
Norm norm_of(const OpCall& call, Plan& plan, bool training) {
  const SpecPtr spec = plan.inputs[call.slot("input")];
  const auto dims = dims_but(spec->ndim(), 1);
  const auto held = [&](const char* name) -> SpecPtr {
    if (!call.has(name) || !call.spec(name)) return nullptr;
    return plan.inputs[call.slot(name)] = without_partial(call.spec(name));
  };
  return {.spec = spec,
          .channels = reduced_spec(spec, dims, false),
          .running_mean = held("running_mean"),
          .running_var = held("running_var"),
          .ranks = CutGroup(spec, dims),
          .training = training,
          .momentum = number(call, {"momentum", "exponential_average_factor"}),
          .eps = number(call, {"eps", "epsilon"})};
}

// cuDNN's kernels want fields in the memory format of the input, and weights without gaps; a block may have others.
// Running statistics are left alone: an update has to reach them.
std::function<void(LocalCall&)> run_in_format(Arg at_input, Arg at_weight) {
  return [=](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input);
    const auto format = input.suggest_memory_format();
    for (c10::IValue& value : call.values()) {
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == input.dim())
        value = value.toTensor().contiguous(format);
    }
    c10::IValue& weight = call.value(at_weight);
    if (call.tensor(at_weight).defined()) weight = call.tensor(at_weight).contiguous();
    call.run();
  };
}

bool is_of_cudnn(const OpCall& call) { return call.name().rfind("aten::cudnn_", 0) == 0; }

struct Statistics {
  at::Tensor mean, invstd;  // per owned channel
};

Statistics batch_statistics(const Norm& norm, const at::Tensor& x, at::Tensor running_mean, at::Tensor running_var) {
  Moments moments = global_moments(x, norm.spec, dims_but(x.dim(), 1));
  const at::Tensor mean = moments.mean.reshape(x.size(1)), m2 = moments.m2.reshape(x.size(1));
  const auto update = [&](at::Tensor& running, const SpecPtr& spec, const at::Tensor& batch) {
    if (!running.defined()) return;
    const at::Tensor held = redistribute_local(batch, norm.channels, spec);
    running.mul_(1 - norm.momentum).add_(held.to(running.scalar_type()), norm.momentum);
  };
  update(running_mean, norm.running_mean, mean);
  update(running_var, norm.running_var, m2 / static_cast<double>(moments.count - 1));
  return {mean, at::div(m2, moments.count).add_(norm.eps).rsqrt_()};
}

Statistics running_statistics(const Norm& norm, const at::Tensor& running_mean, const at::Tensor& running_var) {
  const auto held = [&](const at::Tensor& t, const SpecPtr& spec) {
    return widen(redistribute_local(t, spec, norm.channels));
  };
  return {held(running_mean, norm.running_mean), (held(running_var, norm.running_var) + norm.eps).rsqrt_()};
}

std::optional<Plan> plan_batch_norm(const OpCall& call) {
  const size_t results = call.op.schema().returns().size();
  const bool functional = call.name() == "aten::_native_batch_norm_legit_functional";
  if ((results > 4 && !functional) || call.has("out") || call.has("out0")) return std::nullopt;
  const bool always = call.name() == "aten::_batch_norm_with_update";
  const bool training = flag(call, {"training"}, always);
  ChannelAxes channels = channel_axes(call);
  const auto& shape = call.spec("input")->global_shape();
  channels.axes.outputs = {channels.every};
  channels.axes.output_shapes = {shape};
  Plan plan = solve(call, channels.axes);
  const Norm norm = norm_of(call, plan, training);
  TORCH_CHECK_VALUE(training || (norm.running_mean && norm.running_var), call.name(),
                    ": evaluation needs running statistics\n  have  ", call.describe(),
                    "\n  fix   give running_mean and running_var, or normalize with the batch's own");
  const SpecPtr saved = training ? norm.channels : replicated(call.mesh(), {0});
  plan.outputs = {norm.spec, saved, saved};
  if (functional) plan.outputs.insert(plan.outputs.end(), {norm.running_mean, norm.running_var});
  plan.outputs.resize(results);  // the reserve, if there is one, stays plain
  if (norm.is_local()) {
    if (is_of_cudnn(call)) plan.run = run_in_format(call.arg("input"), call.arg("weight"));
    return plan;
  }
  plan.run = [=, at_input = call.arg("input"), at_weight = call.arg("weight"), at_bias = call.arg("bias"),
              at_mean = call.find({"running_mean"}), at_var = call.find({"running_var"})](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight), bias = call.tensor(at_bias);
    at::Tensor running_mean = call.tensor(at_mean), running_var = call.tensor(at_var);
    if (functional) running_mean = running_mean.clone(), running_var = running_var.clone();
    const at::Tensor x = widen(input);
    const Statistics found = training ? batch_statistics(norm, x, running_mean, running_var)
                                      : running_statistics(norm, running_mean, running_var);
    at::Tensor scale = weight.defined() ? found.invstd * widen(weight) : found.invstd;
    at::Tensor y = at::sub(x, per_channel(found.mean, x.dim())).mul_(per_channel(scale, x.dim()));
    if (bias.defined()) y.add_(per_channel(bias, x.dim()));
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    const auto save = [&](const at::Tensor& t) {
      return training ? t.to(kept) : at::empty({0}, t.options().dtype(kept));
    };
    call.give(y.to(input.scalar_type()), save(found.mean), save(found.invstd));
    if (functional) call.add(running_mean), call.add(running_var);
    if (results == 4) call.add(at::empty({0}, input.options().dtype(at::kByte)));
  };
  return plan;
}

// In training, with x^ the normalized input and means over batch and points:
//     dx = invstd weight (dy - mean(dy) - x^ mean(dy x^)),   dweight = sum dy x^,   dbias = sum dy;
// in evaluation the statistics are constants: dx = invstd weight dy.
std::optional<Plan> plan_batch_norm_backward(const OpCall& call) {
  if (call.has("out0")) return std::nullopt;
  ChannelAxes channels = channel_axes(call);
  channels.axes.outputs = {channels.every};
  channels.axes.output_shapes = {call.spec("input")->global_shape()};
  Plan plan = solve(call, channels.axes);
  const bool training = flag(call, {"train", "update"}, true);
  const Norm norm = norm_of(call, plan, training);
  const auto mask = call.has("output_mask") ? required_gradients(call) : std::vector<bool>(3, true);
  const auto dims = dims_but(norm.spec->ndim(), 1);
  const SpecPtr affine = training ? norm.channels : reduced_spec(norm.spec, dims, false, ReduceOp::kSum);
  plan.outputs = masked(mask, {norm.spec, affine, affine});
  if (norm.is_local()) {
    // LibTorch's kernel takes the memory format from the strides of dims of size 1 too, which mean
    // nothing: with those of some views of channels-last blocks its gradients are wrong.
    const auto& block = norm.spec->local_shape();
    if (std::find(block.begin(), block.end(), 1) != block.end())
      plan.run = run_contiguous;
    else if (is_of_cudnn(call))
      plan.run = run_in_format(call.arg("input"), call.arg("weight"));
    return plan;
  }
  const int64_t count = global_count(*norm.spec, dims);
  plan.run = [=, at_grad = call.arg({"grad_out", "grad_output"}), at_input = call.arg("input"),
              at_weight = call.arg("weight"), at_mean = call.arg("running_mean"), at_var = call.arg("running_var"),
              at_saved_mean = call.arg("save_mean"),
              at_saved = call.arg({"save_invstd", "save_var"})](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input), weight = call.tensor(at_weight);
    const at::Tensor grad = widen(call.tensor(at_grad));
    const Statistics found = training ? Statistics{widen(call.tensor(at_saved_mean)), widen(call.tensor(at_saved))}
                                      : running_statistics(norm, call.tensor(at_mean), call.tensor(at_var));
    const at::ScalarType kept = weight.defined() ? weight.scalar_type() : input.scalar_type();
    const at::Tensor invstd = per_channel(found.invstd, input.dim());
    const at::Tensor x = at::sub(widen(input), per_channel(found.mean, input.dim())).mul_(invstd);
    at::Tensor sums, dx, dweight, dbias;
    if (training || mask[1] || mask[2]) sums = at::stack({grad.sum(dims), (grad * x).sum(dims)});
    if (training) sums = norm.ranks.all_reduce(sums);
    if (mask[0]) {
      const at::Tensor scale = weight.defined() ? found.invstd * widen(weight) : found.invstd;
      dx = grad;
      if (training) {
        const at::Tensor means = sums / count;
        dx = at::sub(grad, per_channel(means[0], input.dim())).sub_(x * per_channel(means[1], input.dim()));
      }
      dx = (dx * per_channel(scale, input.dim())).to(input.scalar_type());
    }
    // Own storage for each: a sum over ranks is resolved in place.
    if (mask[1]) dweight = sums[1].to(kept, /*non_blocking=*/false, /*copy=*/true);
    if (mask[2]) dbias = sums[0].to(kept, /*non_blocking=*/false, /*copy=*/true);
    call.give(dx, dweight, dbias);
  };
  return plan;
}

constexpr auto* kBatchNormSource = "PyTorch BatchNorm, SyncBatchNorm; Ioffe, Szegedy 2015";
constexpr auto* kBatchNormSupports = "any cut: batch, channels, space; exact global statistics";

const Register batch_norm_rules{
    {.op = {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_no_training",
            "aten::_native_batch_norm_legit_functional", "aten::_batch_norm_with_update", "aten::_batch_norm_no_update",
            "aten::cudnn_batch_norm"},
     .plan = plan_batch_norm,
     .source = kBatchNormSource,
     .supports = kBatchNormSupports,
     .traffic = Traffic::kAllReduce | Traffic::kRedistribute},
    {.op = {"aten::native_batch_norm_backward", "aten::batch_norm_backward", "aten::cudnn_batch_norm_backward"},
     .plan = plan_batch_norm_backward,
     .source = kBatchNormSource,
     .supports = kBatchNormSupports,
     .traffic = Traffic::kAllReduce | Traffic::kRedistribute},
};

}  // namespace
}  // namespace moonhalo
