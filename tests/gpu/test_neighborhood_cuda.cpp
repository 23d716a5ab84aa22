// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention on a GPU against the CPU's kernels in float64: the tables that the emulator runs too.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/ops/neighborhood/block.h"
#include "tests/support/neighborhood_cases.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_neighborhood_cuda {
namespace {

using Case = NeighborhoodCase;
using ::testing::StartsWith;

class NeighborhoodCuda : public ::testing::Test {
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device was found";
  }
};

at::Tensor on_gpu(const at::Tensor& t) { return t.to(at::kCUDA); }

NeighborhoodResults attend(const Tensors& inputs, const NeighborhoodCall& call, const NeighborhoodCotangents& given) {
  NeighborhoodResults r;
  std::tie(r.output, r.logsumexp) = neighborhood_forward(inputs[0], inputs[1], inputs[2], call);
  std::tie(r.query, r.key, r.value) = neighborhood_backward(given.output, given.logsumexp, inputs[0], inputs[1],
                                                            inputs[2], r.output, r.logsumexp, call);
  return r;
}

void expect_as_on_the_cpu(const Case& c, const std::vector<std::vector<int64_t>>& blocks) {
  const std::pair<at::ScalarType, double> types[] = {
      {at::kDouble, 1e-10}, {at::kFloat, 1e-5}, {at::kHalf, 1e-2}, {at::kBFloat16, 6e-2}};
  for (const auto& [type, tolerance] : types) {
    const Tensors inputs = inputs_of(c, type);
    const NeighborhoodCotangents given = cotangents_of(c, type);
    Tensors doubles, moved;
    for (const at::Tensor& t : inputs) {
      doubles.push_back(t.to(at::kDouble));
      moved.push_back(on_gpu(t));
    }
    const auto call = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), c.n, c.scale);
    const NeighborhoodResults expected =
        attend(doubles, call, {given.output.to(at::kDouble), given.logsumexp.to(at::kDouble)});
    expect_near(in_blocks(moved, call, blocks, {on_gpu(given.output), on_gpu(given.logsumexp)}, attend), expected,
                tolerance, c.name);
  }
}

TEST_F(NeighborhoodCuda, X04_EqualsTheCpu) {
  for (const Case& c : neighborhood_cases()) expect_as_on_the_cpu(c, {});
}

TEST_F(NeighborhoodCuda, X04_EqualsTheCpuOnBlocks) {
  for (const auto& [c, blocks] : neighborhood_block_cases()) expect_as_on_the_cpu(c, blocks);
  for (const auto& [c, blocks] : neighborhood_tensor_cases()) expect_as_on_the_cpu(c, blocks);
}

// The operator and its derivative, on another stream than the default one; the same bits every time.
TEST_F(NeighborhoodCuda, X04_AutogradOnAStream) {
  const Case c{"stream", {40, 41}, {{7, 6}}, 32, 32};
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    Tensors inputs;
    for (const at::Tensor& t : inputs_of(c, type)) inputs.push_back(on_gpu(t).requires_grad_());
    const NeighborhoodCotangents given = cotangents_of(c, type);
    const auto outcome = [&] {
      const auto [output, logsumexp] = neighborhood_attention(inputs[0], inputs[1], inputs[2], c.n);
      const auto grads =
          torch::autograd::grad({output, logsumexp}, inputs, {on_gpu(given.output), on_gpu(given.logsumexp)});
      return NeighborhoodResults{output.detach(), logsumexp.detach(), grads[0], grads[1], grads[2]};
    };
    const NeighborhoodResults first = outcome();
    for (int round = 0; round < 3; ++round) expect_near(outcome(), first, 0, "again");
    Tensors doubles;
    for (const at::Tensor& t : inputs) doubles.push_back(t.detach().to(at::kCPU).to(at::kDouble));
    const auto call = check_neighborhood(doubles[0].sizes(), doubles[1].sizes(), doubles[2].sizes(), c.n, c.scale);
    expect_near(first, attend(doubles, call, {given.output.to(at::kDouble), given.logsumexp.to(at::kDouble)}),
                type == at::kHalf ? 1e-2 : 1e-5, "operator");
  }
}

TEST_F(NeighborhoodCuda, X04_RefusesMoreFeaturesThanFit) {
  const at::Tensor x = at::zeros({1, 4, 1, 8192}, at::dtype(at::kFloat).device(at::kCUDA));
  EXPECT_THAT(message_of([&] { neighborhood_attention(x, x, x, {{3}}); }),
              StartsWith("neighborhood_attention: head_dim 8192 and value_dim 8192 take "));
}

}  // namespace
}  // namespace moonhalo::testing::test_neighborhood_cuda
