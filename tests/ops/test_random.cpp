// SPDX-License-Identifier: Apache-2.0
// Random numbers that depend on the seed and the element's global index, never on ranks and cuts: X02, P12.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "engine/random.h"
#include "engine/shard_tensor.h"
#include "tests/support/held.h"

namespace moonhalo::testing {
namespace {

using at::Tensor;

struct Kind {
  const char* name;
  std::function<Tensor(const Tensor&)> draw;
};

// Of a tensor of probabilities.
const std::vector<Kind> kKinds = {
    {"rand_like", [](const Tensor& x) { return at::rand_like(x); }},
    {"randn_like", [](const Tensor& x) { return at::randn_like(x); }},
    {"randn_like_float", [](const Tensor& x) { return at::randn_like(x, at::kFloat); }},
    {"randint_like", [](const Tensor& x) { return at::randint_like(x, -3, 9); }},
    {"uniform_", [](const Tensor& x) { return at::empty_like(x).uniform_(-2, 3); }},
    {"normal_", [](const Tensor& x) { return at::empty_like(x).normal_(1, 2); }},
    {"normal_bfloat16", [](const Tensor& x) { return at::empty_like(x, at::kBFloat16).normal_(); }},
    {"log_normal_", [](const Tensor& x) { return at::empty_like(x).log_normal_(0, 0.5); }},
    {"exponential_", [](const Tensor& x) { return at::empty_like(x).exponential_(2); }},
    {"cauchy_", [](const Tensor& x) { return at::empty_like(x).cauchy_(0.5, 2); }},
    {"geometric_", [](const Tensor& x) { return at::empty_like(x).geometric_(0.3); }},
    {"random_", [](const Tensor& x) { return at::empty_like(x).random_(); }},
    {"random_to", [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(10); }},
    {"random_from", [](const Tensor& x) { return at::empty_like(x, at::kInt).random_(-5, 6); }},
    {"bernoulli_", [](const Tensor& x) { return at::empty_like(x).bernoulli_(0.3); }},
    {"bernoulli_tensor_", [](const Tensor& x) { return at::zeros_like(x).bernoulli_(x); }},
    {"bernoulli", [](const Tensor& x) { return x.bernoulli(); }},
    {"bernoulli_p", [](const Tensor& x) { return x.bernoulli(0.7); }},
    {"dropout", [](const Tensor& x) { return at::dropout(x, 0.4, true); }},
    {"dropout_",
     [](const Tensor& x) {
       Tensor y = x.clone();
       return at::dropout_(y, 0.4, true);
     }},
    {"third_of_three",
     [](const Tensor& x) { return at::rand_like(x), at::randn_like(x), at::rand_like(x); }},
};

const Tensor kChances = make_tensor({9, 7, 2}, 1).abs();

// The whole of what ranks of `mesh` draw after manual_seed(seed).
Tensor drawn(const std::vector<int64_t>& mesh, const std::vector<Placement>& placements,
             const Tensor& chances, const std::function<Tensor(const Tensor&)>& draw,
             uint64_t seed = 7) {
  std::mutex mutex;
  Tensor result;
  on_mesh(mesh, [&](const MeshPtr& made) {
    manual_seed(seed);
    const Tensor whole = full_tensor(draw(shard_of(chances, made, placements)));
    const std::lock_guard lock(mutex);
    if (result.defined()) EXPECT_TRUE(at::equal(result, whole));
    result = whole;
  });
  return result;
}

TEST(Random, X02_TheSameNumbersOnAnyCut) {
  std::vector<Held> ways = kHeld972;
  ways.push_back({"one_rank_cut", {1}, {shard(0)}});
  ways.push_back({"replicated_on_3", {3}, {replicate()}});
  ways.push_back({"eight_ranks", {8}, {shard(0)}});
  ways.push_back({"eight_in_a_cube", {2, 2, 2}, {shard(0, {2, 7}), shard(1, {6, 1}), shard(2)}});
  for (const Kind& kind : kKinds) {
    const Tensor expected = drawn({1}, {replicate()}, kChances, kind.draw);
    for (const Held& held : ways) {
      SCOPED_TRACE(std::string(kind.name) + " " + held.name);
      // A Partial's probabilities are sums, equal up to rounding: coins may fall otherwise only there.
      const double tolerance = std::any_of(held.placements.begin(), held.placements.end(),
                                           [](const Placement& p) { return p.is_partial(); })
                                   ? 1e-12
                                   : 0;
      EXPECT_EQ(
          difference(drawn(held.mesh, held.placements, kChances, kind.draw), expected, tolerance),
          "");
    }
  }
}

TEST(Random, X02_SeedsOperatorsAndCallsDiffer) {
  std::vector<Tensor> all;
  for (const uint64_t seed : {7, 8}) {
    all.push_back(drawn(
        {2}, {shard(0, {3, 6})}, kChances, [](const Tensor& x) { return at::rand_like(x); }, seed));
    all.push_back(drawn(
        {2}, {shard(1)}, kChances, [](const Tensor& x) { return at::randn_like(x); }, seed));
    all.push_back(drawn(
        {2}, {shard(0)}, kChances,
        [](const Tensor& x) { return at::rand_like(x), at::rand_like(x); }, seed));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      EXPECT_LT(all[i].eq(all[j]).sum().item<int64_t>(), 3) << i << " and " << j;
  }
}

TEST(Random, X02_TheGeneratorsStateIsAllTheState) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(kChances, mesh, {shard(0)});
    manual_seed(3);
    at::randn_like(x);
    const Tensor state = default_generator().get_state();
    const Tensor first = full_tensor(at::dropout(x, 0.5, true)),
                 second = full_tensor(at::rand_like(x));

    default_generator().set_state(state);
    EXPECT_TRUE(at::equal(full_tensor(at::dropout(x, 0.5, true)), first));
    EXPECT_TRUE(at::equal(full_tensor(at::rand_like(x)), second));

    // A generator that is given is used, and the default one left alone.
    const Tensor before = default_generator().get_state();
    const auto own = [&] {
      return full_tensor(
          at::empty_like(x).uniform_(0, 1, at::make_generator<at::CPUGeneratorImpl>(5)));
    };
    EXPECT_TRUE(at::equal(own(), own()));
    EXPECT_TRUE(at::equal(default_generator().get_state(), before));
  });
}

// Kolmogorov's distance of the sorted samples from their distribution.
double distance(const Tensor& samples, const std::function<double(double)>& below) {
  const Tensor sorted = std::get<0>(samples.sort());
  const double* value = sorted.const_data_ptr<double>();
  const int64_t n = samples.numel();
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double expected = below(value[i]);
    worst = std::max({worst, std::abs(expected - static_cast<double>(i) / n),
                      std::abs(expected - static_cast<double>(i + 1) / n)});
  }
  return worst;
}

TEST(Random, X02_NumbersFollowTheirDistributions) {
  constexpr int64_t kSamples = 100'000;
  const Tensor many = at::zeros({kSamples / 100, 100}, at::kDouble);
  const std::vector<Placement> cut{shard(0, {600, 0, 399, 1})};
  const auto sample = [&](const std::function<Tensor(const Tensor&)>& draw) {
    return drawn({4}, cut, many, draw).flatten();
  };
  const double limit = 1.95 / std::sqrt(kSamples);  // one in a thousand
  const auto near = [](const Tensor& x, double mean, double variance) {
    const double deviation = std::sqrt(variance / kSamples);
    EXPECT_NEAR(x.mean().item<double>(), mean, 4 * deviation);
    EXPECT_NEAR(x.var().item<double>() / variance, 1, 0.05);
    const Tensor centred = x - mean;
    EXPECT_NEAR((centred.slice(0, 1) * centred.slice(0, 0, -1)).mean().item<double>(), 0,
                4 * std::sqrt(variance) * deviation);
  };

  const Tensor flat = sample([](const Tensor& x) { return at::rand_like(x); });
  near(flat, 0.5, 1.0 / 12);
  EXPECT_GE(flat.min().item<double>(), 0);
  EXPECT_LT(flat.max().item<double>(), 1);
  EXPECT_LT(distance(flat, [](double x) { return x; }), limit);

  const Tensor normal = sample([](const Tensor& x) { return at::empty_like(x).normal_(1, 2); });
  near(normal, 1, 4);
  EXPECT_LT(distance(normal, [](double x) { return 0.5 * std::erfc(-(x - 1) / 2 / std::sqrt(2)); }),
            limit);

  const Tensor waits = sample([](const Tensor& x) { return at::empty_like(x).exponential_(2); });
  near(waits, 0.5, 0.25);
  EXPECT_LT(distance(waits, [](double x) { return 1 - std::exp(-2 * x); }), limit);

  EXPECT_LT(distance(sample([](const Tensor& x) { return at::empty_like(x).cauchy_(1, 2); }),
                     [](double x) { return 0.5 + std::atan((x - 1) / 2) / M_PI; }),
            limit);
  EXPECT_LT(distance(sample([](const Tensor& x) { return at::empty_like(x).log_normal_(0, 0.5); }),
                     [](double x) { return 0.5 * std::erfc(-std::log(x) / 0.5 / std::sqrt(2)); }),
            limit);
  near(sample([](const Tensor& x) { return at::empty_like(x).bernoulli_(0.3); }), 0.3, 0.21);
  near(sample([](const Tensor& x) { return at::empty_like(x).geometric_(0.3); }), 1 / 0.3,
       0.7 / 0.09);
  near(sample([](const Tensor& x) { return at::dropout(x + 1, 0.25, true); }), 1, 1 / 0.75 - 1);

  const Tensor dice = sample([](const Tensor& x) { return at::empty_like(x).random_(0, 10); });
  const Tensor off = at::histc(dice, 10, -0.5, 9.5) - kSamples / 10;
  EXPECT_LT((off * off).sum().item<double>() / (kSamples / 10),
            27.9);  // chi squared, 9 degrees, one in a thousand
}

TEST(Random, X02_TheMaskOfDropoutIsThatOfItsGradient) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    manual_seed(11);
    const Tensor x = shard_of(kChances + 1, mesh, {shard(0, {4, 0, 5})}).requires_grad_();

    const Tensor y = at::dropout(x, 0.5, true);
    y.sum().backward();

    EXPECT_EQ(difference(full_tensor(x.grad() * x.detach()), full_tensor(y.detach()), 1e-15), "");
    EXPECT_TRUE(spec(x.grad())->cut(0) == spec(x)->cut(0));
  });
}

TEST(Random, ReplicatedTensorsStayReplicated) {  // P12
  on_mesh({3}, [](const MeshPtr& mesh) {
    manual_seed(11);
    const Tensor y = at::dropout(shard_of(kChances, mesh, {replicate()}), 0.5, true);
    EXPECT_TRUE(spec(y)->is_replicate());
    Tensor sum = to_local(y).clone();
    mesh->group(0).all_reduce(sum, ReduceOp::kSum);
    EXPECT_TRUE(at::equal(sum / 3 * 3, to_local(y) * 3));
  });
}

TEST(Random, S25_OtherRandomOperatorsAreRefused) {
  const Kind refused[] = {
      {"multinomial", [](const Tensor& x) { return at::multinomial(x.select(2, 0), 2); }},
      {"poisson", [](const Tensor& x) { return at::poisson(x); }},
      {"rrelu", [](const Tensor& x) { return at::rrelu(x, 0.1, 0.3, true); }},
      {"binomial", [](const Tensor& x) { return at::binomial(x * 9, x); }},
  };
  for (const Fallback fallback : {Fallback::kReplicate, Fallback::kError}) {
    on_mesh(
        {2},
        [&](const MeshPtr& mesh) {
          const Tensor x = shard_of(kChances, mesh, {shard(0)});
          for (const Kind& kind : refused) {
            const std::string text = message_of([&] { kind.draw(x); });
            EXPECT_NE(text.find("no rule for this random operator"), std::string::npos)
                << kind.name << ": " << text;
            EXPECT_NE(text.find("\n  fix "), std::string::npos) << kind.name << ": " << text;
          }
        },
        fallback);
  }
}

TEST(Random, WrongArgumentsAreRefused) {
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> wrong[] = {
      {"uniform_: the range [3, 2) is empty",
       [](const Tensor& x) { return at::empty_like(x).uniform_(3, 2); }},
      {"normal_: the standard deviation -1 is negative",
       [](const Tensor& x) { return at::empty_like(x).normal_(0, -1); }},
      {"exponential_: the rate 0 is not positive",
       [](const Tensor& x) { return at::empty_like(x).exponential_(0); }},
      {"geometric_: the probability 0 is not between 0 and 1",
       [](const Tensor& x) { return at::empty_like(x).geometric_(0); }},
      {"bernoulli: the probability 2 is not in [0, 1]",
       [](const Tensor& x) { return at::empty_like(x).bernoulli_(2); }},
      {"random: the range [5, 5) is empty",
       [](const Tensor& x) { return at::empty_like(x).random_(5, 5); }},
  };
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(kChances, mesh, {shard(0)});
    for (const auto& [message, call] : wrong) {
      const std::string text = message_of([&, &call = call] { call(x); });
      EXPECT_NE(text.find(message), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing
