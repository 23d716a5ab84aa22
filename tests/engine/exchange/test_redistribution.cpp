// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/fewest.h"
#include "tests/support/oracle.h"
#include "tests/support/sent_bytes.h"

namespace moonhalo::testing::test_redistribution {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<int64_t> kShape = {7, 5};
constexpr auto kAvg = ReduceOp::kAvg, kMax = ReduceOp::kMax, kMin = ReduceOp::kMin, kProduct = ReduceOp::kProduct;

// Placements, or what placements cannot say: one dim cut by the mesh dims in this order.
struct Way {
  std::vector<Placement> placements;
  Cut rows = {};

  SpecPtr on(const MeshPtr& mesh) const {
    if (!rows) return make_spec(mesh, kShape, placements);
    Layout layout(mesh, kShape);
    layout.cuts[0] = rows;
    return intern(std::move(layout));
  }
};

// Some sizes of n blocks that add up to `extent`; others for another variant.
std::vector<int64_t> uneven(int64_t extent, int64_t n, int variant) {
  std::vector<int64_t> sizes(n, 0);
  sizes[variant == 0 ? n - 1 : 0] = extent - 1;
  sizes[variant == 0 ? 0 : n / 2] += 1;
  return sizes;
}

std::vector<Way> ways_on_a_line(int64_t n) {
  return {{{replicate()}},
          {{partial()}},
          {{partial(kAvg)}},
          {{partial(kMax)}},
          {{partial(kMin)}},
          {{partial(kProduct)}},
          {{shard(0)}},
          {{shard(0, uneven(7, n, 0))}},
          {{shard(0, uneven(7, n, 1))}},
          {{shard(1)}},
          {{shard(1, uneven(5, n, 0))}}};
}

std::vector<Way> ways_on_a_grid(int64_t a, int64_t b) {
  const Placement r = replicate(), p = partial();
  std::vector<int64_t> nested(a * b, 0);
  nested[0] = 2, nested[1] = 1, nested[a * b - 1] = 4;
  return {{{r, r}},
          {{r, p}},
          {{p, r}},
          {{p, p}},
          {{partial(kAvg), p}},
          {{partial(kMax), partial(kMax)}},
          {{p, shard(0, uneven(7, b, 0))}},
          {{shard(0, uneven(7, a, 0)), p}},
          {{shard(1), partial(kMin)}},
          {{partial(kProduct), shard(1, uneven(5, b, 1))}},
          {{shard(0), r}},
          {{shard(0, uneven(7, a, 1)), r}},
          {{r, shard(0)}},
          {{r, shard(1, uneven(5, b, 0))}},
          {{shard(0), shard(1)}},
          {{shard(1, uneven(5, a, 0)), shard(0)}},
          {{shard(0), shard(0)}},
          {{shard(0, uneven(7, a, 0)), shard(0)}},
          {{shard(0), shard(0, nested)}},
          {{}, Cut{{1, 0}, balanced_sizes(7, a * b)}},
          {{}, Cut{{1, 0}, nested}}};
}

std::vector<Way> ways_on(const std::vector<int64_t>& shape) {
  return shape.size() == 1 ? ways_on_a_line(shape[0]) : ways_on_a_grid(shape[0], shape[1]);
}

// Values, gradients, second gradients

// From every way to every other, all targets in one program; `there` makes the mesh of the targets.
void check_values(const std::vector<int64_t>& mesh_shape, const std::vector<Way>& targets,
                  const std::function<MeshPtr(const MeshPtr&)>& there, bool async = false) {
  for (const Way& from : ways_on(mesh_shape)) {
    const Program program = [&](const std::vector<at::Tensor>& t) {
      std::vector<at::Tensor> results;
      if (!is_shard_tensor(t[0])) {
        for (size_t i = 0; i < targets.size(); ++i) results.push_back(t[0] * t[0]);
        return results;
      }
      const MeshPtr mesh = spec(t[0])->mesh(), target = there(mesh);
      const at::Tensor start = from.rows ? redistribute(t[0], from.on(mesh)) : t[0];
      for (const Way& to : targets) {
        const SpecPtr expected = to.on(target);
        const at::Tensor moved = async ? redistribute_async(start, expected).wait() : redistribute(start, expected);
        EXPECT_EQ(spec(moved), expected) << spec(moved)->to_string();
        const at::Tensor square = moved * moved;
        // The oracle holds cotangents by placements, on the mesh of the inputs.
        results.push_back(target == mesh && !to.rows ? square : redistribute(square, replicated(mesh, kShape)));
      }
      return results;
    };
    SCOPED_TRACE(from.rows ? "nested {1, 0}" : ::testing::PrintToString(from.placements.size()));
    expect_same_as_plain(mesh_shape, {{make_tensor(kShape, 5), from.placements}}, program, {.double_backward = true});
  }
}

MeshPtr same(const MeshPtr& mesh) { return mesh; }

TEST(Redistribute, D04_EveryPairOnALine) {  // S14, S23
  for (const int64_t n : {2, 3, 4}) check_values({n}, ways_on_a_line(n), same);
}

TEST(Redistribute, D04_EveryPairOnAGrid) {
  check_values({2, 2}, ways_on_a_grid(2, 2), same);
  check_values({2, 3}, ways_on_a_grid(2, 3), same);
}

TEST(Redistribute, SumsOfMaximaAreReducedFromTheLastMeshDim) {
  const std::vector<Way> mixed = {{{partial(), partial(kMax)}},         {{partial(kMax), partial()}},
                                  {{partial(kProduct), partial(kAvg)}}, {{replicate(), partial(kMin)}},
                                  {{replicate(), replicate()}},         {{shard(0), partial()}}};
  for (const Way& from : mixed) {
    for (const Way& to : mixed) {
      expect_same_as_plain({2, 2}, {{make_tensor(kShape, 6), from.placements}}, [&](const std::vector<at::Tensor>& t) {
        if (!is_shard_tensor(t[0])) return t;
        return std::vector<at::Tensor>{full_tensor(redistribute(t[0], to.placements))};
      });
    }
  }
}

TEST(Redistribute, D04_EveryDtypeIsMovedAsItIs) {
  for (const auto dtype : {at::kLong, at::kByte, at::kBool, at::kFloat, at::kBFloat16, at::kHalf, at::kComplexDouble}) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const at::Tensor full = make_tensor(kShape, 7, dtype);
      for (const Way& from : ways_on_a_line(3)) {
        if (from.on(mesh)->has_partial()) continue;
        const at::Tensor x = shard_of(full, mesh, from.placements);
        for (const Way& to : ways_on_a_line(3)) {
          const auto op = to.on(mesh)->partial(0);
          const bool whole = at::isIntegralType(dtype, true);
          if ((op == kAvg && whole) || ((op == kMax || op == kMin) && at::isComplexType(dtype))) continue;

          const at::Tensor back = full_tensor(redistribute(x, to.placements));

          // The average of three equal numbers may differ in the last bit.
          EXPECT_EQ(difference(back, full, op == kAvg ? 1e-6 : 0), "")
              << dtype << ": " << spec(x)->to_string() << " to " << to.placements[0].to_string();
        }
      }
    });
  }
}

// Blocks so large that sums are made in other ways: straight into the result, in huge pages.
TEST(Redistribute, LargeBlocksAreSummedAlike) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const std::vector<Placement> targets = {replicate(), shard(0, {5, 700, 15}), shard(1, {0, 401, 400}), partial()};
    for (const auto dtype : {at::kDouble, at::kHalf}) {
      const at::Tensor full = make_tensor({720, 801}, 4, dtype), first = full * (mesh->rank() + 1);
      for (const ReduceOp op : {ReduceOp::kSum, kAvg, kMax}) {
        for (const bool columns : {false, true}) {  // the addends are by rows or by columns
          const at::Tensor addend = columns ? first.t().contiguous().t() : first, before = addend.clone();
          const at::Tensor x = from_local(addend, make_spec(mesh, full.sizes(), {partial(op)}));
          at::Tensor expected = (full * 1).to(at::kDouble) + (full * 2).to(at::kDouble) + (full * 3).to(at::kDouble);
          if (op == kAvg) expected = expected / 3;
          if (op == kMax) expected = at::maximum(full, full * 3).to(at::kDouble);
          for (const Placement& to : targets) {
            if (to.is_partial() && op != ReduceOp::kSum) continue;
            const at::Tensor result = full_tensor(redistribute(x, {to})).to(at::kDouble);
            EXPECT_TRUE(
                at::allclose(result, expected, dtype == at::kHalf ? 2e-3 : 1e-14, dtype == at::kHalf ? 2e-3 : 1e-14))
                << dtype << " " << name(op) << " to " << to.to_string();
          }
          EXPECT_TRUE(addend.equal(before));
        }
      }
    }
  });
}

// The ranks make the same calls, however their addends are in memory.
TEST(Redistribute, AddendsMayLieInOtherStridesOnEveryRank) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{7, 5}, {600, 500}}) {
    run_ranks(3, [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", {3});
      const auto addend = [&](int64_t rank) { return make_tensor(shape, 10 + rank); };
      const at::Tensor lies = world.rank() == 1 ? addend(1).t().contiguous().t() : addend(world.rank());
      const at::Tensor sum = addend(0) + addend(1) + addend(2);
      const at::Tensor x = from_local(lies, mesh, {partial()});
      for (const Placement& to :
           {replicate(), shard(0), shard(1), shard(0, {0, shape[0] - 1, 1}), shard(1, {2, 0, shape[1] - 2})})
        EXPECT_EQ(difference(full_tensor(redistribute(x, {to})), sum, 1e-12), "") << to.to_string();
    });
  }
}

TEST(Redistribute, TheResultIsNoViewOfTheSource) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor(kShape, 8);
    for (const Way& from : ways_on_a_line(2)) {
      for (const Way& to : ways_on_a_line(2)) {
        const at::Tensor x = shard_of(full, mesh, from.placements);
        if (spec(x) == to.on(mesh)) continue;

        redistribute(x, to.placements).zero_();

        EXPECT_EQ(difference(full_tensor(x), full, 1e-14), "")
            << spec(x)->to_string() << " to " << to.placements[0].to_string();
      }
    }
  });
}

// Bytes

void check_bytes(const std::vector<int64_t>& mesh_shape, const std::vector<int64_t>& target_shape,
                 const std::function<MeshPtr(const MeshPtr&)>& there) {
  const auto sources = ways_on(mesh_shape), targets = ways_on(target_shape);
  on_mesh(mesh_shape, [&](const MeshPtr& mesh) {
    const MeshPtr target = there(mesh);
    std::vector<int64_t> ranks(mesh->size());
    std::iota(ranks.begin(), ranks.end(), int64_t{0});
    if (target != mesh) ranks = target->ranks_of(*mesh);
    for (size_t i = 0; i < sources.size() * targets.size(); ++i) {
      const at::Tensor x = redistribute(from_local(make_tensor(kShape, 9), replicated(mesh, kShape)),
                                        sources[i / targets.size()].on(mesh));
      const SpecPtr to = targets[i % targets.size()].on(target);
      mesh->group().reset_stats();
      redistribute(x, to);
      const int64_t sent = bytes_of_all_ranks(*mesh);
      if (mesh->rank() == 0)
        EXPECT_EQ(sent, fewest_elements(*spec(x), *to, ranks) * 8) << spec(x)->to_string() << " to " << to->to_string();
    }
  });
}

TEST(Redistribute, BytesAreTheFewestOnALine) {
  for (const int64_t n : {2, 3, 4}) check_bytes({n}, {n}, same);
}

TEST(Redistribute, BytesAreTheFewestOnAGrid) {
  check_bytes({2, 2}, {2, 2}, same);
  check_bytes({2, 3}, {2, 3}, same);
  check_bytes({3, 2}, {3, 2}, same);
}

TEST(Redistribute, NoCallWhereNothingMoves) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor(kShape, 1);
    const at::Tensor whole = shard_of(full, mesh, {}), cut = shard_of(full, mesh, {shard(0, {2, 1, 4})});
    mesh->group().reset_stats();

    redistribute(whole, {shard(1)});
    redistribute(whole, {partial()});
    redistribute(cut, {partial()});
    redistribute(cut, {partial(kMax)});

    EXPECT_EQ(mesh->group().stats().total().calls, 0);
  });
}

// Between meshes

// A mesh of the same ranks: of this shape, and rank r of `mesh` standing at place order[r].
std::function<MeshPtr(const MeshPtr&)> arranged(std::vector<int64_t> shape, std::vector<int64_t> order = {}) {
  return [=](const MeshPtr& mesh) {
    if (order.empty()) return init_device_mesh(mesh->group(), "cpu", shape);
    return init_device_mesh(*mesh->group().split(0, static_cast<int>(order[mesh->rank()])), "cpu", shape);
  };
}

struct OtherMesh {
  std::vector<int64_t> from, to, order;
};
const std::vector<OtherMesh> kOtherMeshes = {
    {{4}, {2, 2}, {}}, {{2, 2}, {4}, {}},    {{2, 2}, {2, 2}, {0, 2, 1, 3}},   {{3}, {3}, {2, 0, 1}},
    {{6}, {2, 3}, {}}, {{2, 3}, {3, 2}, {}}, {{2, 3}, {6}, {5, 3, 4, 0, 2, 1}}};

TEST(Redistribute, D04_FromOneMeshToAnotherOfTheSameRanks) {
  for (const auto& [from, to, order] : kOtherMeshes) check_values(from, ways_on(to), arranged(to, order));
}

TEST(Redistribute, BytesAreTheFewestBetweenMeshes) {
  for (const auto& [from, to, order] : kOtherMeshes) check_bytes(from, to, arranged(to, order));
}

TEST(Redistribute, MeshesOfOtherRanksAreRefusedOnEveryRank) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const MeshPtr rows = (*mesh)["dim_0"], columns = (*mesh)["dim_1"];
    const at::Tensor wide = shard_of(make_tensor({4}, 1), mesh, {shard(0), replicate()});
    const at::Tensor narrow = shard_of(make_tensor({4}, 1), rows, {shard(0)});

    EXPECT_THAT(
        message_of([&] { redistribute(wide, rows, {shard(0)}); }),
        StartsWith(
            "redistribute: the target mesh does not hold the same ranks as the tensor's mesh\n  have  [4] on mesh(2x2: "
            "dim_0, dim_1): Shard(0, {2, 2}), Replicate() (4 ranks), target mesh(2: dim_0) (2 ranks)\n  fix  "));
    EXPECT_THAT(message_of([&] { redistribute(narrow, columns, {shard(0)}); }),
                HasSubstr("does not hold the same ranks"));
    EXPECT_THAT(message_of([&] {
                  redistribute(narrow, columns, {shard(0), replicate()});
                }),
                HasSubstr("redistribute: 2 placements for mesh(2: dim_1), which has 1 dimensions"));
    EXPECT_THAT(message_of([&] { redistribute(narrow, make_spec(rows, {5}, {shard(0)})); }),
                HasSubstr("redistribute: the target is of another shape"));
  });
}

// Asynchronous

TEST(Redistribute, V24_AsyncFlagGivesTheSame) {
  check_values({3}, ways_on_a_line(3), same, /*async=*/true);
  check_values({2, 2}, ways_on_a_grid(2, 2), same, /*async=*/true);
  check_values({4}, ways_on_a_grid(2, 2), arranged({2, 2}), /*async=*/true);
}

TEST(Redistribute, V24_OtherCallsMayStandBetweenStartAndWait) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor({90, 50}, 2);
    const at::Tensor x = shard_of(full, mesh, {shard(0)}).requires_grad_();

    PendingTensor columns = redistribute_async(x, {shard(1)}), whole = redistribute_async(x, {replicate()});
    const at::Tensor sum = full_tensor(x.detach().sum());
    redistribute_async(x, {shard(1, {0, 50, 0})});  // no wait()
    const at::Tensor b = whole.wait(), a = columns.wait();

    EXPECT_TRUE(a.is_same(columns.wait()));
    EXPECT_TRUE(full_tensor(a.detach()).equal(full));
    EXPECT_TRUE(to_local(b.detach()).equal(full));
    EXPECT_EQ(difference(sum, full.sum(), 1e-10), "");
    (a * b).sum().backward();
    EXPECT_EQ(difference(full_tensor(x.grad()), 2 * full, 1e-14), "");
  });
}

TEST(Redistribute, V24_WritingBeforeWaitIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    at::Tensor x = shard_of(make_tensor(kShape, 2), mesh, {shard(0)});
    PendingTensor pending = redistribute_async(x, {shard(1)});
    x.add_(1);

    EXPECT_THAT(message_of([&] { pending.wait(); }),
                StartsWith("redistribute_async: the tensor was written in place before wait()\n  have  "));
    EXPECT_THAT(message_of([&] { PendingTensor().wait(); }), StartsWith("PendingTensor: nothing was started"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_redistribution
