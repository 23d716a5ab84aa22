// SPDX-License-Identifier: Apache-2.0
// Random numbers that depend on the seed and the element's global index, never on ranks and cuts: X02, P12.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_random {
namespace {

using at::Tensor;

struct Kind {
  const char* name;
  std::function<Tensor(const Tensor&)> draw;
  double tolerance = 0;  // what is computed from the drawn numbers may be rounded in another order
};

// Draws from a tensor of probabilities.
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
    {"rand_like_half", [](const Tensor& x) { return at::rand_like(x, at::kHalf); }},
    {"randn_like_complex", [](const Tensor& x) { return at::randn_like(x, at::kComplexDouble); }},
    {"uniform_complex", [](const Tensor& x) { return at::empty_like(x, at::kComplexFloat).uniform_(1, 2); }},
    {"randint_like_tensor", [](const Tensor& x) { return at::randint_like(x, at::scalar_tensor(9, at::kLong)); }},
    {"random_all_of_int64",
     [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(INT64_MIN, std::optional<int64_t>()); }},
    {"uniform", [](const Tensor& x) { return at::uniform(x, 1, 2); }},
    {"normal_functional", [](const Tensor& x) { return at::normal_functional(x, 1, 2); }},
    {"log_normal", [](const Tensor& x) { return at::log_normal(x, 0, 0.5); }},
    {"exponential", [](const Tensor& x) { return at::exponential(x, 2); }},
    {"cauchy", [](const Tensor& x) { return at::cauchy(x); }},
    {"geometric", [](const Tensor& x) { return at::geometric(x, 0.4); }},
    {"random", [](const Tensor& x) { return at::random(x, 3, 8); }},
    {"bernoulli_of_tensor", [](const Tensor& x) { return at::bernoulli(x, x * 0.5); }},
    {"normal_of_means", [](const Tensor& x) { return at::normal(x, 2); }},
    {"normal_of_deviations", [](const Tensor& x) { return at::normal(2, x); }},
    {"normal_of_both", [](const Tensor& x) { return at::normal(x.narrow(0, 0, 1), x); }},
    {"native_dropout", [](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0.4, true)); }},
    {"alpha_dropout", [](const Tensor& x) { return at::alpha_dropout(x, 0.4, true); }},
    {"feature_dropout", [](const Tensor& x) { return at::feature_dropout(x, 0.4, true); }},
    {"feature_alpha_dropout", [](const Tensor& x) { return at::feature_alpha_dropout(x, 0.4, true); }},
    {"rrelu", [](const Tensor& x) { return at::rrelu(x - 0.5, 0.1, 0.3, true); }},
    {"rrelu_",
     [](const Tensor& x) {
       Tensor y = x - 0.5;
       return at::rrelu_(y, 0.1, 0.3, true);
     }},
    {"poisson", [](const Tensor& x) { return at::poisson(x * 40); }},
    {"binomial", [](const Tensor& x) { return at::binomial((x * 90).floor(), x); }},
    {"standard_gamma", [](const Tensor& x) { return at::_standard_gamma(x * 3); }},
    {"sample_dirichlet", [](const Tensor& x) { return at::_sample_dirichlet(x + 0.1); }},
    {"multinomial", [](const Tensor& x) { return at::multinomial(x.select(2, 0), 5, true); }},
    {"multinomial_without", [](const Tensor& x) { return at::multinomial(x.select(2, 0), 5, false); }},
    {"multinomial_of_one_row", [](const Tensor& x) { return at::multinomial(x.select(2, 0).select(1, 3), 4, false); }},
    {"attention_dropout",
     [](const Tensor& x) {
       const Tensor q = x.unsqueeze(1);
       return at::scaled_dot_product_attention(q, q, q, {}, 0.3);
     },
     1e-14},
    {"plain_permutation_and_noise",
     [](const Tensor& x) {
       return x.index_select(0, at::randperm(9)) + at::randn({7, 2}, at::kDouble) + at::randint(5, {2});
     }},
    {"third_of_three", [](const Tensor& x) { return at::rand_like(x), at::randn_like(x), at::rand_like(x); }},
};

const Tensor kChances = make_tensor({9, 7, 2}, 1).abs();

// The whole of what ranks of `mesh` draw after manual_seed(seed).
Tensor drawn(const std::vector<int64_t>& mesh, const std::vector<Placement>& placements, const Tensor& chances,
             const std::function<Tensor(const Tensor&)>& draw, uint64_t seed = 7) {
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
  std::vector<PlacementCase> ways = kPlacements972;
  ways.push_back({"one_rank_cut", {1}, {shard(0)}});
  ways.push_back({"replicated_on_3", {3}, {replicate()}});
  ways.push_back({"eight_ranks", {8}, {shard(0)}});
  ways.push_back({"eight_in_a_cube", {2, 2, 2}, {shard(0, {2, 7}), shard(1, {6, 1}), shard(2)}});
  for (const Kind& kind : kKinds) {
    const Tensor expected = drawn({1}, {replicate()}, kChances, kind.draw);
    for (const PlacementCase& held : ways) {
      SCOPED_TRACE(std::string(kind.name) + " " + held.name);
      // A Partial's probabilities are sums, equal up to rounding: coins may fall otherwise only there.
      const double tolerance =
          std::any_of(held.placements.begin(), held.placements.end(), [](const Placement& p) { return p.is_partial(); })
              ? 1e-12
              : kind.tolerance;
      EXPECT_EQ(difference(drawn(held.mesh, held.placements, kChances, kind.draw), expected, tolerance), "");
    }
  }
}

// A program without a mesh draws what ranks draw.
TEST(Random, X02_PlainTensorsDrawTheSame) {
  const ElementwiseRandom elementwise;
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Tensor expected = drawn({2}, {shard(0, {3, 6})}, kChances, kind.draw);
    manual_seed(7);
    EXPECT_EQ(difference(kind.draw(kChances), expected, kind.tolerance), "");
  }
}

TEST(Random, X02_PlainDrawsObeyAutograd) {
  const ElementwiseRandom elementwise;
  Tensor leaf = at::zeros({3, 2}, at::kDouble).requires_grad_();
  EXPECT_NE(message_of([&] { leaf.uniform_(); }).find("leaf"), std::string::npos);
  Tensor y = leaf * 2;
  const int64_t version = y._version();
  y.normal_();
  EXPECT_GT(y._version(), version);
  (y.sum() + leaf.sum()).backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::ones({3, 2}, at::kDouble)));

  Tensor x = make_tensor({4, 5}, 2).requires_grad_();
  const Tensor z = at::rrelu(x, 0.1, 0.4, true);
  z.sum().backward();
  EXPECT_EQ(difference(x.grad() * x.detach(), z.detach(), 1e-15), "");

  // Views are written where they are.
  Tensor table = at::zeros({4, 6}, at::kDouble);
  table.t().slice(0, 1, 6, 2).uniform_(1, 2);
  EXPECT_EQ(table.count_nonzero().item<int64_t>(), 12);

  const c10::InferenceMode inference;
  EXPECT_EQ(at::rand({3}).sizes(), at::IntArrayRef({3}));
}

TEST(Random, X02_SeedsOperatorsAndCallsDiffer) {
  std::vector<Tensor> all;
  for (const uint64_t seed : {7, 8}) {
    all.push_back(drawn(
        {2}, {shard(0, {3, 6})}, kChances, [](const Tensor& x) { return at::rand_like(x); }, seed));
    all.push_back(drawn(
        {2}, {shard(1)}, kChances, [](const Tensor& x) { return at::randn_like(x); }, seed));
    all.push_back(drawn(
        {2}, {shard(0)}, kChances, [](const Tensor& x) { return at::rand_like(x), at::rand_like(x); }, seed));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_LT(all[i].eq(all[j]).sum().item<int64_t>(), 3) << i << " and " << j;
  }
}

TEST(Random, X02_TheGeneratorsStateIsAllTheState) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(kChances, mesh, {shard(0)});
    manual_seed(3);
    at::randn_like(x);
    const Tensor state = default_generator().get_state();
    const Tensor first = full_tensor(at::dropout(x, 0.5, true)), second = full_tensor(at::rand_like(x));

    default_generator().set_state(state);
    EXPECT_TRUE(at::equal(full_tensor(at::dropout(x, 0.5, true)), first));
    EXPECT_TRUE(at::equal(full_tensor(at::rand_like(x)), second));

    // A generator that is given is used, and the default one left alone.
    const Tensor before = default_generator().get_state();
    const auto own = [&] {
      return full_tensor(at::empty_like(x).uniform_(0, 1, at::make_generator<at::CPUGeneratorImpl>(5)));
    };
    EXPECT_TRUE(at::equal(own(), own()));
    EXPECT_TRUE(at::equal(default_generator().get_state(), before));
  });
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
  for (const Fallback fallback : {Fallback::kReplicate, Fallback::kError}) {
    on_mesh(
        {2},
        [&](const MeshPtr& mesh) {
          const Tensor x = shard_of(kChances, mesh, {shard(0)});
          const std::string text = message_of([&] { at::_fused_dropout(x, 0.5); });  // has a kernel on GPUs alone
          EXPECT_NE(text.find("no rule for this random operator"), std::string::npos) << text;
          EXPECT_NE(text.find("\n  fix "), std::string::npos) << text;
        },
        fallback);
  }
}

TEST(Random, WrongArgumentsAreRefused) {
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> wrong[] = {
      {"uniform_: the range [3, 2) is empty", [](const Tensor& x) { return at::empty_like(x).uniform_(3, 2); }},
      {"normal_: the standard deviation -1 is negative",
       [](const Tensor& x) { return at::empty_like(x).normal_(0, -1); }},
      {"exponential_: the rate 0 is not positive", [](const Tensor& x) { return at::empty_like(x).exponential_(0); }},
      {"geometric_: the probability 0 is not between 0 and 1",
       [](const Tensor& x) { return at::empty_like(x).geometric_(0); }},
      {"bernoulli: the probability 2 is not in [0, 1]",
       [](const Tensor& x) { return at::empty_like(x).bernoulli_(2); }},
      {"random: the range [5, 5) is empty", [](const Tensor& x) { return at::empty_like(x).random_(5, 5); }},
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
}  // namespace moonhalo::testing::test_random
