// SPDX-License-Identifier: Apache-2.0
// Random operators: every element's numbers depend on the generator and its global index, on nothing else (row X02).
#include "engine/random.h"

#include <ATen/Functions.h>

#include <cmath>
#include <limits>

#include "engine/rules.h"

namespace moonhalo {
namespace {

using Words = std::array<uint32_t, 4>;

std::optional<at::Generator> generator_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toGenerator());
}

// In-place initialisers `op_(self, ..., generator)`: `Fill` makes the new block from the other arguments.
using Fill = at::Tensor (*)(const ElementRandom&, const ShardSpec&, const at::Tensor& self, at::ArrayRef<c10::IValue> arguments);

template <Fill kFill>
std::optional<Plan> plan_in_place(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec(0));
  Plan plan;
  plan.inputs.assign(call.slots().size(), spec);
  for (size_t s = 1; s < call.slots().size(); ++s) {
    TORCH_CHECK_NOT_IMPLEMENTED(call.slots()[s].spec->global_shape() == spec->global_shape(), call.name(),
                                ": the probabilities must have the tensor's own shape\n  have  ", call.describe(),
                                "\n  fix   expand them first");
  }
  plan.outputs = {spec};
  const int last = static_cast<int>(call.op.schema().arguments().size()) - 1;
  plan.run = [spec, last](const c10::OperatorHandle& op, Stack& stack) {
    const ElementRandom random(generator_of(argument(op, stack, last)));
    const at::Tensor self = argument(op, stack, 0).toTensor();
    std::vector<c10::IValue> given;
    for (int i = 1; i < last; ++i) given.push_back(argument(op, stack, i));
    self.copy_(kFill(random, *spec, self, given));
    finish(op, stack, self);
  };
  return plan;
}

at::Tensor uniform_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const double low = a[0].toDouble(), high = a[1].toDouble();
  TORCH_CHECK_VALUE(low <= high, "uniform_: the range [", low, ", ", high, ") is empty");
  return random.fill(spec, self.options(), [=](const Words& w) { return low + (high - low) * uniform(w); });
}

at::Tensor normal_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const double mean = a[0].toDouble(), std = a[1].toDouble();
  TORCH_CHECK_VALUE(std >= 0, "normal_: the standard deviation ", std, " is negative");
  return random.fill(spec, self.options(), [=](const Words& w) { return mean + std * normal(w); });
}

at::Tensor log_normal_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const double mean = a[0].toDouble(), std = a[1].toDouble();
  TORCH_CHECK_VALUE(std > 0, "log_normal_: the standard deviation ", std, " is not positive");
  return random.fill(spec, self.options(), [=](const Words& w) { return std::exp(mean + std * normal(w)); });
}

at::Tensor exponential_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const double rate = a[0].toDouble();
  TORCH_CHECK_VALUE(rate > 0, "exponential_: the rate ", rate, " is not positive");
  return random.fill(spec, self.options(), [=](const Words& w) { return -std::log(uniform_above_zero(w)) / rate; });
}

at::Tensor cauchy_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const double median = a[0].toDouble(), width = a[1].toDouble();
  return random.fill(spec, self.options(), [=](const Words& w) { return median + width * std::tan(M_PI * (uniform(w) - 0.5)); });
}

at::Tensor geometric_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const double p = a[0].toDouble();
  TORCH_CHECK_VALUE(p > 0 && p < 1, "geometric_: the probability ", p, " is not between 0 and 1");
  return random.fill(spec, self.options(), [=](const Words& w) { return std::ceil(std::log(uniform_above_zero(w)) / std::log1p(-p)); });
}

at::Tensor coins(const ElementRandom& random, const ShardSpec& spec, const at::TensorOptions& options, double p) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "bernoulli: the probability ", p, " is not in [0, 1]");
  return random.fill(spec, options, [p](const Words& w) { return uniform(w) < p ? 1.0 : 0.0; });
}

at::Tensor coin_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  return coins(random, spec, self.options(), a[0].toDouble());
}

at::Tensor coins_of(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& p, const at::TensorOptions& options) {
  const at::Tensor u = random.fill(spec, p.options().dtype(at::kDouble), [](const Words& w) { return uniform(w); });
  return u.lt(p.to(at::kDouble)).to(options);
}

at::Tensor coins_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  return coins_of(random, spec, a[0].toTensor(), self.options());
}

int64_t integer_between(const Words& w, int64_t low, uint64_t range) {
  const uint64_t bits = static_cast<uint64_t>(w[0]) << 32 | w[1];
  return low + static_cast<int64_t>(bits % range);
}

// random_() covers what the dtype holds exactly, as in LibTorch.
int64_t dtype_limit(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool: return 2;
    case at::kByte: return 256;
    case at::kChar: return 128;
    case at::kShort: return int64_t{1} << 15;
    case at::kInt: return int64_t{1} << 31;
    case at::kLong: return std::numeric_limits<int64_t>::max();
    case at::kDouble: return (int64_t{1} << 53) + 1;
    case at::kFloat: return (int64_t{1} << 24) + 1;
    case at::kHalf: return (int64_t{1} << 11) + 1;
    case at::kBFloat16: return (int64_t{1} << 8) + 1;
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "random_: dtype ", dtype);
  }
}

at::Tensor integers(const ElementRandom& random, const ShardSpec& spec, const at::TensorOptions& options, int64_t low, int64_t high) {
  TORCH_CHECK_VALUE(low < high, "random: the range [", low, ", ", high, ") is empty");
  const auto range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  return random.fill_integers(spec, options, [=](const Words& w) { return integer_between(w, low, range); });
}

at::Tensor random_fill(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& self, at::ArrayRef<c10::IValue> a) {
  const int64_t low = a.size() == 2 ? a[0].toInt() : 0;
  const bool open = a.empty() || a.back().isNone();
  return integers(random, spec, self.options(), low, open ? dtype_limit(self.scalar_type()) : a.back().toInt());
}

// Functions that make a new tensor like `self`.
using Make = at::Tensor (*)(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options);

at::TensorOptions options_of(const c10::OperatorHandle& op, Stack& stack) {
  at::TensorOptions options = argument(op, stack, 0).toTensor().options();
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = argument(op, stack, static_cast<int>(i));
    if (arguments[i].name() == "dtype" && !value.isNone()) options = options.dtype(value.toScalarType());
  }
  return options;
}

std::optional<at::Generator> named_generator(const c10::OperatorHandle& op, Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "generator") return generator_of(argument(op, stack, static_cast<int>(i)));
  }
  return std::nullopt;
}

template <Make kMake>
std::optional<Plan> plan_like(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec(0));
  Plan plan;
  plan.inputs.assign(call.slots().size(), spec);
  plan.outputs = {spec};
  plan.run = [spec](const c10::OperatorHandle& op, Stack& stack) {
    finish(op, stack, kMake(op, stack, *spec, options_of(op, stack)));
  };
  return plan;
}

at::Tensor make_uniform(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options) {
  return ElementRandom(named_generator(op, stack)).fill(spec, options, [](const Words& w) { return uniform(w); });
}

at::Tensor make_normal(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options) {
  return ElementRandom(named_generator(op, stack)).fill(spec, options, normal);
}

at::Tensor make_coins(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options) {
  return coins_of(ElementRandom(named_generator(op, stack)), spec, argument(op, stack, 0).toTensor(), options);
}

at::Tensor make_coins_of_p(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options) {
  return coins(ElementRandom(named_generator(op, stack)), spec, options, argument(op, stack, 1).toDouble());
}

at::Tensor make_integers(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options) {
  return integers(ElementRandom(named_generator(op, stack)), spec, options, 0, argument(op, stack, 1).toInt());
}

at::Tensor make_integers_from(const c10::OperatorHandle& op, Stack& stack, const ShardSpec& spec, const at::TensorOptions& options) {
  return integers(ElementRandom(named_generator(op, stack)), spec, options, argument(op, stack, 1).toInt(),
                  argument(op, stack, 2).toInt());
}

// native_dropout(input, p, train) -> (output, mask)
std::optional<Plan> plan_native_dropout(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec(0));
  Plan plan{.inputs = {spec}, .outputs = {spec, spec}};
  plan.run = [spec](const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor input = argument(op, stack, 0).toTensor();
    const double p = argument(op, stack, 1).toDouble();
    const c10::IValue& train = argument(op, stack, 2);
    const bool drops = train.isNone() || train.toBool();
    const at::TensorOptions coin = input.options().dtype(at::kBool);
    const at::Tensor mask = drops ? coins(ElementRandom(std::nullopt), *spec, coin, 1 - p) : at::ones_like(input, coin);
    const double scale = !drops ? 1 : p == 1 ? 0 : 1 / (1 - p);
    finish(op, stack, input * mask * scale, mask);
  };
  return plan;
}

const char* const kAny = "any cut; the same numbers for any cut and any number of ranks";

const Register rules{
    {.op = "aten::uniform_", .plan = plan_in_place<uniform_fill>, .source = "PyTorch uniform_", .supports = kAny},
    {.op = "aten::normal_", .plan = plan_in_place<normal_fill>, .source = "PyTorch normal_", .supports = kAny},
    {.op = "aten::log_normal_", .plan = plan_in_place<log_normal_fill>, .source = "PyTorch log_normal_", .supports = kAny},
    {.op = "aten::exponential_", .plan = plan_in_place<exponential_fill>, .source = "PyTorch exponential_", .supports = kAny},
    {.op = "aten::cauchy_", .plan = plan_in_place<cauchy_fill>, .source = "PyTorch cauchy_", .supports = kAny},
    {.op = "aten::geometric_", .plan = plan_in_place<geometric_fill>, .source = "PyTorch geometric_", .supports = kAny},
    {.op = "aten::random_", .plan = plan_in_place<random_fill>, .source = "PyTorch random_", .supports = kAny},
    {.op = "aten::bernoulli_.float", .plan = plan_in_place<coin_fill>, .source = "PyTorch bernoulli_", .supports = kAny},
    {.op = "aten::bernoulli_.Tensor", .plan = plan_in_place<coins_fill>, .source = "PyTorch bernoulli_", .supports = kAny},
    {.op = "aten::bernoulli", .plan = plan_like<make_coins>, .source = "PyTorch bernoulli", .supports = kAny},
    {.op = "aten::bernoulli.p", .plan = plan_like<make_coins_of_p>, .source = "PyTorch bernoulli", .supports = kAny},
    {.op = "aten::rand_like", .plan = plan_like<make_uniform>, .source = "PyTorch rand_like", .supports = kAny},
    {.op = "aten::randn_like", .plan = plan_like<make_normal>, .source = "PyTorch randn_like", .supports = kAny},
    {.op = "aten::randint_like", .plan = plan_like<make_integers>, .source = "PyTorch randint_like", .supports = kAny},
    {.op = "aten::randint_like.low_dtype", .plan = plan_like<make_integers_from>, .source = "PyTorch randint_like", .supports = kAny},
    {.op = "aten::native_dropout", .plan = plan_native_dropout, .source = "PyTorch dropout", .supports = kAny},
};

}  // namespace
}  // namespace moonhalo
