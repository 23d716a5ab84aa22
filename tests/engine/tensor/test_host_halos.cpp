// SPDX-License-Identifier: Apache-2.0
// Ghosts that a solver has filled, in place of messages (X15).
#include "moonhalo/engine/tensor/host_halos.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_host_halos {
namespace {

using ::testing::HasSubstr;

at::Tensor whole_field() { return at::arange(13 * 11, at::kDouble).reshape({13, 11}).sin(); }

/// This rank's uneven block of the field on a 2 x 2 mesh, with ghosts of 2 rows and columns all round, filled where
/// there are neighbours; NaN beyond the domain.
struct Solver {
  explicit Solver(const MeshPtr& mesh) {
    const int64_t row = mesh->coordinate(0), column = mesh->coordinate(1);
    begin = {row * 8, column * 4};
    owned = {row == 0 ? 8 : 5, column == 0 ? 4 : 7};
    memory = at::full({owned[0] + 4, owned[1] + 4}, std::nan(""), at::kDouble);
    const at::Tensor padded = at::constant_pad_nd(whole_field(), {2, 2, 2, 2}, std::nan(""));
    memory.copy_(padded.narrow(0, begin[0], owned[0] + 4).narrow(1, begin[1], owned[1] + 4));
    block = {memory.data_ptr(), at::kDouble, memory.sizes().vec(), {}, {2, 2}, {2, 2}, begin, {13, 11}};
    field = as_shard_tensor(block, mesh);
    ghosts = host_halos(field, block);
  }
  /// Makes the ghosts hold what no neighbour has.
  void spoil() {
    const at::Tensor kept = memory.narrow(0, 2, owned[0]).narrow(1, 2, owned[1]).clone();
    memory.fill_(100);
    memory.narrow(0, 2, owned[0]).narrow(1, 2, owned[1]).copy_(kept);
  }
  std::vector<int64_t> begin, owned;
  at::Tensor memory, field;
  Block block;
  HostHalos ghosts;
};

at::Tensor image(const at::Tensor& field) { return field.unsqueeze(0).unsqueeze(0); }

at::Tensor smooth(const at::Tensor& field, int64_t size) {
  const at::Tensor kernel = at::arange(size * size, at::kDouble).reshape({1, 1, size, size}).cos();
  return at::conv2d(image(field), kernel, {}, 1, size / 2);
}

/// Messages of `work` on all ranks together.
int64_t messages(const MeshPtr& mesh, const std::function<void()>& work) {
  const int64_t before = mesh->group().stats().total().messages;
  work();
  at::Tensor count = at::full({1}, mesh->group().stats().total().messages - before, at::kLong);
  mesh->group().all_reduce(count);
  return count.item<int64_t>();
}

TEST(X15_FilledGhosts, ReplaceMessages) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Solver solver(mesh);
    at::Tensor with, again;
    const UseFilledGhosts use({solver.ghosts});

    HaloEvents events;
    {
      const RecordHalo record(&events);
      EXPECT_EQ(messages(mesh, [&] { with = smooth(solver.field, 5); }), 0);
    }
    EXPECT_THAT(events, ::testing::ElementsAre("ghosts"));
    EXPECT_EQ(messages(mesh, [&] { again = smooth(solver.field.clone(), 3); }), 0);

    EXPECT_TRUE(at::allclose(full_tensor(with), smooth(whole_field(), 5), 1e-12));
    EXPECT_TRUE(at::allclose(full_tensor(again), smooth(whole_field(), 3), 1e-12));
  });
}

TEST(X15_FilledGhosts, AreReadAndGiveTheSameGradients) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Solver solver(mesh);
    const at::Tensor kernel = at::arange(9, at::kDouble).reshape({1, 1, 3, 3}).cos();
    at::Tensor plain = kernel.clone().requires_grad_(), ours = kernel.clone().requires_grad_();
    at::conv2d(image(whole_field()), plain, {}, 1, 1).square().sum().backward();
    {
      const UseFilledGhosts use({solver.ghosts});
      at::conv2d(image(solver.field), ours, {}, 1, 1).square().sum().backward();
    }
    EXPECT_TRUE(at::allclose(ours.grad(), plain.grad(), 1e-11));

    solver.spoil();
    const UseFilledGhosts use({solver.ghosts});
    EXPECT_FALSE(at::allclose(full_tensor(smooth(solver.field, 3)), smooth(whole_field(), 3), 1e-3));
  });
}

// Wider than the ghosts, of another field, of a copy that was made before, after a write, after the end.
TEST(X15_FilledGhosts, AreNotReadWhereTheyMayBeWrong) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Solver solver(mesh);
    const at::Tensor early = solver.field.clone();
    const auto right = [&](const char* what, const at::Tensor& field, int64_t size, double factor) {
      SCOPED_TRACE(what);
      at::Tensor result;
      EXPECT_GT(messages(mesh, [&] { result = smooth(field, size); }), 0);
      EXPECT_TRUE(at::allclose(full_tensor(result), smooth(whole_field() * factor, size), 1e-11));
    };
    {
      const UseFilledGhosts use({solver.ghosts});
      solver.spoil();
      right("wider", solver.field, 7, 1);
      right("computed", solver.field * 2, 3, 2);
      right("earlier", early, 3, 1);
      right("computed after views", image(solver.field)[0][0] + 0, 3, 1);
      solver.field.narrow(0, 0, 13).mul_(3);
      right("written", solver.field, 3, 3);
    }
    right("after the end", solver.field, 3, 3);
  });
}

TEST(X15_FilledGhosts, ABlockWrittenBehindTheShardTensorIsFound) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Solver solver(mesh);
    const UseFilledGhosts use({solver.ghosts});
    to_local(solver.field).mul_(2);
    EXPECT_THAT(message_of([&] { smooth(solver.field, 3); }), HasSubstr("was written behind the ShardTensor's back"));
  });
}

// A periodic domain is exchanged: what is beyond its ends is the solver's own.
TEST(X15_FilledGhosts, PeriodicRowsAreExchanged) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Solver solver(mesh);
    const UseFilledGhosts use({solver.ghosts});
    const at::Tensor padded = at::pad(image(solver.field), {1, 1, 1, 1}, "circular");
    EXPECT_TRUE(at::equal(full_tensor(padded), at::pad(image(whole_field()), {1, 1, 1, 1}, "circular")));
  });
}

TEST(X15_FilledGhosts, RefuseEmptyBlocks) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    std::vector<double> memory(4, 1.0);
    const int64_t mine = mesh->rank() == 1 ? 0 : 2;
    const Block block{
        memory.data(), at::kDouble, {mine + 2}, {}, {1}, {1}, {mesh->rank() == 2 ? 2 : mesh->rank() * 2}, {4}};
    const at::Tensor field = as_shard_tensor(block, mesh);
    EXPECT_THAT(message_of([&] { host_halos(field, block); }), HasSubstr("filled ghosts around a block of no rows"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_host_halos
