// SPDX-License-Identifier: Apache-2.0
// Blocks of a solver with ghosts, as ShardTensors over its memory (X15).
#include "moonhalo/engine/tensor/host_block.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_host_block {
namespace {

using ::testing::HasSubstr;
using List = std::vector<int64_t>;

/// This rank's block of a [7, 9] field on a 2 x 2 mesh, with ghosts of 1 and 2 rows, 3 and 0 columns.
struct Solver {
  explicit Solver(const DeviceMesh& mesh) {
    const int64_t row = mesh.coordinate(0), column = mesh.coordinate(1);
    begin = {row * 4, column * 7};
    owned = {row == 0 ? 4 : 3, column == 0 ? 7 : 2};
    memory = at::full({owned[0] + 3, owned[1] + 3}, -1, at::kDouble);
    interior().copy_(part(at::arange(63, at::kDouble).reshape({7, 9})));
  }
  at::Tensor part(const at::Tensor& full) const {
    return full.narrow(0, begin[0], owned[0]).narrow(1, begin[1], owned[1]);
  }
  at::Tensor interior() const { return memory.narrow(0, 1, owned[0]).narrow(1, 3, owned[1]); }
  Block block() const {
    return {memory.data_ptr(), at::kDouble, memory.sizes().vec(), {}, {1, 3}, {2, 0}, begin, {7, 9}};
  }
  std::vector<int64_t> begin, owned;
  at::Tensor memory;
};

TEST(X15_HostBlock, IsTheFieldInPlace) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    Solver solver(*mesh);
    const at::Tensor full = at::arange(63, at::kDouble).reshape({7, 9});

    at::Tensor field = as_shard_tensor(solver.block(), mesh);
    field.mul_(2);

    EXPECT_EQ(to_local(field).data_ptr(), solver.interior().data_ptr());
    EXPECT_TRUE(at::equal(full_tensor(field), 2 * full));
    EXPECT_TRUE(at::equal(solver.interior(), solver.part(2 * full)));
    EXPECT_EQ((solver.memory == -1).sum().item<int64_t>(), solver.memory.numel() - solver.interior().numel());
  });
}

/// Strides of a block of h x w cells with c numbers each, ghosts included, as [cell row, cell column, number].
struct Layout {
  const char* name;
  std::vector<int64_t> (*stride)(int64_t h, int64_t w, int64_t c);
};

const Layout layouts[] = {
    {"PETSc's DMDA with dof",
     [](int64_t, int64_t w, int64_t c) {
       return std::vector<int64_t>{w * c, c, 1};
     }},
    {"AMReX's FArrayBox",
     [](int64_t h, int64_t w, int64_t) {
       return std::vector<int64_t>{w, 1, h * w};
     }},
    {"Kokkos' LayoutLeft",
     [](int64_t h, int64_t w, int64_t) {
       return std::vector<int64_t>{1, h, h * w};
     }},
    {"Kokkos' LayoutStride",
     [](int64_t, int64_t w, int64_t c) {
       return std::vector<int64_t>{(w + 2) * c, c, 1};
     }},
    {"Fortran's u(c, i, j)",
     [](int64_t h, int64_t, int64_t c) {
       return std::vector<int64_t>{c, h * c, 1};
     }},
};

TEST(X15_HostBlock, LayoutsOfOtherCodesAreStrides) {
  const at::Tensor full = at::arange(7 * 5 * 3, at::kDouble).reshape({7, 5, 3});
  on_mesh({2, 2}, [&](const MeshPtr& mesh) {
    for (const Layout& layout : layouts) {
      const int64_t row = mesh->coordinate(0), column = mesh->coordinate(1);
      const std::vector<int64_t> begin = {row * 4, column * 3, 0}, owned = {row == 0 ? 4 : 3, column == 0 ? 3 : 2, 3};
      const int64_t h = owned[0] + 2, w = owned[1] + 2;
      std::vector<double> memory((h + 2) * (w + 2) * 3, -1);
      const std::vector<int64_t> stride = layout.stride(h, w, 3);
      const auto place = [&](int64_t i, int64_t j, int64_t c) -> double& {
        return memory[(i + 1) * stride[0] + (j + 1) * stride[1] + c * stride[2]];
      };
      for (int64_t i = 0; i < owned[0]; ++i) {
        for (int64_t j = 0; j < owned[1]; ++j) {
          for (int64_t c = 0; c < 3; ++c) place(i, j, c) = full[begin[0] + i][begin[1] + j][c].item<double>();
        }
      }

      at::Tensor field = as_shard_tensor(
          {memory.data(), at::kDouble, {h, w, 3}, stride, {1, 1, 0}, {1, 1, 0}, begin, {7, 5, 3}}, mesh);
      EXPECT_TRUE(at::equal(full_tensor(field), full)) << layout.name;
      field.add_(0.5);

      EXPECT_EQ(to_local(field).data_ptr(), &place(0, 0, 0)) << layout.name;
      EXPECT_EQ(place(owned[0] - 1, 0, 2), full[begin[0] + owned[0] - 1][begin[1]][2].item<double>() + 0.5)
          << layout.name;
      EXPECT_EQ(std::count(memory.begin(), memory.end(), -1.0),
                static_cast<int64_t>(memory.size()) - owned[0] * owned[1] * 3)
          << layout.name;
    }
  });
}

TEST(X15_HostBlock, TrainsAsThePlainFieldDoes) {
  const at::Tensor full = at::arange(63, at::kDouble).reshape({1, 1, 7, 9}).sin();
  at::Tensor kernel = at::arange(9, at::kDouble).reshape({1, 1, 3, 3}).cos().requires_grad_();
  at::conv2d(full, kernel, {}, 1, 1).square().sum().backward();
  on_mesh({2, 2}, [&](const MeshPtr& mesh) {
    Solver solver(*mesh);
    solver.interior().copy_(solver.part(full[0][0]));
    at::Tensor own_kernel = kernel.detach().clone().requires_grad_();

    const at::Tensor field = as_shard_tensor(solver.block(), mesh);
    at::conv2d(field.unsqueeze(0).unsqueeze(0), own_kernel, {}, 1, 1).square().sum().backward();

    EXPECT_TRUE(at::allclose(own_kernel.grad(), kernel.grad(), 1e-12));
  });
}

/// A rank without cells: no memory, strides of 0, ghosts that it does not have, and any extents along other dims.
TEST(X15_HostBlock, ARankWithoutCells) {
  const at::Tensor full = at::arange(35, at::kDouble).reshape({7, 5});
  on_mesh({3}, [&](const MeshPtr& mesh) {
    for (const List& extent : {List{0, 0}, List{0, 5}, List{2, 9}}) {
      const int64_t begin = mesh->rank() == 0 ? 0 : 4, rows = mesh->rank() == 0 ? 4 : 3;
      const at::Tensor memory = at::zeros({rows + 2, 5});
      Block block{memory.data_ptr(), at::kFloat, {rows + 2, 5}, {5, 1}, {1, 0}, {1, 0}, {begin, 0}};
      if (mesh->rank() == 1) block = {nullptr, at::kFloat, extent, {0, 1}, {1, 0}, {1, 0}, {0, 0}};
      if (mesh->rank() != 1) memory.narrow(0, 1, rows).copy_(full.narrow(0, begin, rows));

      at::Tensor field = as_shard_tensor(block, mesh);
      EXPECT_TRUE(at::equal(full_tensor(field), full.to(at::kFloat)));
      field.mul_(2);

      EXPECT_EQ(field.sum().item<double>(), 2 * 17 * 35);
      EXPECT_EQ(memory.sum().item<double>(),
                mesh->rank() == 1 ? 0 : 2 * full.narrow(0, begin, rows).sum().item<double>());
    }
  });
}

TEST(X15_HostBlock, RefusesWhatDoesNotFit) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const Solver solver(*mesh);
    const auto message = [&](auto change) {
      Block block = solver.block();
      change(block);
      return message_of([&] { as_shard_tensor(block, mesh); });
    };
    const bool last = mesh->rank() == 3;
    EXPECT_THAT(message([](Block& b) { b.begin = {0}; }), HasSubstr("block: begin has 1 numbers, extent has 2"));
    EXPECT_THAT(message([&](Block& b) {
                  if (last) b.data = nullptr;
                }),
                HasSubstr("block: no memory"));
    EXPECT_THAT(message([&](Block& b) {
                  if (last) b.ghost_high = {50, 0};
                }),
                HasSubstr("block: the ghosts of dim 0"));
    EXPECT_THAT(message([](Block& b) { b.stride = {-4, 1}; }), HasSubstr("block: stride -4 along dim 0"));
    EXPECT_THAT(message([](Block& b) { b.global = {8, 9}; }), HasSubstr("boxes: no rank owns rows 7 to 8 of dim 0"));
    EXPECT_THAT(message([&](Block& b) {
                  if (last) b.dtype = at::kFloat;
                }),
                HasSubstr("block: ranks 0 and 3 want different dtypes"));
  });
}

TEST(X15_HostBlock, RefusesAMeshOfAnotherShapeOrOrder) {
  on_mesh({4}, [](const MeshPtr& line) {
    const MeshPtr mesh = init_device_mesh(line->group(), "cpu", {2, 2});
    const Solver solver(*mesh);
    EXPECT_THAT(message_of([&] { as_shard_tensor(solver.block(), line); }),
                HasSubstr("boxes: they are not the blocks of mesh(4"));
    // Ranks in columns.
    Block turned = solver.block();
    const int64_t row = mesh->coordinate(1), column = mesh->coordinate(0);
    turned.begin = {row * 4, column * 7};
    turned.extent = {row == 0 ? 7 : 6, column == 0 ? 10 : 5};
    EXPECT_THAT(message_of([&] { as_shard_tensor(turned, mesh); }),
                HasSubstr("by rank, in row-major order, number 0, 2, 1, 3"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_host_block
