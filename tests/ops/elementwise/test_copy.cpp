// SPDX-License-Identifier: Apache-2.0
// Copies, casts, fills, factories with a model, and numbers read out: features S17, D05, D08.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_copy {
namespace {

using at::Tensor;

TEST(Copy, D05_ClonesAndCastsEqualThoseOfOneDevice) {
  check(
      {
          {"clone",
           [](const Tensor& x) {
             return List{cubed(x.clone()), x.clone(at::MemoryFormat::Contiguous)};
           },
           kTwice},
          {"float",
           [](const Tensor& x) {
             return List{cubed(x.to(at::kFloat)), x.to(at::kFloat).to(at::kDouble)};
           },
           {.tolerance = 1e-5}},
          {"bfloat16",
           [](const Tensor& x) { return List{x.clone().mul(1).to(at::kBFloat16)}; },
           {.tolerance = 1e-2, .backward = false}},
          {"long",
           [](const Tensor& x) {
             return List{(x * 5).to(at::kLong), (x * 5).to(at::kBool), x.to(at::kComplexDouble)};
           },
           kForward},
          {"same",
           [](const Tensor& x) {
             return List{x.to(at::kDouble) * 2, x.contiguous() * 2, x.type_as(x) * 2};
           }},
          {"contiguous", [](const Tensor& x) { return List{cubed(x.transpose(0, 1).contiguous())}; }},
          {"lift",
           [](const Tensor& x) {
             return List{at::lift_fresh(x.detach()), at::lift(x.detach())};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 1));
}

// A decision for a clone in one order of memory serves no clone in another order.
TEST(Copy, D05_ClonesLieAsTheirFormatSays) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({4, 3, 2, 5}, 1), x = shard_of(full, mesh, {shard(0)});
    for (int round = 0; round < 2; ++round) {
      for (const auto format :
           {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast, at::MemoryFormat::Preserve}) {
        for (const bool turned : {false, true}) {
          const Tensor plain = (turned ? full.transpose(1, 2) : full).clone(format),
                       cut = (turned ? x.transpose(1, 2) : x).clone(format);
          EXPECT_EQ(cut.strides(), plain.strides()) << format << turned;
          EXPECT_TRUE(at::equal(full_tensor(cut).cpu(), plain));
        }
      }
    }
  });
}

TEST(Copy, D08_FactoriesFollowTheirModel) {
  check(
      {
          {"like",
           [](const Tensor& x) {
             return List{at::zeros_like(x) + x, at::ones_like(x) * x, at::full_like(x, 2.5),
                         at::empty_like(x).fill_(1)};
           }},
          {"new",
           [](const Tensor& x) {
             return List{x.new_zeros({9, 7, 2}) + x, x.new_ones({9, 4, 2}), x.new_full({3}, 2),
                         x.new_empty({}).zero_()};
           }},
          {"strided",
           [](const Tensor& x) {
             return List{x.new_empty_strided({9, 7, 2}, {1, 9, 63}).copy_(x),
                         x.new_empty_strided({9, 3}, {3, 1}).zero_()};
           }},
          {"dtypes",
           [](const Tensor& x) {
             return List{at::zeros_like(x, at::kLong), x.new_ones({2, 2}, at::kBool)};
           },
           kForward},
          {"fills",
           [](const Tensor& x) {
             Tensor y = cubed(x), z = x * 2;
             y.fill_(3);
             z.zero_();
             return List{y * x, z + x, at::fill(x, 2), x.detach().clone().fill_(at::scalar_tensor(7.0, at::kDouble))};
           }},
      },
      make_tensor({9, 7, 2}, 2));
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({9, 7}, 2), mesh, {shard(0, {3, 6})});
    EXPECT_EQ(spec(at::zeros_like(x)), spec(x));
    EXPECT_EQ(spec(x.new_zeros({9, 7})), spec(x));
    EXPECT_EQ(spec(x.new_zeros({9, 2}))->placements()[0].to_string(), "Shard(0, {3, 6})");
    EXPECT_TRUE(spec(x.new_zeros({9}))->is_replicate());
    EXPECT_EQ(spec(x.new_zeros({18, 2}))->placements()[0].to_string(), "Shard(0, {6, 12})");
    EXPECT_TRUE(spec(x.new_zeros({1, 7}))->is_replicate());
    const Tensor lazy = shard_of(make_tensor({9, 7}, 2), mesh, {partial()});
    EXPECT_TRUE(spec(at::ones_like(lazy))->is_replicate());
    EXPECT_TRUE(spec(lazy.clone())->has_partial());
    EXPECT_TRUE(spec(lazy.to(at::kFloat))->has_partial());
  });
}

TEST(Copy, S17_CopiesBetweenAnyTwoPlacements) {
  const std::vector<std::pair<const char*, std::vector<Placement>>> ways{
      {"rows", {shard(0, {5, 4})}},  {"other_rows", {shard(0, {0, 9})}}, {"columns", {shard(1, {1, 3})}},
      {"replicated", {replicate()}}, {"partial", {partial()}},           {"plain", {}}};
  for (const auto& [to_name, to] : ways) {
    for (const auto& [from_name, from] : ways) {
      if (to.empty() && from.empty()) continue;
      SCOPED_TRACE(std::string(from_name) + " into " + to_name);
      const auto input = [](int64_t seed, at::IntArrayRef shape, const std::vector<Placement>& placements) {
        return Input{.full = make_tensor(shape, seed), .placements = placements, .plain = placements.empty()};
      };
      const std::string thrown = message_of([&] {
        expect_same_as_plain({2}, {input(1, {9, 4}, to), input(2, {9, 4}, from)}, [](const List& x) {
          Tensor y = cubed(x[0]);
          y.copy_(cubed(x[1]));
          return List{y * y};
        });
        expect_same_as_plain(
            {2}, {input(1, {9, 4}, to), input(2, {9, 4}, from)},
            [](const List& x) {
              Tensor y = x[0].detach().clone();
              y.copy_(x[1].detach().narrow(0, 2, 1)).narrow(1, 0, 2).copy_(x[1].detach().narrow(1, 2, 2));
              return List{y};
            },
            kForward);
      });
      EXPECT_EQ(thrown, "");
    }
  }
}

TEST(Copy, D08_NumbersAndComparisonsAreReadOnEveryRank) {
  const Tensor full = make_tensor({9, 7, 2}, 3);
  for (const PlacementCase& held : kPlacements972) {
    SCOPED_TRACE(held.name);
    on_mesh(held.mesh, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(full, mesh, held.placements);
      EXPECT_NEAR(x.sum().item<double>(), full.sum().item<double>(), 1e-10);
      EXPECT_DOUBLE_EQ(x.narrow(0, 4, 1).narrow(1, 2, 1).narrow(2, 1, 1).item<double>(), full[4][2][1].item<double>());
      EXPECT_TRUE(x.gt(-2).all().item<bool>());
      EXPECT_TRUE(x.abs().max().is_nonzero());
      Tensor other = full.clone();
      EXPECT_TRUE(x.clone().mul(0).equal(other.mul(0)));
      EXPECT_TRUE(x.equal(x));
      other[8][6][1] += 1;
      EXPECT_FALSE((x * 1).equal(other));
      EXPECT_FALSE(x.equal(other[0]));
      EXPECT_TRUE(at::is_same_size(x, other));
      EXPECT_TRUE(at::allclose(x, full));
      const std::string text = message_of([&] { x.item(); });
      EXPECT_FALSE(text.empty());
    });
  }
}

TEST(Copy, NewStorageIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Tensor x = shard_of(make_tensor({9, 7}, 2), mesh, {shard(0)});
    for (const std::string& text : {message_of([&] { x.resize_({3}); }), message_of([&] { x.set_(x.clone()); }),
                                    message_of([&] { x.resize_as_(x.select(1, 0)); })}) {
      EXPECT_NE(text.find(": a ShardTensor has no storage of its own to replace or resize"), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_copy
