// SPDX-License-Identifier: Apache-2.0
// The fused steps that LibTorch takes on devices, against the operators that they stand for; whole LSTMs and GRUs, on
// devices too.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_recurrent_cell {
namespace {

using at::Tensor;

// The fused operators have no kernel on the CPU, so plain tensors take the steps one by one.
bool on_blocks(const Tensor& x) { return is_shard_tensor(x); }

Tensors lstm_step(const Tensors& t, bool biased) {
  if (on_blocks(t[0])) {
    const auto [hy, cy, workspace] =
        biased ? at::_thnn_fused_lstm_cell(t[0], t[1], t[2], t[3], t[4]) : at::_thnn_fused_lstm_cell(t[0], t[1], t[2]);
    return {hy, cy};
  }
  const Tensor gates = biased ? t[0] + t[1] + t[3] + t[4] : t[0] + t[1];
  const auto parts = gates.chunk(4, 1);
  const Tensor cy = parts[1].sigmoid() * t[2] + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * cy.tanh(), cy};
}

Tensors gru_step(const Tensors& t, bool biased) {
  if (on_blocks(t[0]))
    return {std::get<0>(biased ? at::_thnn_fused_gru_cell(t[0], t[1], t[2], t[3], t[4])
                               : at::_thnn_fused_gru_cell(t[0], t[1], t[2]))};
  const auto input = (biased ? t[0] + t[3] : t[0]).chunk(3, 1), hidden = (biased ? t[1] + t[4] : t[1]).chunk(3, 1);
  const Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid(),
               fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (t[2] - fresh)};
}

const Placed kCuts[] = {
    {{2}, {shard(0, {4, 1})}}, {{3}, {shard(0, {3, 0, 2})}},      {{2}, {shard(1)}},
    {{2}, {partial()}},        {{2, 2}, {shard(0), replicate()}}, {{2, 2}, {shard(0, {1, 4}), shard(1)}},
};

TEST(RecurrentCell, StepsEqualTheOperatorsTheyStandFor) {
  for (const Placed& cut : kCuts) {
    SCOPED_TRACE(cut.placements[0].to_string());
    for (const bool biased : {true, false}) {
      for (const int64_t gates : {4, 3}) {
        const auto step = [&](const Tensors& t) { return gates == 4 ? lstm_step(t, biased) : gru_step(t, biased); };
        const auto of = [&](int64_t seed) { return Input{make_tensor({5, 4 * gates}, seed), cut.placements}; };
        const auto bias = [&](int64_t seed) { return Input{.full = make_tensor({4 * gates}, seed), .plain = true}; };
        const std::vector<Input> inputs{of(1), of(2), {make_tensor({5, 4}, 3), cut.placements}, bias(4), bias(5)};
        expect_same_as_plain(cut.mesh, inputs, step, {.double_backward = true});
        // One result alone has a gradient.
        expect_same_as_plain(cut.mesh, inputs, [&](const Tensors& t) { return Tensors{step(t).back()}; });
        expect_same_as_plain(cut.mesh, inputs, [&](const Tensors& t) { return Tensors{step(t).front()}; });
      }
    }
  }
}

// A sequence [batch, time, features] with its batch or its time cut.
TEST(RecurrentCell, LayersEqualTheWholeTensor) {
  for (const Placed& cut :
       {Placed{{2}, {shard(0, {4, 1})}}, Placed{{3}, {shard(0, {3, 0, 2})}}, Placed{{2}, {shard(1)}}}) {
    SCOPED_TRACE(cut.placements[0].to_string());
    for (const int64_t gates : {4, 3}) {
      const auto weight = [&](at::IntArrayRef shape, int64_t seed) {
        return Input{.full = make_tensor(shape, seed), .plain = true};
      };
      const std::vector<Input> inputs{{make_tensor({5, 3, 2}, 1), cut.placements},
                                      weight({1, 5, 4}, 2),
                                      weight({1, 5, 4}, 3),
                                      weight({4 * gates, 2}, 4),
                                      weight({4 * gates, 4}, 5),
                                      weight({4 * gates}, 6),
                                      weight({4 * gates}, 7)};
      expect_same_as_plain(cut.mesh, inputs, [&](const Tensors& t) {
        const Tensors weights(t.begin() + 3, t.end());
        if (gates == 3) {
          const auto [y, h] = at::gru(t[0], t[1], weights, true, 1, 0, true, false, true);
          return Tensors{y * y, h};
        }
        const auto [y, h, c] = at::lstm(t[0], Tensors{t[1], t[2]}, weights, true, 1, 0, true, false, true);
        return Tensors{y * y, h, c};
      });
    }
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_recurrent_cell
