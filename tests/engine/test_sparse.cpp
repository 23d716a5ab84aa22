// SPDX-License-Identifier: Apache-2.0
// Sparse tensors have no blocks: they are refused, on every rank alike, and the message says what to do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/communicator.h"
#include "engine/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing {
namespace {

void expect_refused(const std::string& name, const std::function<void()>& call) {
  const std::string text = message_of(call);
  EXPECT_NE(text.find("layout"), std::string::npos) << name << ": " << text;
  EXPECT_NE(text.find("\n  fix   make it dense first (to_dense()), or leave the mesh: full_tensor(x)"), std::string::npos) << name << ": " << text;
}

TEST(Sparse, IsRefusedWithTheRemedy) {
  const at::Tensor eye = at::eye(4, at::kDouble);
  for (const at::Tensor& sparse : {eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr({2, 2})}) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const at::Tensor x = shard_of(make_tensor({4, 4}, 1), mesh, {shard(0)});
      expect_refused("from_local", [&] { from_local(sparse, mesh, {shard(0)}); });
      expect_refused("from_local of a spec", [&] { from_local(sparse, replicated(mesh, {4, 4})); });
      expect_refused("distribute_tensor", [&] { distribute_tensor(sparse, mesh, {shard(0)}); });
      // The other rank learns of it.
      const at::Tensor source = mesh->rank() == 0 ? sparse : at::Tensor();
      expect_refused("scatter_tensor", [&] { scatter_tensor(source, mesh, {shard(1)}); });
      expect_refused("matmul", [&] { at::matmul(sparse, x); });
      expect_refused("matmul, turned", [&] { at::matmul(x, sparse); });
      expect_refused("matmul of a batch", [&] { at::matmul(sparse, x.unsqueeze(0)); });
      expect_refused("linear", [&] { at::linear(x, sparse); });
    });
  }
}

TEST(Sparse, ResultsAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({4, 4}, 1), mesh, {shard(0)});
    expect_refused("to_sparse", [&] { x.to_sparse(); });
    expect_refused("to_sparse_csr", [&] { x.to_sparse_csr(); });
    expect_refused("gradient", [&] {
      const at::Tensor rows = shard_of(make_tensor({4, 4}, 1), mesh, {replicate()}).requires_grad_();
      const at::Tensor which = shard_of(at::zeros({4}, at::kLong), mesh, {shard(0)});
      at::embedding(rows, which, -1, false, /*sparse=*/true).sum().backward();
    });
  }, Fallback::kReplicate);
}

// LibTorch's sparse kernels come before ours; they fail, on every rank, and nothing is written.
TEST(Sparse, OtherOperatorsFailAlike) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor sparse = at::eye(4, at::kDouble).to_sparse(), x = shard_of(make_tensor({4, 4}, 1), mesh, {shard(0)});
    EXPECT_NE(message_of([&] { at::mm(sparse, x); }), "");
    EXPECT_NE(message_of([&] { x.add_(sparse); }), "");
    EXPECT_NE(message_of([&] { at::addmm(x, sparse, x); }), "");
    EXPECT_EQ(difference(full_tensor(x), make_tensor({4, 4}, 1), 0), "");
  });
}

}  // namespace
}  // namespace moonhalo::testing
