// SPDX-License-Identifier: Apache-2.0
// X01: LibTorch's own modules, optimizers, utilities and a double-backward penalty on ShardTensors, nothing wrapped or
// patched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/modules.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_libtorch_modules {
namespace {

namespace nn = torch::nn;

// Every pixel attends to every pixel of its row.
struct RowAttentionImpl : nn::Module {
  explicit RowAttentionImpl(int64_t channels)
      : q(register_module("q", nn::Linear(channels, channels))),
        k(register_module("k", nn::Linear(nn::LinearOptions(channels, channels).bias(false)))),
        v(register_module("v", nn::Linear(channels, channels))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor pixels = x.permute({0, 2, 3, 1});
    const at::Tensor scores = q(pixels).matmul(k(pixels).transpose(-2, -1)).softmax(-1);
    return x + scores.matmul(v(pixels)).permute({0, 3, 1, 2});
  }
  nn::Linear q, k, v;
};
TORCH_MODULE(RowAttention);

// No bias before the norm, nor for the keys: nothing depends on it, and AdamW would divide rounding errors by
// themselves.
nn::Sequential network() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)), nn::BatchNorm2d(4), nn::Tanh(),
                     RowAttention(4), nn::GroupNorm(nn::GroupNormOptions(2, 4)), nn::Softplus(),
                     nn::Conv2d(nn::Conv2dOptions(4, 2, 3).padding(1).stride(2)), nn::AdaptiveAvgPool2d(2),
                     nn::Flatten(), nn::Linear(8, 3));
  return with_values(net);
}

at::Tensor plain(const at::Tensor& tensor) { return is_shard_tensor(tensor) ? full_tensor(tensor) : tensor; }

// Losses of three steps with a penalty on the gradient of the input, then the parameters and buffers.
std::vector<at::Tensor> train(const at::Tensor& input) {
  nn::Sequential net = network();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = input.detach().requires_grad_();
    const at::Tensor y = net->forward(x).square().mean();
    const at::Tensor slope = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    const at::Tensor loss = y + slope.square().sum();
    loss.backward();
    seen.push_back(plain(loss.detach()));
    seen.push_back(plain(x.grad()));
    optimizer.step();
  }
  for (const at::Tensor& parameter : net->parameters()) seen.push_back(plain(parameter.detach()));
  for (const at::Tensor& buffer : net->buffers()) seen.push_back(plain(buffer));
  return seen;
}

const PlacementCase kCases[] = {
    {"BatchOverTwo", {2}, {shard(0, {1, 2})}},
    {"RowsOverThree", {3}, {shard(2, {5, 1, 3})}},
    {"RowsWithAnEmptyBlock", {3}, {shard(2, {4, 0, 5})}},
    {"ColumnsOverTwo", {2}, {shard(3)}},
    {"BatchAndRows", {2, 2}, {shard(0), shard(2, {6, 3})}},
};
class UnmodifiedModules : public ::testing::TestWithParam<PlacementCase> {};

TEST_P(UnmodifiedModules, X01TrainAsOnOneDevice) {
  const at::Tensor x = make_tensor({3, 2, 9, 6}, 50);
  const auto expected = train(x);

  on_mesh(GetParam().mesh, [&](const MeshPtr& mesh) {
    const auto actual = train(distribute_tensor(x, mesh, GetParam().placements));

    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(difference(actual[i], expected[i], 1e-10), "") << i;
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, UnmodifiedModules, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Sequences

using Sequences = std::function<List(const at::Tensor&)>;

// The result of `run` for [length, batch, features], the gradient of that and those of the module's parameters.
template <class Module>
Sequences with_gradients(std::function<Module()> make, std::function<List(Module&, const at::Tensor&)> run) {
  return [=](const at::Tensor& input) {
    Module module = with_values(make());
    const at::Tensor x = input.detach().requires_grad_();
    List seen = run(module, x);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& y : seen) loss = loss + y.square().sum();
    loss.backward();
    for (at::Tensor& y : seen) y = y.detach();
    seen.push_back(x.grad());
    for (const at::Tensor& parameter : module->parameters()) seen.push_back(parameter.grad());
    return seen;
  };
}

template <class Module>
List recurrent(Module& module, const at::Tensor& x) {
  const auto [y, state] = module->forward(x);
  return {y, state};
}
template <>
List recurrent(nn::LSTM& module, const at::Tensor& x) {
  const auto [y, state] = module->forward(x);
  return {y, std::get<0>(state), std::get<1>(state)};
}

const std::vector<std::pair<const char*, Sequences>> kSequences = {
    {"attention",
     with_gradients<nn::MultiheadAttention>([] { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2)); },
                                            [](nn::MultiheadAttention& m, const at::Tensor& x) {
                                              const auto [y, weights] = m->forward(x, x, x);
                                              return List{y, weights};
                                            })},
    {"encoder_layer", with_gradients<nn::TransformerEncoderLayer>(
                          [] {
                            return nn::TransformerEncoderLayer(
                                nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6).dropout(0));
                          },
                          [](nn::TransformerEncoderLayer& m, const at::Tensor& x) { return List{m->forward(x)}; })},
    {"decoder_layer",
     with_gradients<nn::TransformerDecoderLayer>(
         [] {
           return nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(4, 2).dim_feedforward(6).dropout(0));
         },
         [](nn::TransformerDecoderLayer& m, const at::Tensor& x) { return List{m->forward(x, x.flip({0}))}; })},
    {"lstm", with_gradients<nn::LSTM>([] { return nn::LSTM(nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true)); },
                                      recurrent<nn::LSTM>)},
    {"gru", with_gradients<nn::GRU>([] { return nn::GRU(nn::GRUOptions(4, 3)); }, recurrent<nn::GRU>)},
    {"rnn", with_gradients<nn::RNN>([] { return nn::RNN(nn::RNNOptions(4, 3)); }, recurrent<nn::RNN>)},
};
const std::vector<PlacementCase> kHeldSequences = {{"batch", {2}, {shard(1, {1, 2})}},
                                                   {"batch_with_an_empty_block", {3}, {shard(1, {2, 0, 1})}},
                                                   {"length", {2}, {shard(0, {2, 3})}},
                                                   {"features", {2}, {shard(2, {1, 3})}},
                                                   {"length_and_batch", {2, 2}, {shard(0, {4, 1}), shard(1)}}};

TEST(LibtorchModules, X01SequencesAsOnOneDevice) {
  const at::Tensor x = make_tensor({5, 3, 4}, 60);
  for (const auto& [name, run] : kSequences) {
    for (const PlacementCase& held : kHeldSequences) {
      SCOPED_TRACE(std::string(name) + " " + held.name);
      const std::string thrown = message_of([&, &run = run] {
        expect_same_as_plain(held.mesh, {{x, held.placements}}, [&](const List& t) { return run(t[0]); },
                             {.backward = false});
      });
      EXPECT_EQ(thrown, "");
    }
  }
}

// A model that is divided

struct StackImpl : nn::Cloneable<StackImpl> {
  StackImpl() { reset(); }
  void reset() override {
    first = register_module("first", nn::Linear(4, 6));
    norm = register_module("norm", nn::BatchNorm1d(6));
    last = register_module("last", nn::Linear(6, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return last(at::gelu(norm(first(x)))); }
  nn::Linear first{nullptr}, last{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Stack);

constexpr const char* kStackPlan =
    R"json({"parameter": {"first.weight": "S(0)", "first.bias": "S(0)", "norm.weight": "S(0)", "last.weight": "S(1)"}})json";

void copy_state(const Stack& from, const Stack& to) {
  const at::NoGradGuard no_grad;
  const auto parameters = from->named_parameters(), buffers = from->named_buffers();
  for (const auto& item : to->named_parameters()) at::Tensor(item.value()).copy_(parameters[item.key()]);
  for (const auto& item : to->named_buffers()) at::Tensor(item.value()).copy_(buffers[item.key()]);
}

// Users do these with the tensors of a model: copy them to another, change their type, clip gradients, flatten
// parameters.
List use(Stack net, Stack copy, const at::Tensor& x) {
  List seen;
  const auto see = [&](const at::Tensor& tensor) { seen.push_back(plain(tensor.detach()).clone()); };
  const auto train = [&](Stack& model) {
    model->zero_grad();
    const at::Tensor y = model->forward(x);
    y.square().sum().backward();
    see(y);
    for (const at::Tensor& parameter : model->parameters()) see(parameter.grad());
  };
  train(net);

  copy_state(net, copy);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.mul_(0.5);
  }
  train(copy);  // a copy shares nothing
  train(net);

  see(at::scalar_tensor(nn::utils::clip_grad_norm_(net->parameters(), 0.7), at::kDouble));
  for (const at::Tensor& parameter : net->parameters()) see(parameter.grad());
  nn::utils::clip_grad_value_(net->parameters(), 0.05);
  for (const at::Tensor& parameter : net->parameters()) see(parameter.grad());

  copy_state(copy, net);
  train(net);

  const at::Tensor flat = nn::utils::parameters_to_vector(net->parameters()).detach();
  see(flat);
  nn::utils::vector_to_parameters(flat * 2 + 0.1, net->parameters());
  train(net);

  net->to(at::kFloat);
  for (const at::Tensor& parameter : net->parameters()) see(parameter);
  net->to(at::kDouble);
  net->eval();
  train(net);
  return seen;
}

TEST(LibtorchModules, X01ToolsOnADividedModel) {
  const at::Tensor x = make_tensor({7, 4}, 70);
  const List expected = use(with_values(Stack()), with_values(Stack()), x);

  for (const PlacementCase& held :
       std::vector<PlacementCase>{{"rows", {2}, {shard(0, {5, 2})}}, {"replicated", {3}, {replicate()}}}) {
    SCOPED_TRACE(held.name);
    on_mesh(held.mesh, [&](const MeshPtr& mesh) {
      Stack net = with_values(Stack()), copy = with_values(Stack());
      for (const Stack& one : {net, copy})
        parallelize_module(one.ptr(), mesh, parse_plan(kStackPlan), {.src_data_rank = std::nullopt});
      ASSERT_TRUE(spec(net->first->weight)->is_cut(0));

      const List actual = use(net, copy, distribute_tensor(x, mesh, held.placements));

      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(difference(actual[i], expected[i], 1e-10), "") << i;
      }
    });
  }
}

// LibTorch clones into plain tensors that it makes itself, and these cannot become ShardTensors.
TEST(LibtorchModules, ACloneOfADividedModelIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Stack net = with_values(Stack());
    parallelize_module(net.ptr(), mesh, parse_plan(kStackPlan), {.src_data_rank = std::nullopt});

    const std::string text = message_of([&] {
      Stack(std::dynamic_pointer_cast<StackImpl>(net->clone()))->forward(at::ones({7, 4}, at::kDouble));
    });

    EXPECT_THAT(text, ::testing::HasSubstr("a plain tensor was given the data of a ShardTensor"));
    EXPECT_THAT(text, ::testing::HasSubstr("divide a second model by the same plan and copy_ the parameters"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_libtorch_modules
