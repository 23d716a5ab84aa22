// SPDX-License-Identifier: Apache-2.0
// Parameters in blocks or copied, for torch::nn modules, against the same module whole.
#include "moonhalo/engine/training/fully_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/clip.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "tests/support/modules.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_fully_shard {
namespace {

namespace nn = torch::nn;
using Sizes = std::vector<int64_t>;

TEST(Stored, IsWrittenAndReadAndKept) {
  EXPECT_EQ(stored(0, {3, 2}).to_string(), "Stored(0, {3, 2})");
  EXPECT_EQ(parse_placement("Stored(0, {3, 2})"), stored(0, {3, 2}));
  EXPECT_NE(parse_placement("Stored(0)"), shard(0));
  on_mesh({2}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {5, 4}, {stored(0, {3, 2})});
    EXPECT_NE(spec, make_spec(mesh, {5, 4}, {shard(0, {3, 2})}));
    EXPECT_EQ(spec, make_spec(mesh, {5, 4}, spec->placements()));
    Layout whole = spec->layout();
    whole.cuts[0] = {};
    EXPECT_EQ(intern(whole), replicated(mesh, {5, 4}));  // what cuts nothing is not stored
    EXPECT_EQ(fetched_for(spec, *make_spec(mesh, {5, 4}, {shard(0, {3, 2})})), spec);
    EXPECT_EQ(fetched_for(spec, *make_spec(mesh, {5, 4}, {shard(1)})), replicated(mesh, {5, 4}));
  });
}

TEST(LevelSizes, GivesRowsLeftOverToWhoHoldsLeast) {
  Sizes held(3, 0);
  EXPECT_EQ(balanced_shard_sizes(7, 10, held), (Sizes{3, 2, 2}));
  EXPECT_EQ(balanced_shard_sizes(5, 1, held), (Sizes{1, 2, 2}));
  EXPECT_EQ(balanced_shard_sizes(2, 1, held), (Sizes{0, 1, 1}));
  EXPECT_EQ(held, (Sizes{31, 23, 23}));
}

TEST(LevelSizes, KeepUnitsOfRowsWhole) {
  Sizes held(3, 0);
  EXPECT_EQ(balanced_shard_sizes(70, 10, held, 32), (Sizes{32, 32, 6}));
  EXPECT_EQ(balanced_shard_sizes(100, 1, held, 32), (Sizes{32, 32, 36}));  // four units, of which the last has 4 rows
  EXPECT_EQ(balanced_shard_sizes(33, 1, held, 32), (Sizes{32, 0, 1}));
  EXPECT_EQ(held, (Sizes{384, 352, 97}));
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor weight = make_tensor({70, 20}, 3).requires_grad_(true);
    const at::Tensor kept = store_parameter(weight, mesh, {.unit_rows = 32}, "weight");
    Sizes sizes = spec(kept)->cut(0).sizes;
    EXPECT_EQ(sizes[0] % 32 + sizes[1] % 32, 0);
    EXPECT_TRUE(at::equal(full_tensor(kept.detach()).cpu(), weight.detach()));
    EXPECT_FALSE(spec(store_parameter(weight.detach().narrow(0, 0, 64), mesh, {.unit_rows = 32}, "weight"))->is_cut(0));
    EXPECT_EQ(message_of([&] { store_parameter(weight, mesh, {.unit_rows = 0}, "w"); }).substr(0, 17),
              "w: unit_rows = 0,");
  });
}

TEST(LevelSizes, HoldAModelLevelWithoutPadding) {
  for (const int64_t ranks : {3, 5, 7}) {
    Sizes held(ranks, 0);
    for (int64_t layer = 0; layer < 24; ++layer) {
      for (const auto& [rows, row_bytes] : {std::pair{515, 129 * 4}, {129, 515 * 4}, {515, 4}, {1013, 257 * 4}})
        balanced_shard_sizes(rows, row_bytes, held);
    }
    const auto [least, most] = std::minmax_element(held.begin(), held.end());
    EXPECT_LE(static_cast<double>(*most) / static_cast<double>(*least), 1.001) << ranks << " ranks";
  }
}

TEST(StorageDim, IsTheFirstOrTheLongestUncut) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const auto dim = [&](const Sizes& shape, const Placement& tensor_parallel, int64_t ranks) {
      return storage_dim(*make_spec(mesh, shape, {replicate(), tensor_parallel}), ranks, 8);
    };
    EXPECT_EQ(dim({4, 9}, replicate(), 4), 0);
    EXPECT_EQ(dim({3, 5, 9}, replicate(), 4), 2);
    EXPECT_EQ(dim({16, 5, 9}, shard(0), 4), 2);
    EXPECT_EQ(dim({16}, shard(0), 2), std::nullopt);
    EXPECT_EQ(dim({3, 3}, replicate(), 4), std::nullopt);
    EXPECT_EQ(dim({7}, replicate(), 2), std::nullopt);  // few elements
    EXPECT_EQ(dim({8}, replicate(), 2), 0);
  });
}

// No bias before BatchNorm: its gradient is rounding alone, which AdamW would make steps of.
nn::Sequential network() {
  return with_values(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 5, 3).padding(1).bias(false)), nn::BatchNorm2d(5),
                                    nn::GELU(), nn::Flatten(), nn::Linear(5 * 4 * 3, 7),
                                    nn::LayerNorm(nn::LayerNormOptions({7}))));
}

at::Tensor plain(const at::Tensor& tensor) {
  return is_shard_tensor(tensor) ? full_tensor(tensor.detach()) : tensor.detach();
}

std::map<std::string, at::Tensor> train(nn::Sequential& net, const at::Tensor& x) {
  std::map<std::string, at::Tensor> seen;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::square(net->forward(x)).mean().backward();
    finish_grad_sync(net->parameters());
    seen["norm " + std::to_string(step)] = clip_grad_norm(net->parameters(), 1e3);  // scales nothing
    optimizer.step();
  }
  for (const auto& p : net->named_parameters()) seen[p.key()] = plain(p.value());
  for (const auto& b : net->named_buffers()) seen[b.key()] = plain(b.value());
  return seen;
}

void expect_same(const std::map<std::string, at::Tensor>& actual, const std::map<std::string, at::Tensor>& expected,
                 double tolerance) {
  for (const auto& [name, value] : expected) EXPECT_EQ(difference(actual.at(name), value, tolerance), "") << name;
}

TEST(FullyShard, V15TrainsAsCopiesDoAndAsTheWholeModel) {
  const at::Tensor x = make_tensor({7, 2, 4, 3}, 77);
  nn::Sequential whole = network();
  const auto expected = train(whole, x);
  for (const Sizes& rows : {Sizes{4, 3}, Sizes{5, 0, 2}, Sizes{1, 2, 0, 4}}) {
    on_mesh({static_cast<int64_t>(rows.size())}, [&](const MeshPtr& mesh) {
      const int64_t begin = std::accumulate(rows.begin(), rows.begin() + mesh->rank(), int64_t{0});
      const at::Tensor mine = local_batch(x.narrow(0, begin, rows[mesh->rank()]).to(device_of(*mesh)), mesh);
      nn::Sequential sharded = network(), copied = network();
      fully_shard(*sharded->ptr(0), mesh, {.min_numel = 1});
      fully_shard(*sharded.ptr(), mesh, {.min_numel = 1});
      replicate(*copied.ptr(), mesh);

      const auto with_copies = train(copied, mine), with_blocks = train(sharded, mine);

      expect_same(with_blocks, expected, 1e-10);
      for (const auto& [name, value] : with_copies) {  // bit by bit, but for sums over blocks
        if (name.substr(0, 4) != "norm") EXPECT_TRUE(at::equal(with_blocks.at(name), value)) << name;
      }
      EXPECT_TRUE(spec(sharded->parameters()[0])->has_stored());
      EXPECT_TRUE(spec(copied->parameters()[0])->is_replicate());
    });
  }
}

// Layers in units, called by hand: a module of C++ has no hooks.
struct Units {
  nn::Sequential net = network();
  std::vector<ParameterUnitPtr> units;

  Units(const MeshPtr& mesh, const FullyShardOptions& options) {
    for (size_t i = 0; i < net->size(); ++i) units.push_back(fully_shard(*net->ptr(i), mesh, options));
  }
  at::Tensor operator()(at::Tensor x) {
    auto layer = net->begin();
    for (const ParameterUnitPtr& unit : units) x = unit->call([&] { return (layer++)->forward(x); });
    return x;
  }
};

TEST(FullyShard, V15UnitsGiveTheBitsOfCopies) {
  const at::Tensor x = make_tensor({7, 2, 4, 3}, 77);
  for (const Sizes& rows : {Sizes{4, 3}, Sizes{5, 0, 2}}) {
    on_mesh({static_cast<int64_t>(rows.size())}, [&](const MeshPtr& mesh) {
      const int64_t begin = std::accumulate(rows.begin(), rows.begin() + mesh->rank(), int64_t{0});
      const at::Tensor mine = local_batch(x.narrow(0, begin, rows[mesh->rank()]).to(device_of(*mesh)), mesh);
      nn::Sequential copied = network();
      replicate(*copied.ptr(), mesh);
      at::square(copied->forward(mine)).mean().backward();
      finish_grad_sync(copied->parameters());
      for (const auto& [after_forward, after_backward] : {std::pair{true, true}, {false, true}, {false, false}}) {
        Units units(mesh,
                    {.min_numel = 1, .reshard_after_forward = after_forward, .reshard_after_backward = after_backward});
        const int64_t before = mesh->group().stats().by_kind[CommStats::kExchange].messages;

        const at::Tensor y = units(mine);

        const int64_t messages = mesh->group().stats().by_kind[CommStats::kExchange].messages - before;
        EXPECT_EQ(messages, 4 * (mesh->size() - 1));  // four layers have parameters
        at::square(y).mean().backward();
        finish_grad_sync(units.net->parameters());
        const auto names = copied->named_parameters();
        for (const auto& p : units.net->named_parameters()) {
          EXPECT_EQ(spec(p.value().grad()), spec(p.value())) << p.key();
          EXPECT_TRUE(at::equal(full_tensor(p.value().grad()), full_tensor(names[p.key()].grad()))) << p.key();
        }
      }
    });
  }
}

struct TwoDtypes : nn::Module {
  nn::Linear single{5, 7}, twice{7, 3};
  TwoDtypes() {
    register_module("single", single);
    register_module("twice", twice)->to(at::kDouble);
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (at::Tensor& p : parameters()) p.copy_(make_tensor(p.sizes().vec(), ++seed));
  }
  at::Tensor forward(const at::Tensor& x) { return twice->forward(single->forward(x).to(at::kDouble)); }
};

TEST(FullyShard, V15AUnitOfTwoDtypesKeepsBoth) {
  const at::Tensor x = make_tensor({6, 5}, 7).to(at::kFloat);
  for (const int64_t ranks : {2, 3}) {
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      const auto net = std::make_shared<TwoDtypes>(), copied = std::make_shared<TwoDtypes>();
      replicate(*copied, mesh);
      const ParameterUnitPtr unit = fully_shard(*net, mesh, {.min_numel = 1});
      const at::Tensor batch = distribute_tensor(x, mesh, {shard(0)});

      const at::Tensor y = unit->call([&] { return net->forward(batch); });

      EXPECT_TRUE(at::equal(full_tensor(y.detach()), full_tensor(copied->forward(batch).detach())));
    });
  }
}

TEST(FullyShard, RefusesParametersThatHaveGradients) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Linear net(3, 4);
    net->weight.mutable_grad() = at::zeros({4, 3});
    EXPECT_EQ(message_of([&] { fully_shard(*net, mesh); }).substr(0, 40), "fully_shard: 'weight' has a gradient\n  f");
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_fully_shard
