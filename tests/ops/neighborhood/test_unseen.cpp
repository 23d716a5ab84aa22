// SPDX-License-Identifier: Apache-2.0
// NaN and infinity that a query does not see have no influence on it: results and gradients of the CPU kernels are
// those of attention of each query by itself, over the keys of its window alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/double_backward.h"
#include "tests/support/dense_neighborhood.h"
#include "tests/support/neighborhood_cases.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_unseen {
namespace {

using Case = NeighborhoodCase;

// Sums of products, whose terms are those of the window. Queries with as many keys are worked on together.
NeighborhoodResults one_by_one(const std::vector<at::Tensor>& inputs, const NeighborhoodCotangents& given,
                               const Case& c) {
  const int64_t ndim = inputs[0].dim();
  std::vector<at::Tensor> leaves, tokens;  // [batch, heads, tokens, features]
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.to(at::kDouble).requires_grad_());
    tokens.push_back(leaves.back().flatten(1, ndim - 3).transpose(1, 2));
  }
  const at::Tensor mask = dense_neighborhood_mask(inputs[0].sizes().slice(1, ndim - 3), c.n);
  const double scale = c.scale ? *c.scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  const at::Tensor counts = mask.sum(-1);
  std::vector<at::Tensor> outputs, sums, places;
  for (int64_t keys = 1; keys <= mask.size(1); ++keys) {
    const at::Tensor queries = (counts == keys).nonzero().flatten(), seen = mask.index_select(0, queries).nonzero();
    if (queries.numel() == 0) continue;
    const auto of_windows = [&](const at::Tensor& rows) {
      return rows.index_select(2, seen.select(1, 1)).unflatten(2, {queries.numel(), keys});
    };
    const at::Tensor query = tokens[0].index_select(2, queries).unsqueeze(3) * scale;
    const at::Tensor scores = (query * of_windows(tokens[1])).sum(-1);
    outputs.push_back((scores.softmax(-1).unsqueeze(-1) * of_windows(tokens[2])).sum(-2));
    sums.push_back(scores.logsumexp(-1));
    places.push_back(queries);
  }
  const at::Tensor order = at::cat(places).argsort();
  const auto in_order = [&](const std::vector<at::Tensor>& parts, const at::Tensor& like) {
    return at::cat(parts, 2).index_select(2, order).transpose(1, 2).reshape(like.sizes());
  };
  const at::Tensor output = in_order(outputs, given.output), logsumexp = in_order(sums, given.logsumexp);
  const auto gradients = torch::autograd::grad({output, logsumexp}, leaves,
                                               {given.output.to(at::kDouble), given.logsumexp.to(at::kDouble)});
  return {output.detach(), logsumexp.detach(), gradients[0], gradients[1], gradients[2]};
}

NeighborhoodResults by_kernels(const NeighborhoodBlocks& b, const std::vector<at::Tensor>& inputs,
                               const NeighborhoodCotangents& given, const neighborhood::KernelSet& kernels) {
  const auto whole = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), b.c.n, b.c.scale);
  return in_blocks(inputs, whole, b.blocks, given,
                   [&](const auto& block, const NeighborhoodCall& call, const NeighborhoodCotangents& cotangents) {
                     const auto [output, logsumexp] = neighborhood_forward(block[0], block[1], block[2], call, kernels);
                     const auto [q, k, v] = neighborhood_backward(cotangents.output, cotangents.logsumexp, block[0],
                                                                  block[1], block[2], output, logsumexp, call, kernels);
                     return NeighborhoodResults{output, logsumexp, q, k, v};
                   });
}

// The same elements are finite, and these are equal.
void expect_same(const NeighborhoodResults& actual, const NeighborhoodResults& expected, double tolerance,
                 const std::string& name) {
  const auto finite = [](const NeighborhoodResults& r) {
    const auto of = [](const at::Tensor& t) { return t.isfinite().to(at::kDouble); };
    return NeighborhoodResults{of(r.output), of(r.logsumexp), of(r.query), of(r.key), of(r.value)};
  };
  const auto numbers = [](const NeighborhoodResults& r) {
    const auto of = [](const at::Tensor& t) { return t.to(at::kDouble).nan_to_num(0, 0, 0); };
    return NeighborhoodResults{of(r.output), of(r.logsumexp), of(r.query), of(r.key), of(r.value)};
  };
  expect_near(finite(actual), finite(expected), 0, name + ", which are finite");
  expect_near(numbers(actual), numbers(expected), tolerance, name);
}

// Slabs of pairs in one dim, in rows of a thin field and for windows that strips do not take; strips; all along every
// dim, dilated, causal, with strides, whole and in blocks.
std::vector<NeighborhoodBlocks> all_cases() {
  std::vector<NeighborhoodBlocks> cases = {
      {{"line", {21}, {{5}}, 5, 6}, {}},
      {{"even window", {20}, {{6}}, 8, 8}, {}},
      {{"causal line", {21}, {{4}, {1}, {2}, {true}}, 5, 6}, {}},
      {{"stride", {23}, {{7}, {3}}, 3, 9}, {}},
      {{"over chunks", {560}, {{530}}, 2, 3, 1, 1}, {}},
      {{"thin", {1, 19}, {{1, 4}}, 5, 6}, {}},
      {{"strips", {5, 21}, {{3, 5}}, 8, 9}, {}},
      {{"pairs of several rows", {9, 19}, {{9, 13}}, 40, 80, 1, 1}, {}},
      {{"cube", {3, 4, 11}, {{2, 3, 4}, {1}, {1, 1, 2}, {true, false, true}}, 8, 5}, {}},
  };
  const auto& in_parts = neighborhood_block_cases();
  cases.insert(cases.end(), in_parts.begin(), in_parts.end());
  return cases;
}

// At two neighbours, as one is seen by the first query of a pair alone and the other by the second alone.
void plant(at::Tensor& tensor, int64_t place, double what) {
  const int64_t width = tensor.size(-1), heads = tensor.size(-2);
  at::Tensor flat = tensor.view({-1, heads, width});
  flat[std::min(flat.size(0) - 1, flat.size(0) / 2 + place)][heads - 1][width / 2] = what;
}

void expect_unseen_are_left_out(at::ScalarType type, double tolerance, double what) {
  const char* const names[] = {"query", "key", "value", "the gradient of the output", "the gradient of logsumexp"};
  for (const NeighborhoodBlocks& b : all_cases()) {
    for (const int64_t place : {0, 1}) {
      for (size_t planted = 0; planted < std::size(names); ++planted) {
        std::vector<at::Tensor> inputs = inputs_of(b.c, type);
        NeighborhoodCotangents given = cotangents_of(b.c, type);
        at::Tensor sums = given.logsumexp.unsqueeze(-1);
        plant(planted < 3 ? inputs[planted] : planted == 3 ? given.output : sums, place, what);
        const NeighborhoodResults expected = one_by_one(inputs, given, b.c);
        for (const auto* kernels : {&neighborhood::kernels_generic(), &neighborhood::kernels_native()}) {
          expect_same(by_kernels(b, inputs, given, *kernels), expected, tolerance,
                      std::string(b.c.name) + ", " + std::to_string(what) + " in " + names[planted] + " at place " +
                          std::to_string(place) + ", " + kernels->name);
        }
      }
    }
  }
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

TEST(NeighborhoodUnseen, X04_NaNStaysInItsWindows) { expect_unseen_are_left_out(at::kFloat, 1e-4, kNaN); }
TEST(NeighborhoodUnseen, X04_InfinityStaysInItsWindows) { expect_unseen_are_left_out(at::kDouble, 1e-10, kInfinity); }
TEST(NeighborhoodUnseen, X04_NaNOfBFloat16StaysInItsWindows) { expect_unseen_are_left_out(at::kBFloat16, 5e-2, kNaN); }

// Groups of a dilation see nothing of each other, also where causal windows are short.
TEST(NeighborhoodUnseen, X04_NaNStaysInItsGroupInSecondDerivatives) {
  const Case c{"", {12}, {{3}, {1}, {2}, {true}}, 4, 5};
  for (size_t planted = 0; planted < 8; ++planted) {
    std::vector<at::Tensor> t = inputs_of(c, at::kDouble);
    const NeighborhoodCotangents given = cotangents_of(c, at::kDouble);
    std::vector<at::Tensor> all = {t[0] * 0.5, t[1] * 0.5, t[2] * 0.5, given.output, given.logsumexp, t[0], t[1], t[2]};
    all[planted].select(1, planted % 2 == 0 ? 0 : 2).fill_(kNaN);
    const auto call = check_neighborhood(t[0].sizes(), t[1].sizes(), t[2].sizes(), c.n, c.scale);
    const auto second = neighborhood_second({all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7]}, call);
    bool reached = false;
    for (const at::Tensor& gradient : second) {
      for (int64_t row = 0; row < 12; ++row) {
        const bool finite = gradient.select(1, row).isfinite().all().item<bool>();
        EXPECT_TRUE(row % 2 == 0 || finite) << "planted in " << planted << ", row " << row;
        reached |= !finite;
      }
    }
    EXPECT_TRUE(reached) << planted;
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_unseen
