// SPDX-License-Identifier: Apache-2.0
// Hashes of cut tensors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_hash_tensor {
namespace {

using at::Tensor;

// Bits are compared: as int64, for which the comparison of tensors has a notation, and without tolerance.
constexpr Oracle kBits{.tolerance = 0, .backward = false};

Tensor bits(const Tensor& hashes) { return hashes.view(at::kLong); }

// Addends of floating point numbers add up to other bits.
std::vector<PlacementCase> ways_without_sums() {
  std::vector<PlacementCase> ways;
  std::copy_if(kPlacements972.begin(), kPlacements972.end(), std::back_inserter(ways), [](const PlacementCase& held) {
    return std::none_of(held.placements.begin(), held.placements.end(),
                        [](const Placement& p) { return p.is_partial(); });
  });
  return ways;
}

TEST(HashTensor, OfBlocksIsThatOfOneDevice) {
  const std::vector<Case> cases{
      {"all", [](const Tensor& x) { return List{bits(at::hash_tensor(x))}; }, kBits},
      {"all_keepdim", [](const Tensor& x) { return List{bits(at::hash_tensor(x, {}, /*keepdim=*/true))}; }, kBits},
      {"rows", [](const Tensor& x) { return List{bits(at::hash_tensor(x, 0))}; }, kBits},
      {"columns", [](const Tensor& x) { return List{bits(at::hash_tensor(x, -2, true))}; }, kBits},
      {"last_dim", [](const Tensor& x) { return List{bits(at::hash_tensor(x, 2))}; }, kBits},
      {"two_dims",
       [](const Tensor& x) {
         return List{bits(at::hash_tensor(x, {1, 0}))};
       },
       kBits},
      {"no_rows_are_left", [](const Tensor& x) { return List{bits(at::hash_tensor(x.slice(0, 0, 0), 1))}; }, kBits},
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    SCOPED_TRACE(at::toString(dtype));
    const Tensor full = make_tensor({9, 7, 2}, 1, dtype);
    check(cases, full, at::isIntegralType(dtype, true) ? kPlacements972 : ways_without_sums());
  }
}

TEST(HashTensor, OneHashOfEachRankIsSent) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({100, 4}, 1), mesh, {shard(0, {60, 0, 40})});
    mesh->group().reset_stats();

    at::hash_tensor(x, 1);
    EXPECT_EQ(mesh->group().stats().total().calls, 0);

    at::hash_tensor(x);
    EXPECT_EQ(mesh->group().stats().total().calls, 1);
    EXPECT_EQ(mesh->group().stats().total().bytes, 2 * 8);
  });
}

TEST(HashTensor, WritesIntoOut) {
  const Tensor full = make_tensor({9, 7}, 1);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(full, mesh, {shard(0, {9, 0})});
    Tensor out = shard_of(at::zeros({7}, at::kLong), mesh, {shard(0, {3, 4})}).view(at::kUInt64);
    at::hash_tensor_out(out, x, 0);
    EXPECT_EQ(difference(full_tensor(bits(out)), bits(at::hash_tensor(full, 0)), 0), "");
  });
}

// One rank has no rows, which the kernel alone would refuse, and the others have some, which it would take.
TEST(HashTensor, WrongArgumentsAreRefusedOnEveryRank) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({9, 4}, 1), mesh, {shard(0, {9, 0})});

    EXPECT_NE(message_of([&] { at::hash_tensor(x, 0, false, 1); }).find("Unknown hash_tensor mode: 1"),
              std::string::npos);
    EXPECT_NE(message_of([&] { at::hash_tensor(x, 2); }).find("Dimension out of range"), std::string::npos);
    EXPECT_NE(message_of([&] { at::hash_tensor(x, {0, 0}); }).find("appears multiple times"), std::string::npos);
    EXPECT_NE(message_of([&] { at::hash_tensor(x.slice(0, 0, 0)); }).find("Expected reduction dim"), std::string::npos);
    const Tensor complex = x.to(at::kComplexDouble);
    EXPECT_NE(message_of([&] { at::hash_tensor(complex); }).find("not implemented for"), std::string::npos);
    EXPECT_NE(message_of([&] { at::hash_tensor(complex, 1); }).find("not implemented for"), std::string::npos);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_hash_tensor
