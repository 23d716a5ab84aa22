// SPDX-License-Identifier: Apache-2.0
// Dropout and randomized leaky ReLU. The other kinds of dropout are made of bernoulli_ (ops/random/fill.cpp).
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "moonhalo/ops/random/fill.h"

namespace moonhalo {
namespace {

// native_dropout(input, p, train) -> (output, mask)
std::optional<Plan> plan_native_dropout(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec("input"));
  Plan plan{.inputs = {spec}, .outputs = {spec, spec}};
  plan.run = [spec, at_input = call.arg("input"), at_p = call.arg("p"), at_train = call.arg("train")](LocalCall& call) {
    const at::Tensor input = call.tensor(at_input);
    const double p = call.value(at_p).toDouble();
    const c10::IValue& train = call.value(at_train);
    const bool drops = train.isNone() || train.toBool();
    const at::Tensor mask = at::ones(input.sizes(), input.options().dtype(at::kBool));
    if (drops) fill_coins(ElementRandom(std::nullopt), *spec, mask, 1 - p);
    const double scale = !drops ? 1 : p == 1 ? 0 : 1 / (1 - p);
    call.give(input * mask * scale, mask);
  };
  return plan;
}

// rrelu_with_noise(self, noise!, lower, upper, training, generator): `noise` takes the slopes, for the gradient.
std::optional<Plan> plan_rrelu(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec("noise"));
  TORCH_CHECK_VALUE(spec->global_shape() == call.spec("self")->global_shape(), call.name(),
                    ": noise has another shape\n  have  ", call.describe(), "\n  fix   make it with empty_like");
  const bool in_place = call.writes("self");
  TORCH_CHECK_NOT_IMPLEMENTED(!in_place || spec == without_partial(call.spec("self")), call.name(),
                              ": self and noise are cut differently\n  have  ", call.describe(),
                              "\n  fix   make noise with empty_like");
  Plan plan{.inputs = {spec, spec}, .outputs = {spec}};
  plan.run = [spec, in_place, at_self = call.arg("self"), at_noise = call.arg("noise"), at_lower = call.arg("lower"),
              at_upper = call.arg("upper"), at_training = call.arg("training"),
              at_generator = generator_arg(call)](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self), noise = call.tensor(at_noise);
    const double lower = call.value(at_lower).toScalar().toDouble(), upper = call.value(at_upper).toScalar().toDouble();
    check_floating("rrelu", self.scalar_type());
    TORCH_CHECK_VALUE(lower <= upper, "rrelu: the slopes [", lower, ", ", upper, "] are not range");
    at::Tensor result;
    if (call.value(at_training).toBool()) {
      const ElementRandom random(generator_of(call, at_generator));
      random.fill(noise, *spec, {.kind = Distribution::kUniform, .a = lower, .b = upper - lower, .last = upper});
      noise.masked_fill_(self.gt(0), 1);
      result = self * noise;
    } else {
      result = at::leaky_relu(self, (lower + upper) / 2);
    }
    call.give(in_place ? self.copy_(result) : result);
  };
  return plan;
}

const Register dropout_rules{
    {.op = "aten::native_dropout", .plan = plan_native_dropout, .supports = kAnyCut},
    {.op = {"aten::rrelu_with_noise", "aten::rrelu_with_noise_"}, .plan = plan_rrelu, .supports = kAnyCut},
};

}  // namespace
}  // namespace moonhalo
