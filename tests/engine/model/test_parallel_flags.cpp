// SPDX-License-Identifier: Apache-2.0
// A plan can say more than placements: where gradients go, models that come in blocks, factories within forward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/deferred/factory_capture.h"
#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_parallel_flags {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

at::Tensor whole(const at::Tensor& tensor) {
  return is_shard_tensor(tensor) ? full_tensor(tensor.detach()) : tensor.detach();
}

struct MlpImpl : nn::Module {
  MlpImpl(int64_t features, int64_t hidden)
      : fc1(register_module("fc1", nn::Linear(features, hidden))),
        fc2(register_module("fc2", nn::Linear(hidden, features))) {
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    int64_t seed = 1;
    for (at::Tensor& parameter : parameters()) parameter.copy_(make_tensor(parameter.sizes(), seed++) * 0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return call(fc2, at::gelu(call(fc1, x))); }
  nn::Linear fc1, fc2;
};
TORCH_MODULE(Mlp);

using Named = std::map<std::string, at::Tensor>;
Named gradients(Mlp& net, const at::Tensor& x) {
  call(net, x).square().sum().backward();
  Named found;
  for (const auto& p : net->named_parameters()) found[p.key()] = p.value().grad();
  return found;
}

const char* const kPlan = R"json({
  "parameter": {
    "fc1.weight": {"placements": "S(0)", "grad": "R"},
    "fc1.bias": {"placements": ["S(0)"]},
    "fc2.*": {"grad": ["R"]},
    "fc2.weight": ["S(1)"]},
  "forward": {
    "fc1.input": [{"placements": ["R"], "grad": ["S(0)"], "async": true}],
    "fc2.output": {"placements": "R", "async": true}}})json";

TEST(ParallelFlags, V24_GradientsComeBackAsThePlanSays) {
  const at::Tensor x = make_tensor({5, 6}, 9);
  Mlp single(6, 7);
  const Named expected = gradients(single, x);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    Mlp net(6, 7);
    parallelize_module(net.ptr(), mesh, parse_plan(kPlan));

    const at::Tensor input = shard_of(x, mesh, {shard(1)}).requires_grad_();
    const Named found = gradients(net, input);
    for (const auto& [name, gradient] : expected)
      EXPECT_EQ(difference(whole(found.at(name)), gradient, 1e-12), "") << name;
    EXPECT_TRUE(spec(found.at("fc1.weight"))->is_replicate());
    EXPECT_TRUE(spec(found.at("fc2.weight"))->is_replicate());
    EXPECT_TRUE(spec(found.at("fc2.bias"))->is_replicate());
    EXPECT_EQ(spec(found.at("fc1.bias")), spec(net->fc1->bias));
    EXPECT_EQ(spec(input.grad()), spec(input));
    // A second call adds to the first.
    gradients(net, input);
    EXPECT_EQ(difference(whole(net->fc1->weight.grad()), expected.at("fc1.weight") * 2, 1e-12), "");
    EXPECT_TRUE(spec(net->fc1->weight.grad())->is_replicate());
  });
}

TEST(ParallelFlags, V24_AsyncMovesGiveTheSameBits) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    std::vector<Named> runs;
    for (const char* async : {"false", "true"}) {
      Mlp net(6, 7);
      const std::string flag = std::string(", \"async\": ") + async + "}]";
      const std::string plan =
          std::string(R"json({"parameter": {"fc1.weight": "S(0)", "fc1.bias": "S(0)", "fc2.weight": "S(1)"},
        "forward": {"fc1.input": [{"placements": "R")json") +
          flag + R"json(, "fc2.output": [{"placements": "S(0)")json" + flag + "}}";
      parallelize_module(net.ptr(), mesh, parse_plan(plan));
      const at::Tensor x = shard_of(make_tensor({5, 6}, 9), mesh, {shard(0, {4, 0, 1})}).requires_grad_();
      const Named found = gradients(net, x);
      runs.push_back(found);
      runs.back()["input"] = x.grad();
    }
    for (const auto& [name, gradient] : runs[0]) {
      EXPECT_EQ(spec(gradient), spec(runs[1].at(name))) << name;
      EXPECT_TRUE(whole(gradient).equal(whole(runs[1].at(name)))) << name;
    }
    // Several at once are sent together.
    const at::Tensor a = shard_of(make_tensor({5, 6}, 1), mesh, {shard(0)}),
                     b = shard_of(make_tensor({5, 6}, 2), mesh, {shard(1)});
    const ArgumentPlan plan{.required = Placements{replicate()}, .async = true};
    const auto moved = move_arguments({a, {}, b}, mesh, {plan, plan, plan}, "here");
    EXPECT_TRUE(to_local(moved[0]).equal(make_tensor({5, 6}, 1)) && !moved[1].defined() &&
                to_local(moved[2]).equal(make_tensor({5, 6}, 2)));
  });
}

TEST(ParallelFlags, V24_FlagsAreReadAndWritten) {
  const ParallelPlan plan = parse_plan(kPlan), again = parse_plan(to_json(plan));
  EXPECT_EQ(to_json(plan), to_json(again));
  EXPECT_EQ(again.gradients.size(), 2u);
  EXPECT_TRUE(again.inputs[0].second.by_position[0]->async && again.outputs[0].second.by_position[0]->async);
  EXPECT_EQ((*again.inputs[0].second.by_position[0]->gradient)[0].to_string(), "Shard(0)");

  EXPECT_THAT(message_of([] { parse_plan(R"json({"parameter": {"w": {"placement": "R", "grad": "R"}}})json"); }),
              HasSubstr("unknown key 'placement'; did you mean 'placements'?"));
  EXPECT_THAT(message_of([] { parse_plan(R"json({"parameter": {"w": {"placements": "R", "async": true}}})json"); }),
              HasSubstr("async is for the inputs and outputs"));
  EXPECT_THAT(message_of([] { parse_plan(R"json({"forward": {"fc.input": [{"async": "yes"}]}})json"); }),
              HasSubstr("async: Expect true or false, found string"));
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Mlp net(6, 7);
    EXPECT_THAT(message_of([&] {
                  parallelize_module(net.ptr(), mesh,
                                     parse_plan(R"json({"parameter": {"fc1.weight": {"grad": "R"}}})json"));
                }),
                HasSubstr("the gradient of 'fc1.weight' has 1 placements"));
    EXPECT_THAT(message_of([&] {
                  parallelize_module(net.ptr(), mesh,
                                     parse_plan(R"json({"parameter": {"fc3.weight": {"grad": ["R", "R"]}}})json"));
                }),
                HasSubstr("'fc3.weight' matches no parameter"));
  });
}

TEST(ParallelFlags, V25_ModelsThatComeInBlocks) {
  const at::Tensor x = make_tensor({5, 6}, 9);
  Mlp single(6, 7);
  const Named expected = gradients(single, x);
  const char* const plan =
      R"j({"parameter": {"fc1.weight": "S(0)", "fc1.bias": "S(0)", "fc2.weight": "S(1)"}, "forward": {"fc2.output": ["R"]}})j";
  const std::vector<int64_t> widths = {4, 0, 3};
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const int64_t width = widths[mesh->rank()], start = mesh->rank() == 0 ? 0 : 4;
    Mlp net(6, width == 0 ? 1 : width);
    {
      const at::NoGradGuard no_grad;
      net->fc1->weight.set_data(single->fc1->weight.detach().narrow(0, start, width).clone());
      net->fc1->bias.set_data(single->fc1->bias.detach().narrow(0, start, width).clone());
      net->fc2->weight.set_data(single->fc2->weight.detach().narrow(1, start, width).clone());
      net->fc2->bias.set_data(single->fc2->bias.detach().clone());
    }
    const at::Tensor block = net->fc1->weight.detach();
    mesh->group().reset_stats();

    parallelize_module(net.ptr(), mesh, parse_plan(plan), {.is_model_sharded = true});

    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kExchange].calls, 0);
    EXPECT_EQ(sharding_sizes(net->fc1->weight).at(0), widths);
    EXPECT_TRUE(to_local(net->fc1->weight.detach()).equal(block));
    for (const auto& p : single->named_parameters()) {
      EXPECT_TRUE(whole(net->named_parameters()[p.key()]).equal(p.value().detach())) << p.key();
    }
    const Named found = gradients(net, x);
    for (const auto& [name, gradient] : expected)
      EXPECT_EQ(difference(whole(found.at(name)), gradient, 1e-12), "") << name;

    Mlp other(6, 7);
    EXPECT_THAT(message_of([&] {
                  parallelize_module(other.ptr(), mesh, parse_plan(R"json({"fc1": "ColwiseParallel"})json"),
                                     {.is_model_sharded = true});
                }),
                HasSubstr("is_model_sharded needs a plan of placements"));
  });
}

// Makes tensors in forward, plain ones without a plan.
struct MakesTensorsImpl : nn::Module {
  MakesTensorsImpl() { scale = register_parameter("scale", make_tensor({6}, 3)); }
  at::Tensor forward(const at::Tensor& x) {
    const auto options = x.options().requires_grad(false);
    at::Tensor state = at::zeros(x.sizes(), options), noise = at::randn(x.sizes(), options);
    const at::Tensor ramp = at::arange(6, options), mask = at::ones({5, 6}, options).triu(),
                     picks = at::randint(3, 9, x.sizes(), options);
    made = {state,
            noise,
            ramp,
            mask,
            picks,
            at::eye(6, options),
            at::full({5, 1}, 2.5, options),
            at::linspace(0, 1, 5, options),
            at::rand({2}, options),
            at::tensor({1.0, 2.0})};
    for (int64_t i = 0; i < 3; ++i) state = (state + x * scale + noise * 0.1).tanh() * mask;
    return state + ramp * picks;
  }
  at::Tensor scale;
  std::vector<at::Tensor> made;
};
TORCH_MODULE(MakesTensors);

TEST(ParallelFlags, V26_FactoriesWithinForward) {
  const at::Tensor full = make_tensor({5, 6}, 9);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const auto run = [&](const std::optional<FactoryPlan>& factory, const at::Tensor& input) {
      MakesTensors net;
      parallelize_module(net.ptr(), mesh, {}, {.factory = factory});
      manual_seed(5);
      const at::Tensor x = input.detach().requires_grad_();
      const at::Tensor y = call(net, x);
      EXPECT_FALSE(is_shard_tensor(at::zeros({2})));  // forward is over
      y.square().sum().backward();
      std::vector<at::Tensor> seen = {whole(y), whole(x.grad())};
      for (const at::Tensor& one : net->made) seen.push_back(one);
      return seen;
    };
    const at::Tensor x = shard_of(full, mesh, {shard(0, {3, 0, 2})});
    FactoryPlan cut = replicated_factories(*mesh);
    cut["zeros"] = {shard(0, {3, 0, 2})};
    cut["randn"] = {shard(1)};
    cut["randint"] = {shard(0)};
    cut["eye"] = {shard(1)};
    const auto plain = run(std::nullopt, full), off = run(std::nullopt, x), on = run(replicated_factories(*mesh), x),
               planned = run(cut, x);

    for (size_t i = 0; i < plain.size(); ++i) {
      for (const auto* seen : {&off, &on, &planned}) EXPECT_EQ(difference(whole((*seen)[i]), plain[i], 1e-12), "") << i;
      if (i < 2) continue;
      EXPECT_FALSE(is_shard_tensor(off[i])) << i;   // off by default
      const bool constant = i + 1 == plain.size();  // at::tensor is not a factory
      EXPECT_EQ(is_shard_tensor(on[i]), !constant) << i;
      if (!constant) EXPECT_TRUE(spec(on[i])->is_replicate()) << i;
    }
    EXPECT_EQ(to_local(planned[2]).size(0), spec(x)->local_shape()[0]);
    EXPECT_EQ(spec(planned[3])->placements()[0].to_string(), "Shard(1, {2, 2, 2})");
    EXPECT_EQ(spec(planned[7])->placements()[0].to_string(), "Shard(1, {2, 2, 2})");

    EXPECT_THAT(message_of([&] {
                  run(FactoryPlan{{"zeroes", {replicate()}}}, x);
                }),
                HasSubstr("factory: 'zeroes' cannot be captured; did you mean 'zeros'?"));
    EXPECT_THAT(message_of([&] {
                  run(FactoryPlan{{"zeros", {replicate(), replicate()}}}, x);
                }),
                HasSubstr("factory: 'zeros' has 2 placements for"));
    EXPECT_THAT(message_of([&] {
                  run(FactoryPlan{{"arange", {shard(1)}}}, x);
                }),
                HasSubstr("arange: the tensor cannot be Shard(1), as the factory plan says"));
    EXPECT_FALSE(is_shard_tensor(at::zeros({2})));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_parallel_flags
