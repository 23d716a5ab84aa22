// SPDX-License-Identifier: Apache-2.0
// Random numbers are not only the same on any cut but random: moments, distributions, independence. Seeds are fixed, so
// nothing here can fail by chance; a bound is passed by about one seed in ten thousand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_random_quality {
namespace {

using at::Tensor;

constexpr int64_t kRows = 1000, kColumns = 1000, kSamples = kRows * kColumns;

using Draw = std::function<Tensor(const Tensor&)>;

// The whole of what four ranks draw, as one row of float64.
std::vector<Tensor> drawn(uint64_t seed, const std::vector<Draw>& draws) {
  std::vector<Tensor> result(draws.size());
  on_mesh({4}, [&](const MeshPtr& mesh) {
    manual_seed(seed);
    const Tensor like = make_on_mesh(mesh, {shard(0, {600, 0, 399, 1})}, [] {
      return at::zeros({kRows, kColumns}, at::kDouble);
    });
    for (size_t i = 0; i < draws.size(); ++i) {
      const Tensor whole = full_tensor(draws[i](like)).to(at::kDouble).flatten();
      if (mesh->rank() == 0) result[i] = whole;
    }
  });
  return result;
}

// Kolmogorov's distance of samples from their distribution, in units of 1 / sqrt(n).
double distance(const Tensor& samples, const Draw& below) {
  const auto n = static_cast<double>(samples.numel());
  const Tensor expected = below(std::get<0>(samples.sort()));
  const Tensor steps = at::arange(samples.numel(), at::kDouble);
  const double above = (expected - steps / n).max().item<double>(),
               under = ((steps + 1) / n - expected).max().item<double>();
  return std::max(above, under) * std::sqrt(n);
}
constexpr double kFar = 2.23;  // exceeded once in ten thousand

Tensor normal_below(const Tensor& x) { return 0.5 * at::erfc(x / -std::sqrt(2)); }
Tensor gamma_below(double shape, const Tensor& x) { return at::special_gammainc(at::full_like(x, shape), x); }

TEST(RandomQuality, X02_ContinuousNumbersFollowTheirDistributions) {
  struct Continuous {
    const char* name;
    Draw draw, below;
  };
  const Continuous kinds[] = {
      {"rand", [](const Tensor& x) { return at::rand_like(x); }, [](const Tensor& x) { return x; }},
      {"rand_float", [](const Tensor& x) { return at::rand_like(x, at::kFloat); }, [](const Tensor& x) { return x; }},
      {"uniform", [](const Tensor& x) { return at::empty_like(x).uniform_(-3, 1); },
       [](const Tensor& x) { return (x + 3) / 4; }},
      {"normal", [](const Tensor& x) { return at::empty_like(x).normal_(1, 2); },
       [](const Tensor& x) { return normal_below((x - 1) / 2); }},
      {"normal_complex", [](const Tensor& x) { return at::real(at::randn_like(x, at::kComplexDouble)); },
       [](const Tensor& x) { return normal_below(x * std::sqrt(2)); }},
      {"log_normal", [](const Tensor& x) { return at::empty_like(x).log_normal_(0.3, 0.5); },
       [](const Tensor& x) { return normal_below((x.log() - 0.3) / 0.5); }},
      {"exponential", [](const Tensor& x) { return at::empty_like(x).exponential_(2); },
       [](const Tensor& x) { return -at::expm1(-2 * x); }},
      {"cauchy", [](const Tensor& x) { return at::empty_like(x).cauchy_(1, 2); },
       [](const Tensor& x) { return 0.5 + at::atan((x - 1) / 2) / M_PI; }},
      {"gamma_of_0.3", [](const Tensor& x) { return at::_standard_gamma(x + 0.3); },
       [](const Tensor& x) { return gamma_below(0.3, x); }},
      {"gamma_of_4.5", [](const Tensor& x) { return at::_standard_gamma(x + 4.5); },
       [](const Tensor& x) { return gamma_below(4.5, x); }},
      // With 1000 concentrations 1/500, ..., the first against the rest would need the incomplete beta function; of two
      // equal ones of 1 the share is uniform.
      {"dirichlet",
       [](const Tensor& x) {
         return at::_sample_dirichlet(x.reshape({kRows, kColumns / 2, 2}) + 1);
       },
       [](const Tensor& x) { return x; }},
      {"rrelu", [](const Tensor& x) { return at::rrelu(x - 1, 0.1, 0.4, true); },
       [](const Tensor& x) { return (x + 0.4) / 0.3; }},
  };
  for (const Continuous& kind : kinds) EXPECT_LT(distance(drawn(5, {kind.draw})[0], kind.below), kFar) << kind.name;
  // The test itself sees a shift of the mean by half a percent of the deviation.
  EXPECT_GT(distance(drawn(5, {kinds[3].draw})[0] + 0.01, kinds[3].below), kFar);
}

// Chi squared of counts against their expectation; cells of less than ten are put together.
void expect_counts(const char* name, const Tensor& samples, const std::function<double(int64_t)>& chance) {
  const Tensor counts = at::bincount(samples.to(at::kLong));
  double squares = 0, rest = kSamples, rest_expected = kSamples;
  int64_t cells = 0;
  for (int64_t k = 0; k < counts.numel(); ++k) {
    const double expected = kSamples * chance(k), found = counts[k].item<double>();
    if (expected < 10) continue;
    squares += (found - expected) * (found - expected) / expected;
    rest -= found;
    rest_expected -= expected;
    ++cells;
  }
  if (rest_expected > 10) {
    squares += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
  } else {
    EXPECT_LT(rest, 40) << name;
    --cells;
  }
  EXPECT_LT(squares, cells + 4 * std::sqrt(2.0 * cells) + 8) << name << ", " << cells << " degrees of freedom";
}

double factorial_log(double k) { return std::lgamma(k + 1); }

TEST(RandomQuality, X02_CountsFollowTheirDistributions) {
  struct Discrete {
    const char* name;
    Draw draw;
    std::function<double(int64_t)> chance;
  };
  const auto poisson = [](double mean) {
    return [mean](int64_t k) { return std::exp(k * std::log(mean) - mean - factorial_log(k)); };
  };
  const auto binomial = [](double n, double p) {
    return [n, p](int64_t k) {
      return std::exp(factorial_log(n) - factorial_log(k) - factorial_log(n - k) + k * std::log(p) +
                      (n - k) * std::log1p(-p));
    };
  };
  const auto binomials = [](double n, double p) {
    return [n, p](const Tensor& x) { return at::binomial(x + n, x + p); };
  };
  const Discrete kinds[] = {
      {"bernoulli", [](const Tensor& x) { return at::empty_like(x).bernoulli_(0.3); },
       [](int64_t k) { return k ? 0.3 : 0.7; }},
      {"dropout", [](const Tensor& x) { return at::dropout(x + 1, 0.25, true).ne(0); },
       [](int64_t k) { return k ? 0.75 : 0.25; }},
      {"geometric", [](const Tensor& x) { return at::empty_like(x).geometric_(0.3); },
       [](int64_t k) { return k ? 0.3 * std::pow(0.7, k - 1) : 0.0; }},
      {"randint", [](const Tensor& x) { return at::randint_like(x, 0, 100); }, [](int64_t) { return 0.01; }},
      {"poisson_of_0.7", [](const Tensor& x) { return at::poisson(x + 0.7); }, poisson(0.7)},
      {"poisson_of_9.5", [](const Tensor& x) { return at::poisson(x + 9.5); }, poisson(9.5)},
      {"poisson_of_10.5", [](const Tensor& x) { return at::poisson(x + 10.5); }, poisson(10.5)},
      {"poisson_of_300", [](const Tensor& x) { return at::poisson(x + 300); }, poisson(300)},
      {"binomial_20_0.3", binomials(20, 0.3), binomial(20, 0.3)},
      {"binomial_40_0.3", binomials(40, 0.3), binomial(40, 0.3)},
      {"binomial_300_0.4", binomials(300, 0.4), binomial(300, 0.4)},
      {"binomial_300_0.9", binomials(300, 0.9), binomial(300, 0.9)},
      {"multinomial",
       [](const Tensor& x) { return at::multinomial(x.slice(1, 0, 4) + at::arange(4, at::kDouble), kColumns, true); },
       [](int64_t k) { return static_cast<double>(k) / 6; }},
      // With weights 1, 2, 3 the first of three is drawn so; [rows, 3] keeps its first column.
      {"multinomial_without",
       [](const Tensor& x) {
         return at::multinomial(x.reshape({-1, 1}) + at::arange(1, 4, at::kDouble), 3).select(1, 0);
       },
       [](int64_t k) { return (k + 1) / 6.0; }},
  };
  for (const Discrete& kind : kinds) expect_counts(kind.name, drawn(6, {kind.draw})[0], kind.chance);
}

TEST(RandomQuality, X02_MomentsAreThoseOfTheDistribution) {
  struct Moments {
    const char* name;
    Draw draw;
    double mean, deviation;
    double power[9];  // of the standardized variable, 0th to 8th
  };
  const Moments kinds[] = {
      {"uniform",
       [](const Tensor& x) { return at::rand_like(x); },
       0.5,
       std::sqrt(1.0 / 12),
       {1, 0, 1, 0, 1.8, 0, 27.0 / 7, 0, 9}},
      {"normal", [](const Tensor& x) { return at::randn_like(x); }, 0, 1, {1, 0, 1, 0, 3, 0, 15, 0, 105}},
      {"normal_float",
       [](const Tensor& x) { return at::randn_like(x, at::kFloat); },
       0,
       1,
       {1, 0, 1, 0, 3, 0, 15, 0, 105}},
      {"exponential",
       [](const Tensor& x) { return at::exponential(x, 0.5); },
       2,
       2,
       {1, 0, 1, 2, 9, 44, 265, 1854, 14833}},
  };
  for (const Moments& kind : kinds) {
    const Tensor z = (drawn(7, {kind.draw})[0] - kind.mean) / kind.deviation;
    for (int k = 1; k <= 4; ++k) {  // mean, variance, skewness, kurtosis
      const double error = std::sqrt((kind.power[2 * k] - kind.power[k] * kind.power[k]) / kSamples);
      EXPECT_NEAR(z.pow(k).mean().item<double>(), kind.power[k], 4 * error) << kind.name << ", moment " << k;
    }
  }
}

TEST(RandomQuality, X02_NeighboursAndDrawsAreIndependent) {
  const auto draw = [](const Tensor& x) { return at::rand_like(x); };
  const std::vector<Tensor> all =
      drawn(8, {draw, draw, [](const Tensor& x) { return at::rand_like(x, at::kComplexDouble).abs().square(); }});
  const Tensor a = all[0], b = all[1];
  const Tensor table = a.view({kRows, kColumns});
  const std::tuple<const char*, Tensor, Tensor> pairs[] = {
      {"neighbours in a row", a.slice(0, 0, -1), a.slice(0, 1)},
      {"neighbours in a column", table.slice(0, 0, -1).flatten(), table.slice(0, 1).flatten()},
      {"second neighbours", a.slice(0, 0, -2), a.slice(0, 2)},
      {"consecutive draws", a, b},
      {"consecutive draws, shifted", a.slice(0, 1), b.slice(0, 0, -1)},
      {"seeds one apart", a, drawn(9, {draw})[0]},
      {"rank streams", table.slice(0, 0, 399).flatten(), table.slice(0, 600, 999).flatten()},
  };
  constexpr int64_t kBins = 16;
  for (const auto& [name, x, y] : pairs) {
    const auto n = static_cast<double>(x.numel());
    const double correlation = ((x - 0.5) * (y - 0.5)).mean().item<double>() * 12;
    EXPECT_NEAR(correlation, 0, 4 / std::sqrt(n)) << name;
    const Tensor cell = (x * kBins).floor() * kBins + (y * kBins).floor();
    const Tensor off = at::bincount(cell.to(at::kLong), {}, kBins * kBins) - n / (kBins * kBins);
    const double squares = (off * off).sum().item<double>() / (n / (kBins * kBins));
    const double degrees = kBins * kBins - 1;
    EXPECT_NEAR(squares, degrees, 4 * std::sqrt(2 * degrees)) << name;
  }
  // Real and imaginary part: |z|^2 of two independent uniform numbers is below r with chance pi r / 4.
  const Tensor inside = all[2].lt(0.5);
  EXPECT_NEAR(inside.to(at::kDouble).mean().item<double>(), M_PI / 8,
              4 * std::sqrt(M_PI / 8 * (1 - M_PI / 8) / kSamples));
}

// The published answers of ten-round Philox 4x32.
TEST(RandomQuality, X02_PhiloxGivesItsPublishedWords) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomQuality, X02_WordsOfDifferentKeysElementsAndBlocksDoNotOverlap) {
  std::set<std::array<uint32_t, 4>> seen;
  int64_t made = 0;
  manual_seed(1);
  for (int draw = 0; draw < 8; ++draw) {
    const uint64_t key = ElementRandom::draw_key(std::nullopt);
    for (uint64_t element = 0; element < 5000; ++element) {
      for (uint64_t block = 0; block < 5; ++block, ++made) seen.insert(philox(key, element, block));
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), made);

  // An element's sequence is its own, however long: the words are those of its blocks, in order.
  Draws draws(11, 3);
  for (uint64_t block = 0; block < 40; ++block) {
    const auto words = philox(11, 3, block);
    EXPECT_EQ(draws.bits(), static_cast<uint64_t>(words[0]) << 32 | words[1]);
    EXPECT_EQ(draws.bits(), static_cast<uint64_t>(words[2]) << 32 | words[3]);
  }
}

TEST(RandomQuality, RangesLeaveOutTheirEnd) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const std::vector<Tensor> all =
        drawn(10, {[&](const Tensor& x) { return at::rand_like(x, dtype); },
                   [&](const Tensor& x) { return at::empty_like(x, dtype).uniform_(-1, 3); }});
    EXPECT_GE(all[0].min().item<double>(), 0) << dtype;
    EXPECT_LT(all[0].max().item<double>(), 1) << dtype;
    EXPECT_GE(all[1].min().item<double>(), -1) << dtype;
    EXPECT_LT(all[1].max().item<double>(), 3) << dtype;
  }
  Draws draws(1, 2);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(draws.below(3), 3u);
}

}  // namespace
}  // namespace moonhalo::testing::test_random_quality
