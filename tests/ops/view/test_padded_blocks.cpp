// SPDX-License-Identifier: Apache-2.0
// Padding and joining by many rows: no rank alone gets them, and only rows that change their rank move: S26.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <tuple>

#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/live_bytes.h"
#include "tests/support/placement_cases.h"
#include "tests/support/sent_bytes.h"

namespace moonhalo::testing::test_padded_blocks {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

Sizes blocks(const Tensor& x) { return spec(x)->block_sizes(0); }

struct Row {
  const char* name;
  OutputCut policy;
  Sizes blocks;
  int64_t before, after;
  Sizes padded;
  int64_t moved;  // rows of the input, all ranks together
  double value = 0;
};

TEST(PaddedBlocks, S26_ManyNewRowsAreShared) {
  using enum OutputCut;
  for (const Row& row : {
           // The modes of a spectrum, put back among the waves that were left out.
           Row{"low waves", kGeometry, {12, 0, 0, 0}, 0, 52, {16, 16, 16, 16}, 0},
           Row{"high waves", kGeometry, {0, 0, 0, 12}, 52, 0, {16, 16, 16, 16}, 0},
           Row{"shared modes", kGeometry, {3, 3, 3, 3}, 0, 52, {16, 16, 16, 16}, 9, 1.5},
           Row{"halo", kGeometry, {4, 5, 4, 4}, 1, 2, {5, 5, 4, 6}, 0},
           Row{"halo of uneven blocks", kGeometry, {2, 11, 4, 3}, 1, 1, {3, 11, 4, 4}, 0},
           Row{"crop", kGeometry, {16, 16, 16, 16}, 0, -52, {12, 0, 0, 0}, 0},
           Row{"kept", kKeep, {12, 0, 0, 0}, 0, 52, {12, 0, 0, 52}, 0},
           Row{"balanced halo", kRebalance, {2, 11, 4, 3}, 1, 1, {6, 6, 5, 5}, 6, -2},
           Row{"balanced crop", kRebalance, {16, 16, 16, 16}, 0, -52, {3, 3, 3, 3}, 9},
       }) {
    const int64_t extent = c10::sum_integers(row.blocks);
    const Tensor full = at::randn({extent, 6}, at::kDouble), leaf = full.clone().requires_grad_();
    const auto pad = [&](const Tensor& x) { return at::constant_pad_nd(x, {0, 0, row.before, row.after}, row.value); };
    const Tensor expected = pad(leaf), gradient = torch::autograd::grad({cubed(expected).sum()}, {leaf})[0];
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const OutputCut policy = set_output_cut(row.policy);
      const Tensor x = shard_of(full, mesh, {shard(0, row.blocks)}).requires_grad_();
      mesh->group().reset_stats();
      const Tensor y = pad(x);
      EXPECT_EQ(bytes_of_all_ranks(*mesh), row.moved * 6 * 8) << row.name;
      EXPECT_EQ(blocks(y), row.padded) << row.name;
      EXPECT_EQ(difference(full_tensor(y), expected.detach(), 0), "") << row.name;
      const Tensor grad = torch::autograd::grad({cubed(y).sum()}, {x})[0];
      EXPECT_EQ(spec(grad), spec(x)) << row.name;
      EXPECT_EQ(difference(full_tensor(grad), gradient, 1e-12), "") << row.name;
      set_output_cut(policy);
    });
  }
}

// Other paddings grow blocks too.
TEST(PaddedBlocks, S26_MirroredRowsAreShared) {
  const auto full = make_tensor({12, 6}, 1);
  on_mesh({4}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(full, mesh, {shard(0, {6, 6, 0, 0})});
    const Tensor columns = x.t().unsqueeze(0);  // [1, 6, 12]: padded in its last dim
    for (const char* mode : {"reflect", "replicate", "circular"}) {
      const Tensor padded = at::pad(columns, {0, 11}, mode);
      EXPECT_EQ(spec(padded)->block_sizes(2), (Sizes{6, 6, 6, 5})) << mode;
      EXPECT_EQ(difference(full_tensor(padded), at::pad(full.t().unsqueeze(0), {0, 11}, mode), 0), "") << mode;
    }
  });
}

// A gradient that is zero but for the rows of a slice is padded, too.
struct SliceRow {
  const char* name;
  OutputCut policy;
  Sizes blocks;  // of the slice's gradient
  int64_t start, step, extent;
  Sizes padded;
  int64_t moved;  // rows, all ranks together: there, and as many back
};

TEST(PaddedBlocks, S26_ZerosAroundTheGradientOfASliceAreShared) {
  using enum OutputCut;
  for (const SliceRow& row : {
           SliceRow{"balanced", kGeometry, {3, 3, 3, 3}, 0, 1, 64, {16, 16, 16, 16}, 9},
           SliceRow{"in place", kGeometry, {12, 0, 0, 0}, 0, 1, 64, {16, 16, 16, 16}, 0},
           SliceRow{"at the end", kGeometry, {3, 3, 3, 3}, 52, 1, 64, {16, 16, 16, 16}, 9},
           SliceRow{"halo of uneven blocks", kGeometry, {2, 11, 4, 3}, 1, 1, 22, {3, 11, 4, 4}, 0},
           SliceRow{"uneven on purpose", kGeometry, {2, 2, 2, 30}, 0, 1, 52, {2, 2, 2, 46}, 0},
           SliceRow{"zeros are most", kGeometry, {2, 2, 2, 18}, 0, 1, 52, {13, 13, 13, 13}, 22},
           SliceRow{"steps", kGeometry, {2, 2, 0, 2}, 1, 3, 18, {5, 6, 2, 5}, 0},
           SliceRow{"kept", kKeep, {3, 3, 3, 3}, 0, 1, 64, {3, 3, 3, 55}, 0},
           SliceRow{"kept in place", kKeep, {12, 0, 0, 0}, 0, 1, 64, {16, 16, 16, 16}, 0},
           SliceRow{"balanced halo", kRebalance, {2, 11, 4, 3}, 1, 1, 22, {6, 6, 5, 5}, 6},
           SliceRow{"balanced steps", kRebalance, {4, 1, 0, 3}, 2, 3, 26, {7, 7, 6, 6}, 4},
       }) {
    const int64_t rows = c10::sum_integers(row.blocks), end = row.start + row.step * (rows - 1) + 1;
    const Tensor full = make_tensor({rows, 6}, 1), cotangent = make_tensor({row.extent, 6}, 2);
    const auto put = [&](const Tensor& x) {
      return at::slice_backward(x, {row.extent, 6}, 0, row.start, end, row.step);
    };
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const OutputCut policy = set_output_cut(row.policy);
      const Tensor x = shard_of(full, mesh, {shard(0, row.blocks)}).requires_grad_();
      mesh->group().reset_stats();
      const Tensor y = put(x);
      const Tensor grad = torch::autograd::grad({y}, {x}, {shard_of(cotangent, mesh, spec(y)->placements())})[0];
      EXPECT_EQ(bytes_of_all_ranks(*mesh), 2 * row.moved * 6 * 8) << row.name;
      EXPECT_EQ(blocks(y), row.padded) << row.name;
      EXPECT_EQ(difference(full_tensor(y), put(full), 0), "") << row.name;
      EXPECT_EQ(difference(full_tensor(grad), cotangent.slice(0, row.start, end, row.step), 0), "") << row.name;
      set_output_cut(policy);
    });
  }
}

struct JoinRow {
  const char* name;
  OutputCut policy;
  Sizes first, second;  // blocks of the pieces; none: every rank has the whole piece
  int64_t rows;         // of the second
  Sizes joined;
  int64_t moved;  // rows, all ranks together
};

TEST(PaddedBlocks, S26_JoinedRowsAreShared) {
  using enum OutputCut;
  for (const JoinRow& row : {
           JoinRow{"many new rows", kGeometry, {3, 3, 3, 3}, {}, 52, {16, 16, 16, 16}, 9},
           JoinRow{"new rows in place", kGeometry, {12, 0, 0, 0}, {}, 52, {16, 16, 16, 16}, 0},
           JoinRow{"few new rows", kGeometry, {4, 5, 4, 4}, {}, 2, {4, 5, 4, 6}, 0},
           JoinRow{"uneven blocks", kGeometry, {2, 11, 4, 3}, {2, 11, 4, 3}, 20, {4, 22, 8, 6}, 21},
           JoinRow{"many new rows, kept", kKeep, {3, 3, 3, 3}, {}, 52, {3, 3, 3, 55}, 0},
           JoinRow{"few new rows, balanced", kRebalance, {2, 11, 4, 3}, {}, 2, {6, 6, 5, 5}, 5},
           JoinRow{"uneven blocks, balanced", kRebalance, {2, 11, 4, 3}, {2, 11, 4, 3}, 20, {10, 10, 10, 10}, 32},
       }) {
    const int64_t extent = c10::sum_integers(row.first);
    const Tensor a = make_tensor({extent, 6}, 1), b = make_tensor({row.rows, 6}, 2), whole = at::cat({a, b}, 0);
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const OutputCut policy = set_output_cut(row.policy);
      const Tensor x = shard_of(a, mesh, {shard(0, row.first)}).requires_grad_();
      const Tensor y = shard_of(b, mesh, {row.second.empty() ? replicate() : shard(0, row.second)});
      mesh->group().reset_stats();
      const Tensor joined = at::cat({x, y}, 0);
      EXPECT_EQ(bytes_of_all_ranks(*mesh), row.moved * 6 * 8) << row.name;
      EXPECT_EQ(blocks(joined), row.joined) << row.name;
      EXPECT_EQ(difference(full_tensor(joined), whole, 0), "") << row.name;
      const Tensor grad = torch::autograd::grad({joined.square().sum()}, {x})[0];
      EXPECT_EQ(difference(full_tensor(grad), 2 * a, 0), "") << row.name;
      set_output_cut(policy);
    });
  }
}

// Windows of 53 rows that begin in the first 12, and windows of 3.
TEST(PaddedBlocks, S26_GradientsOfWindowsAreShared) {
  using enum OutputCut;
  for (const auto& [policy, size, expected] :
       {std::tuple{kGeometry, 53, Sizes{16, 16, 16, 16}}, std::tuple{kKeep, 53, Sizes{3, 3, 3, 55}},
        std::tuple{kRebalance, 53, Sizes{16, 16, 16, 16}}, std::tuple{kGeometry, 3, Sizes{3, 3, 3, 5}},
        std::tuple{kRebalance, 3, Sizes{4, 4, 3, 3}}}) {
    const int64_t extent = 11 + size;
    const Tensor full = make_tensor({12, 2, size}, 1);
    const auto fold = [&](const Tensor& x) { return at::unfold_backward(x, {extent, 2}, 0, size, 1); };
    on_mesh({4}, [&](const MeshPtr& mesh) {
      const OutputCut before = set_output_cut(policy);
      const Tensor rows = fold(shard_of(full, mesh, {shard(0)}));
      set_output_cut(before);
      EXPECT_EQ(blocks(rows), expected) << name(policy) << " " << size;
      EXPECT_EQ(difference(full_tensor(rows), fold(full), 1e-12), "") << name(policy) << " " << size;
    });
  }
}

TEST(PaddedBlocks, S26_ZerosBesideADiagonalAreShared) {
  const Tensor full = make_tensor({2, 12}, 1);
  for (const OutputCut policy : {OutputCut::kGeometry, OutputCut::kKeep, OutputCut::kRebalance}) {
    for (const int64_t offset : {0, -52}) {
      const bool kept = policy == OutputCut::kKeep;
      const Sizes padded = !kept ? Sizes{16, 16, 16, 16} : offset == 0 ? Sizes{3, 3, 3, 55} : Sizes{55, 3, 3, 3};
      const auto put = [&](const Tensor& x) { return at::diagonal_backward(x, {2, 64, 12}, offset, 1, 2); };
      const auto embed = [&](const Tensor& x) { return at::diag_embed(x, offset, 1, 2); };
      on_mesh({4}, [&](const MeshPtr& mesh) {
        const OutputCut before = set_output_cut(policy);
        const Tensor x = shard_of(full, mesh, {shard(1)});
        const Tensor y = put(x), z = embed(x);
        set_output_cut(before);
        EXPECT_EQ(spec(y)->block_sizes(1), padded) << name(policy);
        EXPECT_EQ(difference(full_tensor(y), put(full), 0), "") << name(policy);
        EXPECT_EQ(difference(full_tensor(z), embed(full), 0), "") << name(policy);
      });
    }
  }
}

// The last of 16 ranks needs no more than the others.
TEST(PaddedBlocks, S26_PeaksAreShared) {
  std::array<std::atomic<int64_t>, 16> peaks{};
  on_mesh({16}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(at::ones({12, 1000}, at::kDouble), mesh, {shard(0)});
    mesh->group().barrier();
    auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    const Tensor y = at::constant_pad_nd(x, {0, 0, 0, 500}).mul(2);
    peaks[mesh->rank()] = live->peak;
  });
  for (const auto& peak : peaks) EXPECT_LE(peak, 8 * 1000 * (3 * 32 + 12));
}

}  // namespace
}  // namespace moonhalo::testing::test_padded_blocks
