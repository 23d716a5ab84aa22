// SPDX-License-Identifier: Apache-2.0
// Tests of a user's own functions. Each must give on blocks what it gives on one plain tensor.
#include <moonhalo/moonhalo.h>
#include <moonhalo/testing.h>

#include "advection.h"

namespace {

using Tensors = std::vector<at::Tensor>;
using moonhalo::shard;

at::Tensor field(int64_t seed) { return at::arange(30 * 20, at::kDouble).add(seed).sin().view({30, 20}); }

TEST(Advection, IsTheSameOnBlocks) {
  EXPECT_SAME_AS_PLAIN([](const Tensors& x) { return advect(x[0], x[1], x[2], 0.1); }, {field(1), field(2), field(3)});
}

TEST(Advection, IsTheSameAsAnOperator) {
  const auto advect_operator =
      c10::Dispatcher::singleton().findSchemaOrThrow("example::advect", "").typed<decltype(advect)>();
  const auto program = [&](const Tensors& x) { return advect_operator.call(x[0], x[1], x[2], 0.1); };
  EXPECT_SAME_AS_PLAIN(program, {field(1), field(2), field(3)});
}

// The same on a grid of ranks, on given blocks: one is a single row, and one velocity is a plain tensor.
TEST(Advection, IsTheSameOnAGridOfThinBlocks) {
  const auto program = [](const Tensors& x) { return advect(x[0], x[1], x[2], 0.1); };
  const std::vector<moonhalo::Placement> thin = {shard(0, {1, 29}), shard(1, {20})};
  EXPECT_SAME_AS_PLAIN(program, {field(1), field(2), field(3)},
                       {.mesh = {2, 1}, .placements = {thin, {shard(1), shard(0)}, {}}});
}

// A network's weights are inputs, so that their gradients are compared, too.
TEST(Correction, HasTheSameSecondDerivatives) {
  const auto program = [](const Tensors& x) { return at::conv2d(x[0], x[1], {}, 1, 1).tanh().square().mean(); };
  const Tensors inputs = {field(1).view({1, 1, 30, 20}), field(2).flatten().slice(0, 0, 18).view({2, 1, 3, 3})};
  EXPECT_SAME_AS_PLAIN(program, inputs, {.gradgrad = true});
}

}  // namespace
