// SPDX-License-Identifier: Apache-2.0
// Y08: what moonhalo/testing.h compares, and that it finds mistakes of users' code.
#include "moonhalo/engine/testing/same_as_plain.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/testing/draw.h"
#include "moonhalo/engine/testing/values.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_same_as_plain {

using at::Tensor;

// Block by block, without the neighbours' rows: the mistake that users make.
Tensor smooth_without_halo(const Tensor& x) {
  const auto smooth = [](const Tensor& t) { return t.numel() == 0 ? t : at::avg_pool1d(t, 3, 1, 1); };
  return is_shard_tensor(x) ? from_local(smooth(to_local(x)), spec(x)) : smooth(x);
}

TEST(SameAsPlain, Y08_AgreesWhereBlocksAreRight) {
  const Tensors inputs = {make_tensor({2, 3, 9, 8}, 1), make_tensor({4, 3, 3, 3}, 2), make_tensor({4}, 3)};
  const Program program = [](const Tensors& x) -> Tensors {
    return {at::conv2d(x[0], x[1], x[2], 1, 1).tanh(), x[0].sum()};
  };
  EXPECT_EQ(difference_from_plain(program, inputs), "");
  EXPECT_EQ(difference_from_plain(program, inputs, {.mesh = {2, 2}, .draws = 6, .seed = 1, .gradgrad = true}), "");
  EXPECT_EQ(
      difference_from_plain(program, inputs, {.ranks = 4, .placements = {{shard(2, {0, 5, 1, 3})}, {}, {partial()}}}),
      "");
}

TEST(SameAsPlain, Y08_NamesTheFirstRankAndThePlacementsThatDiffer) {
  const Tensor x = make_tensor({1, 2, 12}, 1);
  const Program program = [](const Tensors& x) -> Tensors { return {smooth_without_halo(x[0])}; };
  const std::string found = difference_from_plain(program, {x}, {.placements = {{shard(2, {7, 0, 5})}}});
  EXPECT_EQ(found.substr(0, found.find(':')), "on rank 0 of 3\n  result 0") << found;
  EXPECT_NE(found.find("\n  placements  {{shard(2, {7, 0, 5})}}"), std::string::npos) << found;
  EXPECT_NE(found.find("(4 differ)"), std::string::npos) << found;
  EXPECT_NE(difference_from_plain(program, {x}), "") << "no drawn blocks show it";
}

// A rank whose block is empty fails alone.
TEST(SameAsPlain, Y08_NamesThePlacementsOnWhichTheProgramFails) {
  const Program program = [](const Tensors& x) -> Tensors {
    TORCH_CHECK_VALUE(!is_shard_tensor(x[0]) || to_local(x[0]).numel() > 0, "mine: no rows");
    return x;
  };
  const std::string message = message_of([&] {
    difference_from_plain(program, {make_tensor({4, 2}, 1)}, {.placements = {{shard(0, {3, 0, 1})}}});
  });
  EXPECT_EQ(message, "rank 1: mine: no rows (same_as_plain: on placements {{shard(0, {3, 0, 1})}})");
}

// Values are right and gradients are not: of the block alone, or twice.
TEST(SameAsPlain, Y08_FindsWrongGradients) {
  const Tensor x = make_tensor({6, 4}, 1);
  const Program once = [](const Tensors& x) -> Tensors {
    return {is_shard_tensor(x[0]) ? x[0] * x[0].detach() : x[0] * x[0]};
  };
  const SameAsPlainOptions rows{.placements = {{shard(0)}}};
  const std::string found = difference_from_plain(once, {x}, rows);
  EXPECT_EQ(found.substr(0, found.find(':')), "on rank 0 of 3\n  gradient 0") << found;
  SameAsPlainOptions values = rows;
  values.gradients = false;
  EXPECT_EQ(difference_from_plain(once, {x}, values), "");
  const Program first_order = [](const Tensors& x) -> Tensors {
    return {is_shard_tensor(x[0]) ? 3 * x[0] * x[0].detach().square() - 2 * x[0].detach().pow(3) : x[0].pow(3)};
  };
  EXPECT_EQ(difference_from_plain(first_order, {x}, rows), "");
  SameAsPlainOptions twice = rows;
  twice.gradgrad = true;
  EXPECT_NE(difference_from_plain(first_order, {x}, twice).find("gradient of the gradients"), std::string::npos);
}

// Shapes, dtypes and the number of results are compared; one wrong rank is enough.
TEST(SameAsPlain, Y08_FindsOtherShapesAndDtypes) {
  const Tensor x = make_tensor({6, 4}, 1);
  const auto found = [&](const std::function<Tensors(const Tensor&)>& on_blocks) {
    const Program program = [&](const Tensors& x) -> Tensors { return is_shard_tensor(x[0]) ? on_blocks(x[0]) : x; };
    return difference_from_plain(program, {x}, {.placements = {{shard(0)}}, .gradients = false});
  };
  EXPECT_NE(found([](const Tensor& x) { return Tensors{x.t()}; }).find("shape [4, 6] instead of [6, 4]"),
            std::string::npos);
  EXPECT_NE(found([](const Tensor& x) { return Tensors{x.to(at::kFloat)}; }).find("dtype"), std::string::npos);
  EXPECT_NE(found([](const Tensor& x) { return Tensors{x, x}; }).find("2 tensors instead of 1"), std::string::npos);
  EXPECT_NE(
      found([](const Tensor& x) {
        return Tensors{to_local(x).size(0) > 0 && spec(x)->mesh()->rank() == 2 ? full_tensor(x) + 1 : full_tensor(x)};
      }).find("on rank 2 of 3"),
      std::string::npos);
}

// Random operators draw the same, and the caller's generator goes on as if nothing had been drawn.
TEST(SameAsPlain, Y08_RandomOperatorsDrawAlike) {
  const Program program = [](const Tensors& x) -> Tensors { return {at::dropout(x[0], 0.5, true)}; };
  EXPECT_EQ(difference_from_plain(program, {make_tensor({40, 3}, 1)}), "");
}

TEST(SameAsPlain, Y08_TolerancesFollowTheDtype) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-4}, {at::kBFloat16, 5e-2}}) {
    for (const double factor : {0.2, 5.0}) {
      const Program program = [&](const Tensors& x) -> Tensors {
        return {is_shard_tensor(x[0]) ? (x[0].to(at::kDouble) + factor * tolerance).to(dtype) : x[0]};
      };
      const std::string found =
          difference_from_plain(program, {at::zeros({4}, dtype)}, {.placements = {{shard(0)}}, .gradients = false});
      EXPECT_EQ(found.empty(), factor < 1) << dtype << ": " << found;
    }
  }
}

TEST(SameAsPlain, Y08_RefusesWhatItCannotCompare) {
  const Program program = [](const Tensors& x) { return x; };
  const Tensor x = make_tensor({4}, 1);
  const auto message = [&](const Tensors& inputs, const SameAsPlainOptions& options) {
    return message_of([&] { difference_from_plain(program, inputs, options); });
  };
  EXPECT_NE(message({}, {}).find("no inputs"), std::string::npos);
  EXPECT_NE(message({Tensor()}, {}).find("an input is undefined"), std::string::npos);
  EXPECT_NE(message({x}, {.placements = {{}, {}}}).find("placements for 2 of 1 inputs"), std::string::npos);
  EXPECT_NE(message({x}, {.draws = 0}).find("nothing to compare"), std::string::npos);
  EXPECT_NE(message({x}, {.placements = {{shard(0, {1, 1, 1})}}}).find("add up"), std::string::npos);
}

// Uneven and empty blocks, dims cut twice, pending sums and plain tensors all come.
TEST(SameAsPlain, Y08_DrawsAllKindsOfBlocks) {
  SeededNumbers draw(0);
  const Tensors tensors = {make_tensor({9, 7}, 1), make_tensor({5}, 2), make_tensor({}, 3)};
  int64_t empty = 0, uneven = 0, twice = 0, sums = 0, plain = 0, replicated = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const auto placements = draw_placements(draw, tensors, {2, 2}, 0);
    EXPECT_TRUE(placements[0].at(0).is_shard());
    EXPECT_TRUE(placements[2].empty());
    plain += placements[1].empty();
    twice += placements[0][1].is_shard() && placements[0][0].dim == placements[0][1].dim;
    for (const Placement& placement : placements[0]) {
      const auto& sizes = placement.sizes;
      sums += placement.is_partial();
      replicated += placement.is_replicate();
      empty += !sizes.empty() && std::min(sizes[0], sizes[1]) == 0;
      uneven += !sizes.empty() && std::min(sizes[0], sizes[1]) > 0 && std::abs(sizes[0] - sizes[1]) > 1;
    }
  }
  for (const int64_t count : {empty, uneven, twice, sums, plain, replicated}) EXPECT_GE(count, 5);
}

}  // namespace moonhalo::testing::test_same_as_plain
