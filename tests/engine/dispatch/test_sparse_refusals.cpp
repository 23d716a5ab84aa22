// SPDX-License-Identifier: Apache-2.0
// Sparse tensors have no blocks: they are refused, on every rank, and the message says what to do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_sparse_refusals {
namespace {

void expect_refused(const std::string& name, const std::function<void()>& call) {
  const std::string text = message_of(call);
  EXPECT_NE(text.find("layout"), std::string::npos) << name << ": " << text;
  EXPECT_NE(text.find("\n  fix   make it dense first (to_dense()), or leave the mesh: full_tensor(x)"),
            std::string::npos)
      << name << ": " << text;
}

TEST(Sparse, IsRefusedWithTheRemedy) {
  const at::Tensor eye = at::eye(4, at::kDouble);
  for (const at::Tensor& sparse :
       {eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr({2, 2})}) {
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
  on_mesh(
      {2},
      [](const MeshPtr& mesh) {
        const at::Tensor x = shard_of(make_tensor({4, 4}, 1), mesh, {shard(0)});
        expect_refused("to_sparse", [&] { x.to_sparse(); });
        expect_refused("to_sparse_csr", [&] { x.to_sparse_csr(); });
        expect_refused("gradient", [&] {
          const at::Tensor rows = shard_of(make_tensor({4, 4}, 1), mesh, {replicate()}).requires_grad_();
          const at::Tensor which = shard_of(at::zeros({4}, at::kLong), mesh, {shard(0)});
          at::embedding(rows, which, -1, false, /*sparse=*/true).sum().backward();
        });
      },
      Fallback::kReplicate);
}

// Operators with kernels for sparse tensors, which would come before ours, and those that make sparse tensors of
// blocks.
TEST(Sparse, OperatorsWithSparseKernelsRefuse) {
  const at::Tensor eye = at::eye(4, at::kDouble), full = make_tensor({4, 4}, 1);
  for (const at::Tensor& sparse :
       {eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr({2, 2})}) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      at::Tensor x = shard_of(full, mesh, {shard(0)});
      const at::Tensor vector = shard_of(make_tensor({4}, 2), mesh, {shard(0)}),
                       rows = shard_of(at::arange(4), mesh, {shard(0)});
      expect_refused("mm", [&] { at::mm(sparse, x); });
      expect_refused("mm, turned", [&] { at::mm(x, sparse); });
      expect_refused("mv", [&] { at::mv(sparse, vector); });
      expect_refused("addmm", [&] { at::addmm(x, sparse, x); });
      expect_refused("addmm of sparse", [&] { at::addmm(sparse, x, x); });
      expect_refused("add", [&] { at::add(x, sparse); });
      expect_refused("add, turned", [&] { at::add(sparse, x); });
      expect_refused("add_", [&] { x.add_(sparse); });
      expect_refused("sub", [&] { at::sub(x, sparse); });
      expect_refused("mul", [&] { at::mul(x, sparse); });
      expect_refused("mul, turned", [&] { at::mul(sparse, x); });
      expect_refused("mul_", [&] { x.mul_(sparse); });
      expect_refused("div", [&] { at::div(sparse, x); });
      expect_refused("copy_", [&] { x.copy_(sparse); });
      expect_refused("index_select", [&] { at::index_select(sparse, 0, rows); });
      expect_refused("sparse_mask", [&] { x.sparse_mask(sparse); });
      expect_refused("with a gradient", [&] { at::mm(sparse, x.clone().requires_grad_()); });
      EXPECT_EQ(difference(full_tensor(x), full, 0), "");
    });
  }
}

TEST(Sparse, TensorsOfBlocksAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor values = shard_of(make_tensor({4}, 2), mesh, {shard(0)}), at = at::arange(4).repeat({2, 1});
    expect_refused("sparse_coo_tensor", [&] { at::sparse_coo_tensor(at, values, {4, 4}); });
    expect_refused("sparse_coo_tensor of indices", [&] {
      at::sparse_coo_tensor(shard_of(at, mesh, {shard(1)}), at::ones({4}), {4, 4});
    });
    expect_refused("sparse_csr_tensor", [&] {
      at::sparse_csr_tensor(at::arange(5), at::arange(4), values, {4, 4}, at::dtype(at::kDouble));
    });
  });
}

// Plain sparse tensors keep LibTorch's kernels, and so does what they make, in rank threads too.
TEST(Sparse, PlainOnesWorkAsBefore) {
  const at::Tensor eye = at::eye(4, at::kDouble), dense = make_tensor({4, 4}, 1);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor product = at::mm(eye.to_sparse(), dense) + eye.to_sparse_csr().to_dense();
    EXPECT_EQ(difference(full_tensor(distribute_tensor(product, mesh, {shard(0)})), dense + eye, 0), "");
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_sparse_refusals
