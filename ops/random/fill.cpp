// SPDX-License-Identifier: Apache-2.0
// Initialisers and their functional forms: every element's numbers depend on the generator and its global index, on
// nothing else (row X02).
#include "moonhalo/ops/random/fill.h"

#include <ATen/Functions.h>

#include <cmath>
#include <limits>

#include "moonhalo/engine/dispatch/pointwise_rule.h"

namespace moonhalo {

std::optional<at::Generator> generator_of(LocalCall& call, Arg generator) {
  if (!generator || call.value(generator).isNone()) return std::nullopt;
  return call.value(generator).toGenerator();
}

int digits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kComplexFloat:
      return 24;
    case at::kHalf:
    case at::kComplexHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      return 53;
  }
}

void check_floating(std::string_view op, at::ScalarType dtype, bool complex) {
  TORCH_CHECK_TYPE(at::isFloatingType(dtype) || (complex && at::isComplexType(dtype)), op, ": gives no ", dtype,
                   " values\n  fix   draw a floating point tensor and convert it");
}

void fill_coins(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, double p) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "bernoulli: the probability ", p, " is not in [0, 1]");
  random.fill(block, spec, {.kind = Distribution::kCoin, .a = p});
}

std::optional<Plan> plan_broadcast(const OpCall& call, BroadcastRun run) {
  auto plan = pointwise_rule()->plan(call);
  if (!plan) return plan;
  const SpecPtr result = plan->outputs.at(0);
  plan->run = [run = std::move(run), result](LocalCall& call) { run(call, result); };
  return plan;
}

namespace {

using Arguments = at::ArrayRef<c10::IValue>;

// Fills the block from the numbers of the call, in the order of kNumbers.
using Fill = void (*)(const ElementRandom&, const ShardSpec&, const at::Tensor& block, Arguments arguments);

// A number below `x` that `digits` binary digits hold: rounding may not reach the end that a range leaves out.
double last_before(double x, int digits) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, exponent - digits);
  const double below = std::floor(x / step) * step;
  return below < x ? below : x - step;
}

void fill_uniform(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const double low = a[0].toDouble(), high = a[1].toDouble();
  check_floating("uniform_", block.scalar_type(), true);
  TORCH_CHECK_VALUE(low <= high, "uniform_: the range [", low, ", ", high, ") is empty");
  TORCH_CHECK_VALUE(std::isfinite(high - low), "uniform_: the range [", low, ", ", high, ") is not finite");
  const int digits = digits_of(block.scalar_type());
  const double last = std::max(low, last_before(high, digits));
  random.fill(block, spec, {.kind = Distribution::kUniform, .a = low, .b = high - low, .last = last, .digits = digits});
}

void fill_normal(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const double mean = a[0].toDouble(), std = a[1].toDouble();
  check_floating("normal_", block.scalar_type(), true);
  TORCH_CHECK_VALUE(std >= 0, "normal_: the standard deviation ", std, " is negative");
  if (block.is_complex()) {  // a variance of std^2 in all, half of it in each part
    random.fill(block, spec, {.kind = Distribution::kNormal, .b = std / std::numbers::sqrt2});
    block.add_(mean);
    return;
  }
  random.fill(block, spec, {.kind = Distribution::kNormal, .a = mean, .b = std});
}

void fill_log_normal(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const double mean = a[0].toDouble(), std = a[1].toDouble();
  check_floating("log_normal_", block.scalar_type());
  TORCH_CHECK_VALUE(std > 0, "log_normal_: the standard deviation ", std, " is not positive");
  random.fill(block, spec, {.kind = Distribution::kLogNormal, .a = mean, .b = std});
}

void fill_exponential(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const double rate = a[0].toDouble();
  check_floating("exponential_", block.scalar_type());
  TORCH_CHECK_VALUE(rate > 0, "exponential_: the rate ", rate, " is not positive");
  random.fill(block, spec, {.kind = Distribution::kExponential, .a = rate});
}

void fill_cauchy(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const double median = a[0].toDouble(), width = a[1].toDouble();
  check_floating("cauchy_", block.scalar_type());
  TORCH_CHECK_VALUE(width > 0, "cauchy_: the width ", width, " is not positive");
  random.fill(block, spec, {.kind = Distribution::kCauchy, .a = median, .b = width});
}

void fill_geometric(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const double p = a[0].toDouble();
  TORCH_CHECK_VALUE(p > 0 && p < 1, "geometric_: the probability ", p, " is not between 0 and 1");
  TORCH_CHECK_TYPE(!block.is_complex() && block.scalar_type() != at::kBool, "geometric_: gives no ",
                   block.scalar_type(), " values");
  random.fill(block, spec, {.kind = Distribution::kGeometric, .a = 1 / std::log1p(-p)});
}

void fill_one_chance(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  TORCH_CHECK_TYPE(!block.is_complex(), "bernoulli_: gives no ", block.scalar_type(), " values");
  fill_coins(random, spec, block, a[0].toDouble());
}

void check_chances(const at::Tensor& p) {
  check_floating("bernoulli", p.scalar_type());
  TORCH_CHECK_VALUE(p.numel() == 0 || p.ge(0).logical_and(p.le(1)).all().item<bool>(),
                    "bernoulli: a probability is not in [0, 1]\n  have  values from ", p.min().item<double>(), " to ",
                    p.max().item<double>());
}

// Ones where a uniform number is below `p`, which is as the block does.
void fill_chances(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, const at::Tensor& p) {
  check_chances(p);
  const at::Tensor u = at::empty(block.sizes(), p.options().dtype(at::kDouble));
  random.fill(u, spec, {.kind = Distribution::kUniform, .b = 1, .last = 1});
  block.copy_(u.lt(p.to(at::kDouble)));
}

void fill_many_chances(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  fill_chances(random, spec, block, a[0].toTensor());
}

// One past the largest integer that random_() gives: the largest of an integer type, the last that a floating point
// type counts to without a gap.
uint64_t end_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 2;
    case at::kByte:
      return 256;
    case at::kChar:
      return 128;
    case at::kShort:
      return uint64_t{1} << 15;
    case at::kInt:
      return uint64_t{1} << 31;
    case at::kLong:
      return uint64_t{1} << 63;
    default:
      break;
  }
  check_floating("random_", dtype);
  return (uint64_t{1} << digits_of(dtype)) + 1;
}

// [low, end), with end taken modulo 2^64.
void fill_integers(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, int64_t low,
                   uint64_t end) {
  const uint64_t range = end - static_cast<uint64_t>(low);
  random.fill(block, spec, {.kind = Distribution::kInteger, .low = low, .range = range});
}

void check_range(at::ScalarType dtype, int64_t low, int64_t high) {
  TORCH_CHECK_VALUE(low < high, "random: the range [", low, ", ", high, ") is empty");
  if (dtype == at::kLong) return;
  const auto end = static_cast<int64_t>(end_of(dtype));
  const bool is_unsigned = dtype == at::kByte || dtype == at::kBool;
  TORCH_CHECK_VALUE(low >= (is_unsigned ? 0 : -end) && high <= end, "random: the range [", low, ", ", high,
                    ") is more than ", dtype, " holds exactly");
}

void fill_random(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, Arguments a) {
  const at::ScalarType dtype = block.scalar_type();
  const int64_t low = a.size() == 2 ? a[0].toInt() : 0;
  if (a.empty() || a.back().isNone()) return fill_integers(random, spec, block, low, end_of(dtype));
  check_range(dtype, low, a.back().toInt());
  fill_integers(random, spec, block, low, static_cast<uint64_t>(a.back().toInt()));
}

constexpr std::string_view kNumbers[] = {"from", "to", "mean", "median", "std", "sigma", "lambd", "p"};

// op_(self, ..., generator) fills self, op(self, ..., generator) a tensor like it.
template <Fill kFill>
std::optional<Plan> plan_fill(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec("self"));
  std::vector<Arg> numbers;
  for (const std::string_view name : kNumbers) {
    if (call.has(name)) numbers.push_back(call.arg(name));
  }
  Plan plan;
  plan.inputs.assign(call.slots().size(), spec);
  for (size_t s = 1; s < call.slots().size(); ++s) {
    TORCH_CHECK_NOT_IMPLEMENTED(call.slots()[s].spec->global_shape() == spec->global_shape(), call.name(),
                                ": the probabilities must have the tensor's own shape\n  have  ", call.describe(),
                                "\n  fix   expand them first");
  }
  plan.outputs = {spec};
  plan.run = [spec, numbers, in_place = call.writes("self"), at_self = call.arg("self"),
              at_generator = generator_arg(call)](LocalCall& call) {
    const ElementRandom random(generator_of(call, at_generator));
    at::Tensor block = call.tensor(at_self);
    if (!in_place) block = at::empty_like(block, at::MemoryFormat::Contiguous);
    c10::SmallVector<c10::IValue, 4> given;
    for (const Arg arg : numbers) given.push_back(call.value(arg));
    kFill(random, *spec, block, given);
    call.give(block);
  };
  return plan;
}

// Functions that make a tensor like self, perhaps of another dtype.
struct LikeArgs {
  Arg self, dtype, generator, p, low, high;  // what the schema has of them
};
using Make = void (*)(LocalCall& call, const LikeArgs&, const ElementRandom&, const ShardSpec&,
                      const at::Tensor& block);

template <Make kMake>
std::optional<Plan> plan_like(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec("self"));
  Plan plan;
  plan.inputs.assign(call.slots().size(), nullptr);
  plan.inputs[call.slot("self")] = spec;
  plan.outputs = {spec};
  const LikeArgs args{call.arg("self"), call.find({"dtype"}), generator_arg(call),
                      call.find({"p"}), call.find({"low"}),   call.find({"high"})};
  plan.run = [spec, args](LocalCall& call) {
    at::TensorOptions options = call.tensor(args.self).options();
    if (args.dtype && !call.value(args.dtype).isNone()) options = options.dtype(call.value(args.dtype).toScalarType());
    const at::Tensor block = at::empty(spec->local_shape(), options);
    kMake(call, args, ElementRandom(generator_of(call, args.generator)), *spec, block);
    call.give(block);
  };
  return plan;
}

void make_uniform(LocalCall&, const LikeArgs&, const ElementRandom& random, const ShardSpec& spec,
                  const at::Tensor& block) {
  fill_uniform(random, spec, block, {0.0, 1.0});
}
void make_normal(LocalCall&, const LikeArgs&, const ElementRandom& random, const ShardSpec& spec,
                 const at::Tensor& block) {
  fill_normal(random, spec, block, {0.0, 1.0});
}
void make_coins(LocalCall& call, const LikeArgs& args, const ElementRandom& random, const ShardSpec& spec,
                const at::Tensor& block) {
  fill_chances(random, spec, block, call.tensor(args.self));
}
void make_coins_of_p(LocalCall& call, const LikeArgs& args, const ElementRandom& random, const ShardSpec& spec,
                     const at::Tensor& block) {
  fill_coins(random, spec, block, call.value(args.p).toDouble());
}
void make_integers_between(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& block, int64_t low,
                           int64_t high) {
  check_range(block.scalar_type(), low, high);
  fill_integers(random, spec, block, low, static_cast<uint64_t>(high));
}
void make_integers(LocalCall& call, const LikeArgs& args, const ElementRandom& random, const ShardSpec& spec,
                   const at::Tensor& block) {
  const c10::IValue& high = call.value(args.high);
  if (high.isTensor()) {
    TORCH_CHECK_VALUE(high.toTensor().numel() == 1, "randint_like: `high` has ", high.toTensor().numel(),
                      " elements, not one");
    return make_integers_between(random, spec, block, 0, high.toTensor().item<int64_t>());
  }
  make_integers_between(random, spec, block, 0, high.toInt());
}
void make_integers_from(LocalCall& call, const LikeArgs& args, const ElementRandom& random, const ShardSpec& spec,
                        const at::Tensor& block) {
  make_integers_between(random, spec, block, call.value(args.low).toInt(), call.value(args.high).toInt());
}

// randint_like.Tensor reads `high` on every rank.
std::optional<Plan> plan_randint_like_tensor(const OpCall& call) {
  std::optional<Plan> plan = plan_like<make_integers>(call);
  for (size_t s = 1; s < call.slots().size(); ++s)
    plan->inputs[s] = replicated(call.mesh(), call.slots()[s].spec->global_shape());
  return plan;
}

// normal(mean, std): either may be a tensor.
std::optional<Plan> plan_normal(const OpCall& call) {
  return plan_broadcast(call, [at_mean = call.arg("mean"), at_std = call.arg("std"),
                               at_generator = generator_arg(call)](LocalCall& call, const SpecPtr& result) {
    const c10::IValue &mean = call.value(at_mean), &std = call.value(at_std);
    const at::Tensor like = mean.isTensor() ? mean.toTensor() : std.toTensor();
    check_floating("normal", like.scalar_type());
    TORCH_CHECK_VALUE(
        std.isTensor() ? std.toTensor().numel() == 0 || std.toTensor().ge(0).all().item<bool>() : std.toDouble() >= 0,
        "normal: a standard deviation is negative");
    const at::Tensor block = at::empty(result->local_shape(), like.options());
    ElementRandom(generator_of(call, at_generator)).fill(block, *result, {.kind = Distribution::kNormal, .b = 1});
    std.isTensor() ? block.mul_(std.toTensor()) : block.mul_(std.toDouble());
    mean.isTensor() ? block.add_(mean.toTensor()) : block.add_(mean.toDouble());
    call.give(block);
  });
}

const Register fill_rules{
    {.op = {"aten::uniform_", "aten::uniform"}, .plan = plan_fill<fill_uniform>, .supports = kAnyCut},
    {.op = {"aten::normal_", "aten::normal_functional"}, .plan = plan_fill<fill_normal>, .supports = kAnyCut},
    {.op = {"aten::log_normal_", "aten::log_normal"}, .plan = plan_fill<fill_log_normal>, .supports = kAnyCut},
    {.op = {"aten::exponential_", "aten::exponential"}, .plan = plan_fill<fill_exponential>, .supports = kAnyCut},
    {.op = {"aten::cauchy_", "aten::cauchy"}, .plan = plan_fill<fill_cauchy>, .supports = kAnyCut},
    {.op = {"aten::geometric_", "aten::geometric"}, .plan = plan_fill<fill_geometric>, .supports = kAnyCut},
    {.op = {"aten::random_", "aten::random"}, .plan = plan_fill<fill_random>, .supports = kAnyCut},
    {.op = "aten::bernoulli_.float", .plan = plan_fill<fill_one_chance>, .supports = kAnyCut},
    {.op = {"aten::bernoulli_.Tensor", "aten::bernoulli.Tensor"},
     .plan = plan_fill<fill_many_chances>,
     .supports = kAnyCut},
    {.op = "aten::bernoulli", .plan = plan_like<make_coins>, .supports = kAnyCut},
    {.op = "aten::bernoulli.p", .plan = plan_like<make_coins_of_p>, .supports = kAnyCut},
    {.op = "aten::rand_like", .plan = plan_like<make_uniform>, .supports = kAnyCut},
    {.op = "aten::randn_like", .plan = plan_like<make_normal>, .supports = kAnyCut},
    {.op = "aten::randint_like", .plan = plan_like<make_integers>, .supports = kAnyCut},
    {.op = {"aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype"},
     .plan = plan_like<make_integers_from>,
     .supports = kAnyCut},
    {.op = {"aten::randint_like.Tensor", "aten::randint_like.Tensor_generator"},
     .plan = plan_randint_like_tensor,
     .supports = kAnyCut},
    {.op = {"aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"},
     .plan = plan_normal,
     .supports = kAnyCut},
};

}  // namespace
}  // namespace moonhalo
