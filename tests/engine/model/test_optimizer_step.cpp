// SPDX-License-Identifier: Apache-2.0
// Complex parameters under LibTorch's optimizers: the oracle trains the same numbers as real leaves of shape [..., 2].
#include "moonhalo/engine/model/optimizer_step.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_optimizer_step {
namespace {

using ::testing::HasSubstr;
namespace to = torch::optim;

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<to::Optimizer>(const Parameters&)>;

template <class Kind, class Options>
MakeOptimizer of(Options options) {
  return [options](const Parameters& parameters) { return std::make_unique<Kind>(parameters, options); };
}

struct Case {
  const char* name;
  MakeOptimizer make;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"SGD", of<to::SGD>(to::SGDOptions(0.02).momentum(0.9).nesterov(true).weight_decay(0.1))},
      {"Adam", of<to::Adam>(to::AdamOptions(0.1))},
      {"Adam_amsgrad", of<to::Adam>(to::AdamOptions(0.1).amsgrad(true).weight_decay(0.05).betas({0.7, 0.8}))},
      {"AdamW", of<to::AdamW>(to::AdamWOptions(0.1).weight_decay(0.2))},
      {"AdamW_amsgrad", of<to::AdamW>(to::AdamWOptions(0.1).amsgrad(true))},
      {"RMSprop", of<to::RMSprop>(to::RMSpropOptions(0.05))},
      {"RMSprop_centered", of<to::RMSprop>(to::RMSpropOptions(0.05).centered(true).momentum(0.5).weight_decay(0.1))},
      {"Adagrad", of<to::Adagrad>(to::AdagradOptions(0.3).lr_decay(0.1).initial_accumulator_value(0.1))},
      {"LBFGS", of<to::LBFGS>(to::LBFGSOptions(0.5).max_iter(4))},
      {"LBFGS_line_search", of<to::LBFGS>(to::LBFGSOptions().line_search_fn("strong_wolfe").max_iter(3))},
  };
  return all;
}

const at::Tensor kField = make_tensor({5, 4}, 1, at::kComplexDouble), kBias = make_tensor({4}, 2, at::kComplexDouble),
                 kScale = make_tensor({5, 1}, 3), kFactor = make_tensor({5, 4}, 4, at::kComplexDouble),
                 kTarget = make_tensor({5, 4}, 5, at::kComplexDouble);

at::Tensor energy(const at::Tensor& z) { return at::view_as_real(z).square().sum(); }

at::Tensor loss_of(const Parameters& p, const at::Tensor& factor, const at::Tensor& target) {
  return energy(p[0] * factor * p[2] + p[1] - target) + 0.3 * energy(p[0] * p[0]);
}

void train(to::Optimizer& optimizer, const std::function<at::Tensor()>& loss, int steps, bool closure) {
  const auto evaluate = [&] {
    optimizer.zero_grad();
    at::Tensor value = loss();
    value.backward();
    return value;
  };
  for (int step = 0; step < steps; ++step) {
    if (closure) {
      optimizer_step(optimizer, evaluate);
    } else {
      evaluate();
      optimizer_step(optimizer);
    }
  }
}

bool takes_closure(const Case& kind) { return std::string_view(kind.name).starts_with("LBFGS"); }

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); }
at::Tensor whole(const at::Tensor& tensor) { return (is_shard_tensor(tensor) ? full_tensor(tensor) : tensor).detach(); }

// PyTorch's Python trains real leaves.
Parameters trained_pairs(const Case& kind, int steps) {
  const Parameters leaves = {leaf(at::view_as_real(kField)), leaf(at::view_as_real(kBias)), leaf(kScale)};
  const auto optimizer = kind.make(leaves);
  const auto loss = [&] {
    return loss_of({at::view_as_complex(leaves[0]), at::view_as_complex(leaves[1]), leaves[2]}, kFactor, kTarget);
  };
  train(*optimizer, loss, steps, takes_closure(kind));
  return {at::view_as_complex(leaves[0].detach()), at::view_as_complex(leaves[1].detach()), leaves[2].detach()};
}

void expect_trained(const Parameters& parameters, const Parameters& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor actual = whole(parameters[i]);
    ASSERT_EQ(actual.scalar_type(), expected[i].scalar_type());
    EXPECT_EQ(difference(at::view_as_real(actual.to(at::kComplexDouble)),
                         at::view_as_real(expected[i].to(at::kComplexDouble)), 1e-10),
              "")
        << "parameter " << i;
  }
}

TEST(OptimizerStep, PlainComplexParametersAreTrainedAsPairsOfReals) {
  for (const Case& kind : cases()) {
    SCOPED_TRACE(kind.name);
    const Parameters parameters = {leaf(kField), leaf(kBias), leaf(kScale)};
    const auto optimizer = kind.make(parameters);

    train(
        *optimizer, [&] { return loss_of(parameters, kFactor, kTarget); }, 5, takes_closure(kind));

    expect_trained(parameters, trained_pairs(kind, 5));
  }
}

TEST(OptimizerStep, TheStateStaysComplexAndWithTheParameter) {
  const Parameters parameters = {leaf(kField)};
  to::Adam optimizer(parameters, to::AdamOptions(0.1).amsgrad(true));
  const auto loss = [&] { return energy(parameters[0] * kFactor - kTarget); };
  train(optimizer, loss, 1, false);
  auto& state = static_cast<to::AdamParamState&>(*optimizer.state().at(parameters[0].unsafeGetTensorImpl()));
  const at::Tensor first = state.exp_avg();

  train(optimizer, loss, 3, true);

  EXPECT_EQ(optimizer.state().size(), 1u);
  EXPECT_EQ(optimizer.param_groups()[0].params()[0].unsafeGetTensorImpl(), parameters[0].unsafeGetTensorImpl());
  EXPECT_EQ(state.step(), 4);
  EXPECT_TRUE(first.is_same(state.exp_avg()));
  for (const at::Tensor& one : {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()}) {
    EXPECT_EQ(one.scalar_type(), at::kComplexDouble);
    EXPECT_EQ(one.sizes(), kField.sizes());
  }
}

TEST(OptimizerStep, BlocksOfComplexParametersAreTrainedAsTheWhole) {
  const Placement r = replicate();
  struct Way {
    std::vector<int64_t> mesh;
    std::vector<Placement> field, bias, scale;
  };
  const Way ways[] = {
      {{1}, {shard(0)}, {r}, {r}},
      {{2}, {shard(0, {4, 1})}, {shard(0)}, {shard(0, {1, 4})}},
      {{3}, {shard(1, {3, 0, 1})}, {shard(0, {1, 0, 3})}, {r}},
      {{4}, {shard(0)}, {r}, {shard(0, {2, 0, 0, 3})}},
      {{2, 2}, {shard(0), shard(1)}, {r, shard(0)}, {shard(0), r}},
  };
  for (const Case& kind : cases()) {
    const Parameters expected = trained_pairs(kind, 3);
    for (const Way& way : ways) {
      SCOPED_TRACE(std::string(kind.name) + " on " + std::to_string(way.mesh[0]));
      on_mesh(way.mesh, [&](const MeshPtr& mesh) {
        const Parameters parameters = {shard_of(kField, mesh, way.field).requires_grad_(),
                                       shard_of(kBias, mesh, way.bias).requires_grad_(),
                                       shard_of(kScale, mesh, way.scale).requires_grad_()};
        const at::Tensor factor = shard_of(kFactor, mesh, way.field), target = shard_of(kTarget, mesh, way.field);
        const SpecPtr before = spec(parameters[0]);
        const auto optimizer = kind.make(parameters);

        train(
            *optimizer, [&] { return loss_of(parameters, factor, target); }, 3, takes_closure(kind));

        expect_trained(parameters, expected);
        EXPECT_EQ(spec(parameters[0]), before);
        if (kind.name == std::string("Adam_amsgrad")) {
          const auto& state =
              static_cast<to::AdamParamState&>(*optimizer->state().at(parameters[0].unsafeGetTensorImpl()));
          EXPECT_EQ(spec(state.max_exp_avg_sq()), before);
        }
      });
    }
  }
}

// A gradient that is a lazy conjugate, a parameter without gradient, and one that lost it between two steps.
TEST(OptimizerStep, GradientsMayBeLazyConjugatesOrAbsent) {
  const at::Tensor one = leaf(kField), other = leaf(kBias), pairs = leaf(at::view_as_real(kField));
  to::RMSprop optimizer(Parameters{one, other}, to::RMSpropOptions(0.1)),
      reference(Parameters{pairs}, to::RMSpropOptions(0.1));
  one.mutable_grad() = kFactor.conj();
  pairs.mutable_grad() = at::view_as_real(kFactor.conj().resolve_conj());

  optimizer_step(optimizer);
  reference.step();
  one.mutable_grad() = at::Tensor();
  optimizer_step(optimizer);

  EXPECT_EQ(difference(at::view_as_real(one.detach()), pairs.detach(), 1e-14), "");
  EXPECT_TRUE(other.detach().equal(kBias));
}

TEST(OptimizerStep, AnErrorOfTheClosureLeavesTheParametersInPlace) {
  const Parameters parameters = {leaf(kField)};
  to::Adam optimizer(parameters, to::AdamOptions(0.1));
  train(
      optimizer, [&] { return energy(parameters[0]); }, 1, false);

  EXPECT_THAT(message_of([&] { optimizer_step(optimizer, []() -> at::Tensor { TORCH_CHECK(false, "no data"); }); }),
              HasSubstr("no data"));

  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(parameters[0]));
  EXPECT_EQ(optimizer.state().count(parameters[0].unsafeGetTensorImpl()), 1u);
}

TEST(OptimizerStep, AdagradBeginsItsSumsByGroupAndForGroupsAddedLater) {
  const at::Tensor one = leaf(kScale), two = leaf(kScale), late = leaf(kScale);
  to::Adagrad optimizer(
      std::vector<to::OptimizerParamGroup>{
          {{one}},
          {{two}, std::make_unique<to::AdagradOptions>(to::AdagradOptions(0.5).initial_accumulator_value(2.0))}},
      to::AdagradOptions(0.5));
  optimizer.add_param_group(
      {{late}, std::make_unique<to::AdagradOptions>(to::AdagradOptions(0.5).initial_accumulator_value(2.0))});
  for (const at::Tensor& parameter : {one, two, late}) parameter.mutable_grad() = at::ones_like(parameter);

  optimizer_step(optimizer);

  EXPECT_EQ(difference(one.detach(), kScale - 0.5, 1e-9), "");
  EXPECT_EQ(difference(two.detach(), kScale - 0.5 / std::sqrt(3.0), 1e-9), "");
  EXPECT_EQ(difference(late.detach(), two.detach(), 0), "");
}

struct Stranger final : to::Optimizer {
  explicit Stranger(const Parameters& parameters)
      : Optimizer({to::OptimizerParamGroup(parameters)}, std::make_unique<to::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(OptimizerStep, WhatCannotBeTrainedAsPairsIsRefused) {
  Stranger complex({leaf(kField)}), real({leaf(kScale)});
  EXPECT_THAT(message_of([&] { optimizer_step(complex); }),
              HasSubstr("an optimizer that is not LibTorch's own has complex parameters"));
  EXPECT_EQ(message_of([&] { optimizer_step(real); }), "");

  to::Adam lazy(Parameters{kField.conj().requires_grad_()}, to::AdamOptions(0.1));
  EXPECT_THAT(message_of([&] { optimizer_step(lazy); }), HasSubstr("a complex parameter is a lazy conjugate"));
}

}  // namespace
}  // namespace moonhalo::testing::test_optimizer_step
