// SPDX-License-Identifier: Apache-2.0
// X01: LibTorch's own modules, optimizers and a double-backward penalty on ShardTensors, nothing wrapped or patched.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>

#include "engine/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing {
namespace {

namespace nn = torch::nn;

// Every pixel attends to every pixel of its row.
struct RowAttentionImpl : nn::Module {
  explicit RowAttentionImpl(int64_t channels)
      : q(register_module("q", nn::Linear(channels, channels))),
        k(register_module("k", nn::Linear(channels, channels))),
        v(register_module("v", nn::Linear(channels, channels))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor pixels = x.permute({0, 2, 3, 1});
    const at::Tensor scores = q(pixels).matmul(k(pixels).transpose(-2, -1)).softmax(-1);
    return x + scores.matmul(v(pixels)).permute({0, 3, 1, 2});
  }
  nn::Linear q, k, v;
};
TORCH_MODULE(RowAttention);

nn::Sequential network() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)), nn::BatchNorm2d(4), nn::Tanh(), RowAttention(4),
                     nn::GroupNorm(nn::GroupNormOptions(2, 4)), nn::Softplus(),
                     nn::Conv2d(nn::Conv2dOptions(4, 2, 3).padding(1).stride(2)), nn::AdaptiveAvgPool2d(2), nn::Flatten(),
                     nn::Linear(8, 3));
  net->to(at::kDouble);
  const at::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& parameter : net->parameters()) parameter.copy_(make_tensor(parameter.sizes(), seed++) * 0.5);
  return net;
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

struct Case {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
};
const Case kCases[] = {
    {"BatchOverTwo", {2}, {shard(0, {1, 2})}},
    {"RowsOverThree", {3}, {shard(2, {5, 1, 3})}},
    {"RowsWithAnEmptyBlock", {3}, {shard(2, {4, 0, 5})}},
    {"ColumnsOverTwo", {2}, {shard(3)}},
    {"BatchAndRows", {2, 2}, {shard(0), shard(2, {6, 3})}},
};
class UnmodifiedModules : public ::testing::TestWithParam<Case> {};

TEST_P(UnmodifiedModules, X01TrainAsOnOneDevice) {
  const at::Tensor x = make_tensor({3, 2, 9, 6}, 50);
  const auto expected = train(x);

  on_mesh(GetParam().mesh, [&](const MeshPtr& mesh) {
    const auto actual = train(distribute_tensor(x, mesh, GetParam().placements));

    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(difference(actual[i], expected[i], 1e-8), "") << i;
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, UnmodifiedModules, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moonhalo::testing
