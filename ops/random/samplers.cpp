// SPDX-License-Identifier: Apache-2.0
// Samples of distributions whose parameters are tensors. A rejection loop takes its words from its element's own
// sequence, so how long it runs concerns no other element.
#include <ATen/Functions.h>

#include <cmath>
#include <limits>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/ops/random/fill.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

// lgamma leaves the sign in a variable that all threads share.
double log_factorial(double k) {
  int sign;
  return ::lgamma_r(k + 1, &sign);
}

// Small means: products of uniform numbers (Knuth, TAOCP 2, 3.4.1). Larger ones: transformed rejection with squeeze
// (Hoermann 1993, "The transformed rejection method for generating Poisson random variables", PTRS).
double poisson(double mean, Draws& draws) {
  if (mean < 10) {
    const double end = std::exp(-mean);
    double product = draws.uniform_above_zero(), k = 0;
    for (; product > end; ++k) product *= draws.uniform_above_zero();
    return k;
  }
  const double b = 0.931 + 2.53 * std::sqrt(mean), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), v_r = 0.9277 - 3.6224 / (b - 2);
  while (true) {
    const double u = draws.uniform() - 0.5, v = draws.uniform_above_zero(), distance = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / distance + b) * u + mean + 0.43);
    if (distance >= 0.07 && v <= v_r) return k;
    if (k < 0 || (distance < 0.013 && v > distance)) continue;
    const double accept = std::log(v * inverse_alpha / (a / (distance * distance) + b));
    if (accept <= k * std::log(mean) - mean - log_factorial(k)) return k;
  }
}

// Few successes expected: gaps between successes are geometric (Devroye 1986, X.4.3). Many: BTRS (Hoermann 1993, "The
// generation of binomial random variates").
double binomial(double count, double p, Draws& draws) {
  if (count <= 0 || p <= 0) return 0;
  if (p >= 1) return count;
  if (p > 0.5) return count - binomial(count, 1 - p, draws);
  if (count * p < 10) {
    const double scale = 1 / std::log1p(-p);
    double taken = 0, successes = -1;
    while (taken <= count) {
      taken += std::max(1.0, std::ceil(std::log(draws.uniform_above_zero()) * scale));
      ++successes;
    }
    return successes;
  }
  const double deviation = std::sqrt(count * p * (1 - p));
  const double b = 1.15 + 2.53 * deviation, a = -0.0873 + 0.0248 * b + 0.01 * p, c = count * p + 0.5;
  const double v_r = 0.92 - 4.2 / b, alpha = (2.83 + 5.1 / b) * deviation;
  const double mode = std::floor((count + 1) * p), log_odds = std::log(p / (1 - p));
  const double peak = log_factorial(mode) + log_factorial(count - mode);
  while (true) {
    const double u = draws.uniform() - 0.5, v = draws.uniform_above_zero(), distance = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / distance + b) * u + c);
    if (distance >= 0.07 && v <= v_r) return k;
    if (k < 0 || k > count) continue;
    const double accept = std::log(v * alpha / (a / (distance * distance) + b));
    if (accept <= peak - log_factorial(k) - log_factorial(count - k) + (k - mode) * log_odds) return k;
  }
}

// Marsaglia and Tsang 2000, "A simple method for generating gamma variables"; shapes below one by a power of a uniform.
double gamma(double shape, Draws& draws) {
  if (shape == 0) return 0;
  const double boost = shape < 1 ? std::pow(draws.uniform_above_zero(), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = draws.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root, u = draws.uniform_above_zero();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return boost * d * v;
  }
}

// value(parameter, draws) for every element of the block.
template <typename Value>
at::Tensor sampled(const ElementRandom& random, const ShardSpec& spec, const at::Tensor& parameter,
                   const Value& value) {
  const at::Tensor given = parameter.to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor block = given.new_empty(given.sizes());
  note_work("samplers", 0, memory_bytes({given, block}));
  if (is_fake(given)) return block;
  const double* from = given.const_data_ptr<double>();
  double* to = block.mutable_data_ptr<double>();
  const OwnedElements owned(spec);
  parallel_for(0, owned.count(), 4096, [&](int64_t begin, int64_t end) {
    owned.visit(begin, end, [&](int64_t position, uint64_t index) {
      Draws draws = random.draws(index);
      to[position] = value(from[position], draws);
    });
  });
  return block;
}

void check_values(bool right, const char* op, const char* what) { TORCH_CHECK_VALUE(right, op, ": ", what); }
bool holds(const at::Tensor& condition) { return condition.numel() == 0 || condition.all().item<bool>(); }

using Sample = double (*)(double, Draws&);

template <Sample kSample>
std::optional<Plan> plan_sample(const OpCall& call) {
  const SpecPtr spec = without_partial(call.spec("self"));
  Plan plan{.inputs = {spec}, .outputs = {spec}};
  plan.run = [spec, at_self = call.arg("self"), at_generator = generator_arg(call)](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self);
    const char* name = call.op.schema().name().c_str();
    check_floating(name, self.scalar_type());
    check_values(holds(self.ge(0)), name, "a parameter is negative");
    const at::Tensor block =
        sampled(ElementRandom(generator_of(call, at_generator)), *spec, self, kSample).to(self.options());
    // A shape so small that its samples underflow still gives something positive, as a logarithm needs.
    call.give(kSample == gamma ? block.clamp_min_(std::numeric_limits<float>::min()) : block);
  };
  return plan;
}

std::optional<Plan> plan_binomial(const OpCall& call) {
  return plan_broadcast(call, [at_count = call.arg("count"), at_prob = call.arg("prob"),
                               at_generator = generator_arg(call)](LocalCall& call, const SpecPtr& result) {
    const at::Tensor count = call.tensor(at_count), p = call.tensor(at_prob);
    check_floating("binomial", count.scalar_type());
    check_values(holds(p.ge(0).logical_and(p.le(1))) && holds(count.ge(0)), "binomial",
                 "a count is negative or a probability not in [0, 1]");
    const at::Tensor chances = p.to(at::kCPU, at::kDouble).expand(result->local_shape()).contiguous();
    const at::Tensor counts = count.to(at::kCPU, at::kDouble).expand(result->local_shape()).contiguous();
    const double* chance = chances.const_data_ptr<double>();
    const double* many = counts.const_data_ptr<double>();
    const ElementRandom random(generator_of(call, at_generator));
    note_work("binomial", 0, memory_bytes({chances, counts, chances}));
    if (is_fake(chances) || is_fake(counts))
      return call.give((is_fake(count) ? count : p).new_empty(result->local_shape(), count.options()));
    const at::Tensor block = at::empty(result->local_shape(), at::kDouble);
    double* to = block.mutable_data_ptr<double>();
    const OwnedElements owned(*result);
    owned.visit(0, owned.count(), [&](int64_t position, uint64_t index) {
      Draws draws = random.draws(index);
      to[position] = binomial(std::floor(many[position]), chance[position], draws);
    });
    call.give(block.to(count.options()));
  });
}

std::optional<Plan> plan_dirichlet(const OpCall& call) {
  const SpecPtr given = without_partial(call.spec("self"));
  const SpecPtr spec = given->ndim() == 0 ? given : without_cuts(given, {given->ndim() - 1});
  Plan plan{.inputs = {spec}, .outputs = {spec}};
  plan.run = [spec, at_self = call.arg("self"), at_generator = generator_arg(call)](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self);
    check_floating("_sample_dirichlet", self.scalar_type());
    check_values(holds(self.gt(0)), "_sample_dirichlet", "a concentration is not positive");
    at::Tensor block = sampled(ElementRandom(generator_of(call, at_generator)), *spec, self, gamma);
    block.clamp_min_(std::numeric_limits<double>::min());
    block.div_(block.sum(-1, true));
    call.give(block.to(self.options()));
  };
  return plan;
}

// Categories with the weights of each row: [rows, categories] -> [rows, samples].
void sample_with_replacement(const ElementRandom& random, const at::Tensor& weights, int64_t first_row,
                             const at::Tensor& result) {
  const int64_t rows = weights.size(0), categories = weights.size(1), samples = result.size(1);
  std::vector<double> sums(categories);
  for (int64_t r = 0; r < rows; ++r) {
    const double* weight = weights.const_data_ptr<double>() + r * categories;
    double sum = 0;
    int64_t last = 0;
    for (int64_t c = 0; c < categories; ++c) {
      if (weight[c] > 0) last = c;
      sums[c] = sum += weight[c];
    }
    int64_t* to = result.mutable_data_ptr<int64_t>() + r * samples;
    for (int64_t s = 0; s < samples; ++s) {
      Draws draws = random.draws(static_cast<uint64_t>((first_row + r) * samples + s));
      const auto found = std::upper_bound(sums.begin(), sums.end(), draws.uniform() * sum);
      to[s] = std::min<int64_t>(found - sums.begin(), last);
    }
  }
}

// The first `samples` of a race in which category c arrives after an exponential time of rate weight[c].
void sample_without(const ElementRandom& random, const at::Tensor& weights, int64_t first_row,
                    const at::Tensor& result) {
  const int64_t rows = weights.size(0), categories = weights.size(1), samples = result.size(1);
  std::vector<std::pair<double, int64_t>> arrivals;
  for (int64_t r = 0; r < rows; ++r) {
    const double* weight = weights.const_data_ptr<double>() + r * categories;
    arrivals.clear();
    for (int64_t c = 0; c < categories; ++c) {
      if (weight[c] == 0) continue;
      Draws draws = random.draws(static_cast<uint64_t>((first_row + r) * categories + c));
      arrivals.emplace_back(-std::log(draws.uniform_above_zero()) / weight[c], c);
    }
    TORCH_CHECK_VALUE(static_cast<int64_t>(arrivals.size()) >= samples, "multinomial: ", samples,
                      " samples without replacement of ", arrivals.size(), " categories whose probability is not zero");
    std::partial_sort(arrivals.begin(), arrivals.begin() + samples, arrivals.end());
    for (int64_t s = 0; s < samples; ++s) result.mutable_data_ptr<int64_t>()[r * samples + s] = arrivals[s].second;
  }
}

std::optional<Plan> plan_multinomial(const OpCall& call) {
  const SpecPtr given = without_partial(call.spec("self"));
  TORCH_CHECK_VALUE(given->ndim() == 1 || given->ndim() == 2,
                    "multinomial: probabilities of one or two dims are required\n  have  ", given->to_string(),
                    "\n  fix   flatten the leading dims");
  const int64_t samples = call.integer("num_samples"), categories = given->global_shape().back();
  const bool replacement = call.flag("replacement");
  TORCH_CHECK_VALUE(samples > 0, "multinomial: ", samples, " samples");
  TORCH_CHECK_VALUE(categories > 0, "multinomial: there are no categories");
  TORCH_CHECK_VALUE(replacement || samples <= categories, "multinomial: ", samples, " samples without replacement of ",
                    categories, " categories\n  fix   sample with replacement");
  const SpecPtr spec = without_cuts(given, {given->ndim() - 1});
  std::vector<int64_t> shape = spec->global_shape(), source = {0, -1};
  shape.back() = samples;
  if (spec->ndim() == 1) source = {-1};
  const SpecPtr result = with_cuts_of(spec, shape, source);
  Plan plan{.inputs = {spec}, .outputs = {result}};
  plan.run = [spec, result, replacement, at_self = call.arg("self"),
              at_generator = generator_arg(call)](LocalCall& call) {
    const at::Tensor self = call.tensor(at_self);
    check_floating("multinomial", self.scalar_type());
    const at::Tensor weights = self.to(at::kCPU, at::kDouble).reshape({-1, self.size(-1)}).contiguous();
    // In a dry run what other ranks have is zeros.
    const bool has_weights = holds(weights.sum(1).gt(0));
    check_values(
        holds(weights.ge(0).logical_and(weights.isfinite())) && (has_weights || result->mesh()->group().is_fake()),
        "multinomial", "probabilities are negative, not finite, or all zero in a row");
    const at::Tensor block = weights.new_empty({weights.size(0), result->local_shape().back()}, at::kLong);
    const int64_t first_row = spec->ndim() == 2 ? spec->offsets()[0] : 0;
    const ElementRandom random(generator_of(call, at_generator));
    note_work("multinomial", 0, memory_bytes({weights, block}));
    if (!has_weights) block.zero_();
    if (has_weights && !is_fake(weights))
      (replacement ? sample_with_replacement : sample_without)(random, weights, first_row, block);
    call.give(block.reshape(result->local_shape()).to(self.device()));
  };
  return plan;
}

const char* const kRows =
    "any cut; rows stay cut, the last dim is gathered; the same numbers for any cut and any number of ranks";

const Register samplers_rules{
    {.op = "aten::poisson", .plan = plan_sample<poisson>, .supports = kAnyCut},
    {.op = "aten::_standard_gamma", .plan = plan_sample<gamma>, .supports = kAnyCut},
    {.op = "aten::binomial", .plan = plan_binomial, .supports = kAnyCut},
    {.op = "aten::_sample_dirichlet", .plan = plan_dirichlet, .supports = kRows},
    {.op = "aten::multinomial", .plan = plan_multinomial, .supports = kRows},
};

}  // namespace
}  // namespace moonhalo
