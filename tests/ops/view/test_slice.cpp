// SPDX-License-Identifier: Apache-2.0
// Slices, rows, splits and their inverses, over and off the cut dim: features S14, S26.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/live_bytes.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_slice {
namespace {

using at::Tensor;
using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

// Every part weighted differently.
Tensor weighed(const List& parts) {
  Tensor sum = cubed(parts[0]).sum();
  for (size_t i = 1; i < parts.size(); ++i) sum = sum + (cubed(parts[i]) * (1.5 + i)).sum();
  return sum;
}

TEST(Slice, S14_S26_SlicesEqualThoseOfOneDevice) {
  check(
      {
          {"narrow",
           [](const Tensor& x) {
             return List{cubed(x.narrow(0, 2, 5)), cubed(x).narrow(1, 1, 3)};
           },
           kTwice},
          {"steps",
           [](const Tensor& x) {
             return List{cubed(x.slice(0, 1, 9, 3)), cubed(x).slice(1, 0, 7, 2)};
           },
           kTwice},
          {"negative",
           [](const Tensor& x) {
             return List{cubed(x.slice(0, -4, -1)), cubed(x).slice(1, -100, 100)};
           }},
          {"one_row",
           [](const Tensor& x) {
             return List{cubed(x.slice(0, 4, 5)), cubed(x.slice(0, 8, 9))};
           }},
          {"nothing",
           [](const Tensor& x) {
             return List{cubed(x.slice(0, 5, 2)), cubed(x.slice(1, 7, 7))};
           }},
          {"all_rows", [](const Tensor& x) { return List{cubed(x.slice(0, 0, 9))}; }},
          {"of_a_slice", [](const Tensor& x) { return List{cubed(x.slice(0, 1, 8).slice(0, 1, 7, 2).slice(1, 2))}; }},
          {"differences", [](const Tensor& x) { return List{cubed(x.slice(0, 1) - x.slice(0, 0, -1))}; }, kTwice},
          {"indexing",
           [](const Tensor& x) {
             return List{cubed(x.index({Slice(1, None, 2), Ellipsis, 0})), x.index({3, None})};
           }},
          {"trim",
           [](const Tensor& x) {
             return List{at::constant_pad_nd(cubed(x), {0, 0, -1, -2, -3, -1})};
           },
           kTwice},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(Slice, S26_RowsAreSentByTheirOwner) {
  check(
      {
          {"select",
           [](const Tensor& x) {
             return List{cubed(x.select(0, 3)), cubed(cubed(x).select(1, 2))};
           },
           kTwice},
          {"select_last",
           [](const Tensor& x) {
             return List{cubed(x.select(0, -1)), x.select(2, 1).select(0, 4)};
           }},
          {"corner", [](const Tensor& x) { return List{x.select(0, 8).select(0, 6).select(0, 1) * 2}; }},
          {"unbind",
           [](const Tensor& x) {
             return List{weighed(x.unbind(1)), weighed(x.unbind(0))};
           },
           kTwice},
          {"unbind_last", [](const Tensor& x) { return cubed(x).unbind(2); }},
      },
      make_tensor({9, 7, 2}, 2));
}

TEST(Slice, S26_SplitsEqualThoseOfOneDevice) {
  check(
      {
          {"split", [](const Tensor& x) { return x.split(4, 0); }},
          {"split_back",
           [](const Tensor& x) {
             return List{weighed(x.split(2, 1)), weighed(x.split(4, 0))};
           },
           kTwice},
          {"split_used_in_part", [](const Tensor& x) { return List{cubed(x.split(4, 0)[1])}; }},
          {"with_sizes",
           [](const Tensor& x) {
             return cubed(x).split_with_sizes({2, 0, 6, 1}, 0);
           }},
          {"chunk", [](const Tensor& x) { return cubed(x).chunk(4, 0); }},
          {"chunk_off",
           [](const Tensor& x) {
             return List{weighed(x.chunk(2, -1)), weighed(x.chunk(3, 1))};
           }},
          {"tensor_split", [](const Tensor& x) { return cubed(x).tensor_split(2, 0); }},
          {"unsafe",
           [](const Tensor& x) {
             return List{weighed(at::unsafe_split(x, 5, 0)), weighed(at::unsafe_chunk(x, 2, 0))};
           }},
      },
      make_tensor({9, 7, 2}, 3));
}

TEST(Slice, ScattersWriteOwnedRows) {
  check(
      {
          {"slice",
           [](const Tensor& x) { return List{cubed(at::slice_scatter(x, x.narrow(0, 0, 3) * 2, 0, 1, 9, 3))}; },
           kTwice},
          {"slice_off",
           [](const Tensor& x) { return List{cubed(at::slice_scatter(x, cubed(x).narrow(1, 3, 4), 1, 1, 5))}; }},
          {"select", [](const Tensor& x) { return List{cubed(at::select_scatter(x, x.select(0, 1) * 2, 0, 6))}; },
           kTwice},
          {"select_off", [](const Tensor& x) { return List{cubed(at::select_scatter(x, x.select(1, 1) * 2, 1, -1))}; }},
          {"copies",
           [](const Tensor& x) {
             return List{at::slice_copy(x, 0, 2, 7, 2), at::select_copy(x, 0, 2)};
           }},
      },
      make_tensor({9, 7, 2}, 4));
}

TEST(Slice, KeepsTheRowsThatEachRankOwns) {
  struct Kept {
    std::vector<int64_t> from;
    int64_t start, end, step;
    std::string expected;
  };
  const Kept cases[] = {{{5, 4}, 1, 8, 3, "Shard(0, {2, 1})"}, {{5, 4}, 5, 9, 1, "Shard(0, {0, 4})"},
                        {{3, 6}, 0, 3, 1, "Shard(0, {3, 0})"}, {{0, 9}, 2, 4, 1, "Shard(0, {0, 2})"},
                        {{5, 4}, 4, 9, 9, "Shard(0, {1, 0})"}, {{5, 4}, 7, 3, 1, "Shard(0, {0, 0})"}};
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (const Kept& c : cases) {
      const Tensor x = shard_of(make_tensor({9, 2}, 5), mesh, {shard(0, c.from)});
      mesh->group().reset_stats();
      const Tensor y = x.slice(0, c.start, c.end, c.step);
      EXPECT_EQ(spec(y)->placements()[0].to_string(), c.expected);
      EXPECT_EQ(mesh->group().stats().total().messages, 0);
    }
  });
}

// The gradient of a slice finds the cut of a balanced tensor again; a row of a cut dim costs one row.
TEST(Slice, NothingButTheNeededRowsMoves) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    Tensor x = shard_of(make_tensor({10, 6}, 6), mesh, {shard(0)}).requires_grad_(true);
    mesh->group().reset_stats();
    const Tensor y = x.slice(0, 5, 9, 2);
    y.backward(shard_of(make_tensor({2, 6}, 7), mesh, spec(y)->placements()));
    EXPECT_EQ(mesh->group().stats().total().bytes, 0);
    EXPECT_EQ(spec(x.grad()), spec(x));
    x.detach().select(0, 5);
    const int64_t sent = mesh->rank() == 1 ? 2 * 6 * 8 : 0;
    EXPECT_EQ(mesh->group().stats().total().bytes, sent);
  });
}

// The gradient of a row is zero elsewhere: each rank makes its own block of it.
TEST(Slice, S26_GradientsOfRowsAreCutAsTheTensorWas) {
  const Tensor full = make_tensor({9, 7, 2}, 8), cotangent = make_tensor({7, 2}, 9);
  const std::vector<Placed> ways = {
      {{2}, {shard(0, {5, 4})}},
      {{3}, {shard(0, {4, 0, 5})}},
      {{4}, {shard(0, {0, 7, 0, 2})}},
      {{2, 2}, {shard(0, {3, 6}), shard(1, {3, 4})}},
      {{2, 2}, {shard(0, {5, 4}), shard(0)}},
      {{2, 2}, {replicate(), shard(0, {2, 7})}},
  };
  for (const Placed& way : ways) {
    on_mesh(way.mesh, [&](const MeshPtr& mesh) {
      // Not a leaf, whose hook would bring any gradient into form.
      const Tensor x = shard_of(full, mesh, way.placements).requires_grad_() * 1;
      for (const int64_t index : {0, 4, -1}) {
        const Tensor row = x.select(0, index);
        const Tensor given = shard_of(cotangent, mesh, spec(row)->placements());
        mesh->group().reset_stats();
        const Tensor grad = torch::autograd::grad({row}, {x}, {given})[0];
        EXPECT_EQ(mesh->group().stats().total().bytes, 0);
        EXPECT_EQ(spec(grad)->to_string(), spec(x)->to_string());
        EXPECT_EQ(difference(full_tensor(grad), at::select_backward(cotangent, {9, 7, 2}, 0, index), 0), "");
      }
    });
  }
}

// A sum over ranks that all have the tensor is reduced later, with other sums.
TEST(Slice, S26_GradientsOfRowsStaySums) {
  const Tensor full = make_tensor({9, 2}, 8);
  on_mesh({2, 2}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(full, mesh, {replicate(), shard(0, {7, 2})}).requires_grad_() * 1;
    const auto check = [&](const Tensor& read, const Tensor& cotangent, const Tensor& expected) {
      std::vector<Placement> placements = spec(read)->placements();
      placements[0] = partial();
      const Tensor given = shard_of(cotangent, mesh, placements);
      mesh->group().reset_stats();
      const Tensor grad = torch::autograd::grad({read}, {x}, {given})[0];
      EXPECT_EQ(mesh->group().stats().total().bytes, 0);
      EXPECT_TRUE(spec(grad)->partial(0));
      EXPECT_EQ(difference(full_tensor(grad), expected, 0), "");
    };
    const Tensor row = make_tensor({2}, 9);
    check(x.select(0, 6), row, at::select_backward(row, {9, 2}, 0, 6));
    check(x.select(-2, -1), row, at::select_backward(row, {9, 2}, 0, 8));
  });
}

// However the rows are named, and whether or not the gradient is a ShardTensor; also second derivatives.
TEST(Slice, S26_GradientsOfSlicesTakeAnyRange) {
  const Tensor full = make_tensor({9, 7, 2}, 8);
  struct Range {
    int64_t dim;
    std::optional<int64_t> start, end;
    int64_t step;
  };
  for (const Range& range : {Range{0, {}, {}, 4}, Range{-3, -4, {}, 1}, Range{0, {}, -2, 2}, Range{1, 3, 100, 3}}) {
    const auto run = [&](const Tensor& leaf, bool cut) {
      const Tensor x = leaf.requires_grad_() * 1, rows = x.slice(range.dim, range.start, range.end, range.step);
      Tensor sum = (rows * rows * rows).sum();
      const Tensor grad = torch::autograd::grad({sum}, {x}, {}, {}, /*create_graph=*/true)[0];
      const Tensor second = torch::autograd::grad({(grad * grad).sum()}, {leaf})[0];
      return cut ? List{full_tensor(grad), full_tensor(second)} : List{grad, second};
    };
    const List expected = run(full.clone(), false);
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const List got = run(shard_of(full, mesh, {shard(0, {5, 0, 4})}), true);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(difference(got[i], expected[i], 1e-12), "");
    });
  }
}

TEST(Slice, S26_GradientsOfRowsTakeTheMemoryOfABlock) {
  on_mesh({4}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(at::ones({64, 1000}, at::kDouble), mesh, {shard(0)}).requires_grad_() * 1;
    const Tensor row = x.select(0, 20), ones = at::ones_like(row);
    mesh->group().barrier();
    auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    const Tensor grad = torch::autograd::grad({row}, {x}, {ones})[0];
    EXPECT_LT(live->peak, 2 * 16 * 1000 * 8);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_slice
