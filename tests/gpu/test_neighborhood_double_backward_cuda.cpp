// SPDX-License-Identifier: Apache-2.0
// Second derivatives of neighbourhood attention on a GPU against those of the CPU in float64.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/double_backward.h"
#include "tests/gpu/gpu.h"
#include "tests/support/neighborhood_cases.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_neighborhood_double_backward_cuda {
namespace {

using Case = NeighborhoodCase;
using Blocks = std::vector<std::vector<int64_t>>;

class NeighborhoodSecondCuda : public OnGpu<> {};

const std::pair<at::ScalarType, double> kTypes[] = {{at::kDouble, 1e-9}, {at::kFloat, 1e-4}, {at::kHalf, 3e-2}};

// The gradients' cotangents are functions of the inputs, element by element, so that blocks of them need no names.
NeighborhoodResults second(const Tensors& inputs, const NeighborhoodCall& call, const NeighborhoodCotangents& given) {
  const auto [output, logsumexp, query, key, value] =
      neighborhood_second({inputs[0].sin(), inputs[1].cos(), inputs[2].tanh(), given.output, given.logsumexp, inputs[0],
                           inputs[1], inputs[2]},
                          call);
  return {output, logsumexp, query, key, value};
}

void expect_second_as_on_the_cpu(const Case& c, const Blocks& blocks) {
  for (const auto& [type, tolerance] : kTypes) {
    const Tensors inputs = inputs_of(c, type);
    const NeighborhoodCotangents given = cotangents_of(c, type);
    Tensors doubles, moved;
    for (const at::Tensor& t : inputs) {
      doubles.push_back(t.to(at::kDouble));
      moved.push_back(t.to(gpu()));
    }
    const auto call = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), c.n, c.scale);
    const NeighborhoodResults expected =
        second(doubles, call, {given.output.to(at::kDouble), given.logsumexp.to(at::kDouble)});
    const NeighborhoodResults actual =
        in_blocks(moved, call, blocks, {given.output.to(gpu()), given.logsumexp.to(gpu())}, second);
    expect_near(actual, expected, tolerance, std::string(c.name) + ", second derivative");
  }
}

TEST_F(NeighborhoodSecondCuda, X04_EqualsTheCpu) {
  for (const Case& c : neighborhood_cases()) expect_second_as_on_the_cpu(c, {});
}

TEST_F(NeighborhoodSecondCuda, X04_EqualsTheCpuOnBlocks) {
  for (const auto& [c, blocks] : neighborhood_block_cases()) expect_second_as_on_the_cpu(c, blocks);
  for (const auto& [c, blocks] : neighborhood_tensor_cases()) expect_second_as_on_the_cpu(c, blocks);
}

// Gradients of all gradients, in query, key, value and both cotangents, by LibTorch's engine.
Tensors twice(const Case& c, at::ScalarType values, at::TensorOptions as) {
  Tensors t = inputs_of(c, values);
  const NeighborhoodCotangents given = cotangents_of(c, values);
  t.push_back(given.output);
  t.push_back(given.logsumexp);
  for (at::Tensor& x : t) x = x.to(as).requires_grad_();
  const auto [output, logsumexp] = neighborhood_attention(t[0], t[1], t[2], c.n, c.scale);
  const auto first = torch::autograd::grad({output, logsumexp}, {t[0], t[1], t[2]}, {t[3], t[4]}, std::nullopt, true);
  Tensors cotangents;
  for (const at::Tensor& grad : first) cotangents.push_back(make_tensor(grad.sizes(), 17, values).to(as));
  return torch::autograd::grad(first, t, cotangents);
}

void expect_autograd_as_on_the_cpu(const Case& c) {
  const char* const names[] = {"query", "key", "value", "grad_output", "grad_logsumexp"};
  for (const auto& [type, tolerance] : kTypes) {
    if (type == at::kHalf) continue;
    const Tensors actual = twice(c, type, at::device(gpu()).dtype(type));
    const Tensors expected = twice(c, type, at::dtype(at::kDouble));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(difference(actual[i].cpu().to(at::kDouble), expected[i], tolerance), "")
          << c.name << " " << type << ": second derivative in " << names[i];
    }
  }
}

TEST_F(NeighborhoodSecondCuda, X04_AutogradTwiceEqualsTheCpu) {
  for (const Case& c : neighborhood_cases()) {
    if (c10::multiply_integers(c.dims) <= 400) expect_autograd_as_on_the_cpu(c);
  }
}

// The engine takes the streams of the forward pass; the default one is busy with something else.
TEST_F(NeighborhoodSecondCuda, X04_AutogradTwiceOnAnotherStream) {
  keep_gpu_busy();
  const c10::StreamGuard beside(another_gpu_stream());
  keep_gpu_busy();
  expect_autograd_as_on_the_cpu({"stream", {14, 15}, {{7, 6}}, 16, 16});
  expect_autograd_as_on_the_cpu({"no batch", {14, 15}, {{7, 6}}, 16, 16, 0});
}

// Without values there is still logsumexp.
TEST_F(NeighborhoodSecondCuda, X04_WithoutValueFeatures) {
  const Case c{"", {5, 6}, {{3}}, 4, 0};
  const auto of_sums = [&](c10::Device device) {
    Tensors t = inputs_of(c, at::kDouble);
    for (at::Tensor& x : t) x = x.to(device).requires_grad_();
    const at::Tensor sums = std::get<1>(neighborhood_attention(t[0], t[1], t[2], c.n, c.scale));
    const at::Tensor first = torch::autograd::grad({sums.square().sum()}, {t[0]}, {}, std::nullopt, true)[0];
    return torch::autograd::grad({first.square().sum()}, {t[0], t[1]});
  };
  const auto actual = of_sums(gpu()), expected = of_sums(at::kCPU);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(difference(actual[i], expected[i], 1e-10), "") << i;
}

}  // namespace
}  // namespace moonhalo::testing::test_neighborhood_double_backward_cuda
