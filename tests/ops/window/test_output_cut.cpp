// SPDX-License-Identifier: Apache-2.0
// The places of window operators' outputs: block sizes by policy, the same values under each, backward too; and
// rebalance.
#include "moonhalo/engine/tensor/output_cut.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/autograd_ways.h"

namespace moonhalo::testing::test_output_cut {
namespace {

using Sizes = std::vector<int64_t>;

// Sets this thread's cut while it lives.
class Policy {
 public:
  explicit Policy(OutputCut cut) : before_(set_output_cut(cut)) {}
  ~Policy() { set_output_cut(before_); }
  Policy(const Policy&) = delete;

 private:
  OutputCut before_;
};

constexpr OutputCut kPolicies[] = {OutputCut::kGeometry, OutputCut::kKeep, OutputCut::kRebalance};

struct PolicyCase {
  const char* name;
  std::function<at::Tensor(X)> run;
  Sizes geometry, keep, rebalance;
};

// Blocks of the result, by policy, of 12 rows that are cut into {2, 9, 1}.
const PolicyCase kPolicyCases[] = {
    {"same_extent",
     [](X x) {
       return at::conv1d(x, at::ones({1, 1, 3}, at::kDouble), {}, 1, 1);
     },
     {2, 9, 1},
     {2, 9, 1},
     {4, 4, 4}},
    {"even_kernel",
     [](X x) {
       return at::conv1d(at::constant_pad_nd(x, {0, 3}), at::ones({1, 1, 4}, at::kDouble));
     },
     {1, 9, 2},
     {2, 9, 1},
     {4, 4, 4}},
    {"valid",
     [](X x) {
       return at::conv1d(x, at::ones({1, 1, 5}, at::kDouble));
     },
     {0, 8, 0},
     {2, 6, 0},
     {3, 3, 2}},
    {"strided",
     [](X x) {
       return at::conv1d(x, at::ones({1, 1, 3}, at::kDouble), {}, 2, 1);
     },
     {1, 5, 0},
     {1, 5, 0},
     {2, 2, 2}},
    {"transposed",
     [](X x) {
       return at::conv_transpose1d(x, at::ones({1, 1, 2}, at::kDouble), {}, 2);
     },
     {4, 18, 2},
     {4, 18, 2},
     {8, 8, 8}},
    {"pool_with_even_window",
     [](X x) { return at::max_pool1d(x, 2, 1, 1).slice(2, 0, 13); },
     {3, 9, 1},
     {2, 9, 2},
     {5, 4, 4}},
    {"interpolate_up", [](X x) { return at::upsample_linear1d(x, {24}, false); }, {4, 18, 2}, {4, 18, 2}, {8, 8, 8}},
    {"interpolate_antialiased_down",
     [](X x) {
       return at::_upsample_bilinear2d_aa(x.unsqueeze(3), {5, 1}, false).squeeze(3);
     },
     {1, 4, 0},
     {1, 4, 0},
     {2, 2, 1}},
    {"interpolate_to_the_same_extent",
     [](X x) { return at::upsample_nearest1d(x, {12}); },
     {2, 9, 1},
     {2, 9, 1},
     {4, 4, 4}},
    {"adaptive_average", [](X x) { return at::adaptive_avg_pool1d(x, 6); }, {1, 5, 0}, {1, 5, 0}, {2, 2, 2}},
    {"adaptive_maximum",
     [](X x) { return std::get<1>(at::adaptive_max_pool1d(x, 7)); },
     {1, 5, 1},
     {1, 5, 1},
     {3, 2, 2}},
};

TEST(OutputCut, X03_BlockSizesFollowThePolicy) {
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 1, 12}, 1), mesh, {shard(2, {2, 9, 1})});
    for (const PolicyCase& c : kPolicyCases) {
      const Sizes* expected[] = {&c.geometry, &c.keep, &c.rebalance};
      // Twice: a decision cached under one policy must not serve another.
      for (int i = 0; i < 6; ++i) {
        const Policy policy(kPolicies[i % 3]);
        EXPECT_EQ(spec(c.run(x))->block_sizes(2), *expected[i % 3]) << c.name << " " << name(kPolicies[i % 3]);
      }
    }
  });
}

TEST(OutputCut, X03_ValuesAndGradientsDoNotDependOnIt) {
  const at::Tensor weight = make_tensor({4, 4, 3, 2}, 2), up = make_tensor({4, 2, 3, 3}, 3);
  const std::vector<ProgramN> programs = {
      {"conv_even_kernel", [](const List& t) { return List{at::conv2d(t[0], t[1], {}, 1, 1).square()}; }},
      {"conv_strided",
       [](const List& t) {
         return List{at::conv2d(t[0], t[1], {}, {2, 3}, {1, 1}).square()};
       }},
      {"conv_dilated",
       [](const List& t) {
         return List{at::conv2d(t[0], t[1], {}, 1, {2, 1}, {2, 1})};
       }},
      {"transposed",
       [](const List& t) {
         return List{at::conv_transpose2d(t[0], t[2], {}, {2, 1}, 1)};
       }},
      {"pools",
       [](const List& t) {
         return List{at::max_pool2d(t[0], {3, 2}, {2, 1}, {1, 1}), at::avg_pool2d(t[0], {2, 2}, {1, 2}, {1, 0})};
       }},
      {"unfold",
       [](const List& t) {
         return List{at::im2col(t[0], {3, 2}, {1, 1}, {1, 0}, {2, 1})};
       }},
      {"interpolate",
       [](const List& t) {
         return List{at::upsample_bilinear2d(t[0], {11, 3}, true).square(),
                     at::upsample_nearest2d(t[0], {4, 9}).square(), at::upsample_bicubic2d(t[0], {7, 5}, false),
                     at::_upsample_bilinear2d_aa(t[0], {3, 4}, false)};
       }},
      {"adaptive_pools",
       [](const List& t) {
         return List{at::adaptive_avg_pool2d(t[0], {5, 3}).square(),
                     std::get<0>(at::adaptive_max_pool2d(t[0], {4, 8})).square()};
       }},
      {"two_in_a_row",
       [](const List& t) { return List{at::conv2d(at::conv2d(t[0], t[1], {}, 1, 1), t[1], {}, 2, 1)}; }},
  };
  for (const OutputCut cut : kPolicies) {
    SCOPED_TRACE(name(cut));
    std::vector<ProgramN> under;
    for (const ProgramN& program : programs) {
      // Backward runs on this thread too, after the program: outside its policy.
      under.push_back({program.name, [cut, run = program.run](const List& t) {
                         const Policy policy(cut);
                         return run(t);
                       }});
    }
    expect_on_ways(under, [&](const PlacementCase& way) {
      return std::vector<Input>{{.full = kField, .placements = way.placements}, {.full = weight}, {.full = up}};
    });
  }
}

TEST(OutputCut, BackwardUnderThePolicyToo) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor full = make_tensor({1, 1, 12}, 1), weight = make_tensor({1, 1, 3}, 2);
    const auto gradient = [&](const at::Tensor& x) {
      const at::Tensor leaf = x.detach().requires_grad_();
      return torch::autograd::grad({at::conv1d(leaf, weight, {}, 2, 1).square().sum()}, {leaf})[0];
    };
    const at::Tensor expected = gradient(full), x = shard_of(full, mesh, {shard(2, {2, 9, 1})});
    const Policy policy(OutputCut::kRebalance);
    const at::Tensor g = gradient(x);
    EXPECT_EQ(spec(g), spec(x));
    EXPECT_EQ(difference(full_tensor(g), expected, 1e-12), "");
  });
}

TEST(OutputCut, RebalanceEvensBlocksAndMovesOnlyWhatMustMove) {
  const auto evened = [](const List& t) { return List{rebalance(t[0]).square(), rebalance(t[0], -1) * 2}; };
  for (const PlacementCase& held : kPlacements972) {
    SCOPED_TRACE(held.name);
    expect_same_as_plain(held.mesh, {{.full = make_tensor({9, 7, 2}, 1), .placements = held.placements}}, evened,
                         {.double_backward = true});
  }
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({9, 7}, 1), mesh, {shard(0, {8, 1}), shard(1, {2, 5})});
    EXPECT_EQ(spec(rebalance(x)), make_spec(mesh, {9, 7}, {shard(0), shard(1)}));
    EXPECT_EQ(spec(rebalance(x, 0)), make_spec(mesh, {9, 7}, {shard(0), shard(1, {2, 5})}));
    const at::Tensor even = rebalance(x, -2);
    mesh->group().reset_stats();
    EXPECT_TRUE(rebalance(even, 0).is_same(even));
    rebalance(x, 0);
    // Rows 5 to 7 of each column block change owners.
    const Sizes rows = {3, 3, 0, 0}, columns = {2, 5, 2, 5};
    EXPECT_EQ(mesh->group().stats().total().bytes, rows[mesh->rank()] * columns[mesh->rank()] * 8);
  });
  const at::Tensor plain = make_tensor({3}, 1);
  EXPECT_TRUE(rebalance(plain).is_same(plain));
  EXPECT_THAT(message_of([&] { rebalance(plain, 1); }), ::testing::HasSubstr("Dimension out of range"));
}

TEST(OutputCut, RanksMustAgree) {
  EXPECT_THAT(message_of([] { parse_output_cut("rebalanced"); }),
              ::testing::StartsWith("set_output_cut: unknown policy 'rebalanced'; did you mean 'rebalance'?"));
  on_mesh({2}, [](const MeshPtr& mesh) {
    const OutputCut mine = mesh->rank() == 0 ? OutputCut::kKeep : OutputCut::kRebalance;
    EXPECT_THAT(message_of([&] { set_output_cut(mine, &mesh->group()); }),
                ::testing::StartsWith("set_output_cut: ranks 0 and 1 want different policies"));
    EXPECT_EQ(output_cut(), OutputCut::kGeometry);
  });
}

// A block without rows before the first row of the domain gets no outputs: padding belongs to the first rank that has
// rows.
TEST(OutputCut, LeadingEmptyBlocksStayEmpty) {
  const at::Tensor full = make_tensor({2, 3, 9, 4}, 3), w = make_tensor({3, 3, 3, 3}, 5);
  const at::Tensor columns = make_tensor({2, 3 * 9, 25}, 4);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(full, mesh, {shard(2, {0, 4, 5})});
    for (const int64_t padding : {0, 1, 2}) {
      const at::Tensor y = at::conv2d(x, w, {}, 1, padding);
      EXPECT_EQ(spec(y)->cut(2).sizes[0], 0) << spec(y)->to_string();
      EXPECT_EQ(difference(full_tensor(y), at::conv2d(full, w, {}, 1, padding), 1e-12), "");
      const at::Tensor z = at::conv_transpose2d(x, w, {}, 2, padding);
      EXPECT_EQ(spec(z)->cut(2).sizes[0], 0) << spec(z)->to_string();
      EXPECT_EQ(difference(full_tensor(z), at::conv_transpose2d(full, w, {}, 2, padding), 1e-12), "");
    }
    for (const Sizes& sizes : {Sizes{0, 10, 15}, Sizes{0, 0, 25}}) {
      const at::Tensor rows = shard_of(columns.slice(2, 0, 25), mesh, {shard(2, sizes)});
      for (const int64_t padding : {0, 1}) {
        const int64_t side = 7 - 2 * padding;  // 5 x 5 windows of 3 x 3
        const at::Tensor y = at::col2im(rows, {side, side}, {3, 3}, {1, 1}, {padding, padding}, {1, 1});
        EXPECT_EQ(spec(y)->cut(2).sizes[0], 0) << spec(y)->to_string();
        EXPECT_EQ(difference(full_tensor(y),
                             at::col2im(columns, {side, side}, {3, 3}, {1, 1}, {padding, padding}, {1, 1}), 1e-12),
                  "");
      }
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_output_cut
