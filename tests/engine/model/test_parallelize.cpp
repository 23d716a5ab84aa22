// SPDX-License-Identifier: Apache-2.0
// torch::nn models divided by a plan, against the same models whole.
#include "moonhalo/engine/model/parallelize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "tests/support/modules.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_parallelize {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

struct MlpImpl : nn::Module {
  MlpImpl(int64_t features, int64_t hidden)
      : fc1(register_module("fc1", nn::Linear(features, hidden))),
        fc2(register_module("fc2", nn::Linear(hidden, features))) {}
  at::Tensor forward(const at::Tensor& x) { return call(fc2, at::gelu(call(fc1, x))); }
  nn::Linear fc1, fc2;
};
TORCH_MODULE(Mlp);

constexpr const char* kMlpPlan = R"json({
  "parameter": {"fc1.weight": "S(0)", "fc1.bias": "S(0)", "fc2.weight": "S(1)", "fc2.bias": "R"},
  "forward": {"fc1.input": ["R"], "fc2.output": ["R"]}})json";

at::Tensor plain(const at::Tensor& tensor) { return is_shard_tensor(tensor) ? full_tensor(tensor) : tensor; }

// Three steps: the first output, its gradients, and the parameters in the end.
template <class Optimizer, class Options, class Module>
std::map<std::string, at::Tensor> train(Module& net, const at::Tensor& x, const Options& options) {
  std::map<std::string, at::Tensor> seen;
  Optimizer optimizer(net->parameters(), options);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = x.detach().requires_grad_();
    const at::Tensor y = call(net, input);
    (y * y).sum().backward();
    if (step == 0) {
      seen["output"] = plain(y.detach());
      seen["gradient of the input"] = plain(input.grad());
      for (const auto& p : net->named_parameters()) seen["gradient of " + p.key()] = plain(p.value().grad());
    }
    optimizer.step();
  }
  for (const auto& p : net->named_parameters()) seen[p.key()] = plain(p.value().detach());
  return seen;
}

void expect_same(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, value] : expected) EXPECT_EQ(difference(actual.at(name), value, 1e-10), "") << name;
}

struct TrainCase {
  const char* name;
  int64_t ranks, hidden;
  const char* plan;
};
const TrainCase kTrained[] = {
    {"V21TwoRanks", 2, 7, kMlpPlan},
    {"V21ThreeRanks", 3, 7, kMlpPlan},
    {"V21FourRanks", 4, 10, kMlpPlan},
    {"V21MoreRanksThanHidden", 4, 3, kMlpPlan},
    {"V19SequenceInput", 3, 7, R"json({
       "parameter": {"fc1.weight": "S(0)", "fc1.bias": "S(0)", "fc2.weight": "S(1)"},
       "forward": {"fc1.input": ["S(0)"], "fc2.output": ["R"]}})json"},
    {"P05P06Styles", 3, 7, R"json({"fc1": "ColwiseParallel", "fc2": "RowwiseParallel"})json"},
    {"V20Replicated", 3, 7, R"json({"forward": {"input": ["S(0)"]}})json"},
};
class ParallelMlp : public ::testing::TestWithParam<TrainCase> {};

TEST_P(ParallelMlp, TrainsAsTheWholeModel) {  // V03 V04 V06 V20
  const TrainCase& c = GetParam();
  const at::Tensor x = make_tensor({5, 6}, 77);
  Mlp whole = with_values(Mlp(6, c.hidden)), again = with_values(Mlp(6, c.hidden));
  const auto adamw = torch::optim::AdamWOptions(0.05);
  const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  const auto expected = train<torch::optim::AdamW>(whole, x, adamw), with_sgd = train<torch::optim::SGD>(again, x, sgd);

  on_mesh({c.ranks}, [&](const MeshPtr& mesh) {
    Mlp net = with_values(Mlp(6, c.hidden)), other = with_values(Mlp(6, c.hidden));
    const std::shared_ptr<nn::Module> returned = parallelize_module(net.ptr(), mesh, parse_plan(c.plan));
    parallelize_module(other.ptr(), mesh, parse_plan(c.plan), {.src_data_rank = std::nullopt});

    EXPECT_EQ(returned, std::shared_ptr<nn::Module>(net.ptr()));  // P03
    expect_same(train<torch::optim::AdamW>(net, x, adamw), expected);
    expect_same(train<torch::optim::SGD>(other, x, sgd), with_sgd);
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, ParallelMlp, ::testing::ValuesIn(kTrained),
                         [](const auto& info) { return std::string(info.param.name); });

// LibTorch nests a Sequential only in this form.
struct HeadImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Head);

nn::Sequential convolutional() {
  return with_values(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)), nn::BatchNorm2d(4), nn::GELU(),
                                    Head(nn::Flatten(), nn::Linear(4 * 5 * 3, 7)),
                                    nn::LayerNorm(nn::LayerNormOptions({7}))));
}

TEST(Parallelize, ASequentialIsCalledChildByChild) {
  const at::Tensor x = make_tensor({3, 2, 5, 3}, 5);
  nn::Sequential whole = convolutional();
  const auto expected = train<torch::optim::SGD>(whole, x, torch::optim::SGDOptions(0.01));
  const auto plan = parse_plan(R"json({
    "parameter": {"0.weight": "S(0)", "3.1.weight": "S(0)", "3.1.bias": "S(0)", "4.weight": "S(0)"},
    "forward": {"0.input": ["S(2)"], "3.1.output": ["R"], "3.input": ["S(0)"], "output": ["S(0)"]}})json");

  on_mesh({3}, [&](const MeshPtr& mesh) {
    nn::Sequential net = convolutional();
    parallelize_module(net.ptr(), mesh, plan);

    expect_same(train<torch::optim::SGD>(net, x, torch::optim::SGDOptions(0.01)), expected);
    const at::Tensor mean = plain(net->named_buffers()["1.running_mean"]);
    EXPECT_EQ(difference(mean, whole->named_buffers()["1.running_mean"], 1e-10), "");
    EXPECT_EQ(spec(call(net, x))->placements()[0].to_string(), "Shard(0, {1, 1, 1})");
    for (const auto& buffer : net->named_buffers()) EXPECT_TRUE(is_shard_tensor(buffer.value())) << buffer.key();
  });
}

// V02: the registered tensor and the member variable are one, for every class with both.
TEST(Parallelize, MemberVariablesAreReplacedToo) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const auto expect_replaced = [&](auto module, const char* plan = R"json({"parameter": {"weight": "S(0)"}})json") {
      parallelize_module(module.ptr(), mesh, parse_plan(plan));
      EXPECT_TRUE(module->weight.is_same(module->named_parameters()["weight"])) << module->name();
      EXPECT_TRUE(is_shard_tensor(module->weight)) << module->name();
      EXPECT_EQ(spec(module->weight)->placements()[0].kind, Placement::Kind::kShard) << module->name();
      EXPECT_TRUE(module->weight.requires_grad() && module->weight.is_leaf()) << module->name();
      for (const auto& p : module->named_parameters()) EXPECT_TRUE(is_shard_tensor(p.value())) << p.key();
      for (const auto& b : module->named_buffers()) EXPECT_TRUE(is_shard_tensor(b.value())) << b.key();
    };
    expect_replaced(nn::Linear(4, 5));
    expect_replaced(nn::Bilinear(4, 5, 3));
    expect_replaced(nn::Embedding(9, 4));
    expect_replaced(nn::EmbeddingBag(9, 4));
    expect_replaced(nn::Conv1d(2, 4, 3));
    expect_replaced(nn::Conv2d(2, 4, 3));
    expect_replaced(nn::Conv3d(2, 4, 3));
    expect_replaced(nn::ConvTranspose1d(2, 4, 3));
    expect_replaced(nn::ConvTranspose2d(2, 4, 3));
    expect_replaced(nn::ConvTranspose3d(2, 4, 3));
    expect_replaced(nn::LayerNorm(nn::LayerNormOptions({5})));
    expect_replaced(nn::GroupNorm(nn::GroupNormOptions(2, 4)));
    expect_replaced(nn::BatchNorm1d(4));
    expect_replaced(nn::BatchNorm2d(4));
    expect_replaced(nn::BatchNorm3d(4));
    expect_replaced(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true)));
    expect_replaced(nn::PReLU(nn::PReLUOptions().num_parameters(4)));
    nn::MultiheadAttention attention(4, 2);
    parallelize_module(attention.ptr(), mesh, {});
    EXPECT_TRUE(is_shard_tensor(attention->in_proj_weight) && is_shard_tensor(attention->out_proj->weight));
  });
}

struct ScaledImpl : nn::Module {
  ScaledImpl() : scale(register_parameter("scale", at::ones({4}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * scale; }
  at::Tensor scale;
};
struct DeclaredImpl : ScaledImpl {};
TORCH_MODULE(Scaled);
TORCH_MODULE(Declared);

TEST(Parallelize, ClassesOfUsersSayWhereTheirTensorsAre) {
  declare_members<DeclaredImpl>([](DeclaredImpl& module) { return std::vector<at::Tensor*>{&module.scale}; });
  const auto plan = parse_plan(R"json({"parameter": {"scale": "S(0)"}})json");
  on_mesh({3}, [&](const MeshPtr& mesh) {
    Scaled unknown;
    Declared declared;
    parallelize_module(declared.ptr(), mesh, plan);

    EXPECT_THAT(message_of([&] { parallelize_module(unknown.ptr(), mesh, plan); }),
                HasSubstr("'scale' cannot be cut, it is not known where Scaled keeps it"));
    EXPECT_TRUE(is_shard_tensor(declared->scale));
    parallelize_module(unknown.ptr(), mesh, {});  // stays plain, which is as good as replicated
    const at::Tensor x = distribute_tensor(make_tensor({9, 4}, 1, at::kFloat), mesh, {shard(0)});
    unknown->forward(x).sum().backward();
    EXPECT_FALSE(is_shard_tensor(unknown->scale.grad()));
    EXPECT_EQ(difference(unknown->scale.grad(), full_tensor(x).sum(0), 1e-5), "");
  });
}

TEST(Parallelize, RefusesWhatCallCannotDo) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Linear linear(3, 4);
    const auto refusal = [&](const char* json) {
      return message_of([&] { parallelize_module(linear.ptr(), mesh, parse_plan(json)); });
    };

    EXPECT_THAT(refusal(R"json({"forward": {"input": {"x": "R"}}})json"),
                HasSubstr("arguments of C++ modules have no names"));
    EXPECT_THAT(refusal(R"json({"forward": {"input": ["R", "R"]}})json"), HasSubstr("lists 2 tensors"));
    EXPECT_FALSE(is_shard_tensor(linear->weight));
  });
}

TEST(Parallelize, ASecondCallWarnsAndChangesNothing) {  // V27
  on_mesh({2}, [](const MeshPtr& mesh) {
    struct Heard : c10::WarningHandler {
      void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
      std::vector<std::string> texts;
    } heard;
    Mlp net = with_values(Mlp(4, 5));
    parallelize_module(net.ptr(), mesh, parse_plan(kMlpPlan));
    const at::Tensor before = net->fc1->weight;
    {
      const c10::WarningUtils::WarningHandlerGuard guard(&heard);
      parallelize_module(net.ptr(), mesh, parse_plan(R"json({"parameter": {"fc1.weight": "S(1)"}})json"));
    }

    EXPECT_EQ(heard.texts.size(), mesh->rank() == 0 ? 1 : 0);
    if (mesh->rank() == 0)
      EXPECT_THAT(heard.texts[0], HasSubstr("this Mlp was parallelized before, nothing is changed"));
    EXPECT_TRUE(net->fc1->weight.is_same(before));
  });
}

TEST(Parallelize, SharedTensorsStayShared) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Linear layer(4, 4);
    nn::Sequential net(layer, nn::ReLU(), layer);
    parallelize_module(net.ptr(), mesh, parse_plan(R"json({"parameter": {"2.weight": "S(1)"}})json"));

    EXPECT_EQ(spec(layer->weight)->placements()[0].dim, 1);
    EXPECT_TRUE(net->named_parameters()["0.weight"].is_same(layer->weight));
  });
}

// LibTorch's clone() makes plain tensors first and then gives them the data of ShardTensors, which is refused when they
// are used.
TEST(Parallelize, ClonesAreMadeBeforeAModelIsDivided) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Sequential net(with_values(nn::Linear(4, 3)));
    const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
    const ParallelPlan plan = parse_plan(R"json({"parameter": {"0.weight": "S(0)"}})json");
    parallelize_module(net.ptr(), mesh, plan);
    const auto late = net->clone();
    EXPECT_THAT(message_of([&] { late->parameters()[0].sum(); }),
                HasSubstr("instead of clone() of a divided model divide a second model"));

    parallelize_module(copy, mesh, plan);
    for (const auto& parameter : net->named_parameters())
      EXPECT_TRUE(at::equal(to_local(copy->named_parameters()[parameter.key()]), to_local(parameter.value())))
          << parameter.key();
    EXPECT_NE(to_local(copy->parameters()[0]).data_ptr(), to_local(net->parameters()[0]).data_ptr());
    // A tensor leaves no doubt.
    const at::Tensor weight = net->parameters()[0].clone();
    EXPECT_EQ(spec(weight), spec(net->parameters()[0]));
  });
}

TEST(Parallelize, FinishGradSyncReducesInOneMessage) {  // V11
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> addends = {make_tensor({3, 2}, mesh->rank()), make_tensor({4}, mesh->rank() + 9),
                                       make_tensor({4, 3}, mesh->rank() + 17)};
    const std::vector<std::vector<Placement>> placements = {
        {partial(), partial()}, {partial(), replicate()}, {shard(0), partial()}};
    std::vector<at::Tensor> expected;
    for (size_t i = 0; i < addends.size(); ++i) {
      at::Tensor grad = from_local(addends[i], mesh, placements[i]);
      expected.push_back(full_tensor(grad.clone()));
      parameters.push_back(
          from_local(at::zeros_like(addends[i]), mesh, {i == 2 ? shard(0) : replicate(), replicate()}));
      parameters.back().mutable_grad() = grad;
    }
    parameters.push_back(at::zeros({2}));  // plain, without a gradient
    mesh->group().reset_stats();
    finish_grad_sync(parameters);

    const auto& kinds = mesh->group().stats().by_kind;
    EXPECT_EQ(kinds[CommStats::kAllGather].calls, 2);  // one for each mesh dim; small ones send all addends to all
    EXPECT_EQ(kinds[CommStats::kAllReduce].calls, 0);
    for (size_t i = 0; i < addends.size(); ++i) {
      EXPECT_FALSE(spec(parameters[i].grad())->has_partial());
      EXPECT_EQ(difference(full_tensor(parameters[i].grad()), expected[i], 1e-12), "");
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_parallelize
