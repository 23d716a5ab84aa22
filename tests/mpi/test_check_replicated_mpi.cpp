// SPDX-License-Identifier: Apache-2.0
// Plain tensors that differ between processes are found, on all of them, and equal ones pass.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckReplicatedMpi, ADifferingTensorIsFoundOnEveryRank) {
  const CommunicatorPtr world = make_mpi_world();
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {world->size()});
  const int64_t last = world->size() - 1;
  const at::Tensor x = shard_of(make_tensor({7, 4}, 1), mesh, {shard(0)});
  at::Tensor w = make_tensor({4, 2}, 2).requires_grad_();
  for (int call = 0; call < 20; ++call) x.mm(w).sum().backward();

  if (mesh->rank() == last) w.data()[3][1] = 7;
  std::string message;
  for (int call = 0; call < 20 && message.empty(); ++call) message = message_of([&] { x.mm(w); });
  const at::Tensor labels = at::arange(7) * (mesh->rank() == last ? 2 : 1);

  EXPECT_THAT(message, AllOf(HasSubstr("aten::mm: argument 'mat2', a plain weight, is not the same on all ranks"),
                             HasSubstr("rank " + std::to_string(last) + " holds others: element [3, 1] is 7")));
  EXPECT_THAT(message_of([&] { x.sum(1) + labels; }),
              HasSubstr("element [1] is 2, on rank 0 1; 6 of 7 numbers differ, by up to 6"));
  EXPECT_EQ(message_of([&] { x.sum(1) + at::arange(7); }), "");
}

}  // namespace
}  // namespace moonhalo::testing
