// SPDX-License-Identifier: Apache-2.0
// The other names that LibTorch has for convolutions, on cuts against the whole tensor.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_conv_names {
namespace {

using Ints = std::vector<int64_t>;

struct Named {
  const char* name;
  Ints input, weight;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b)> run;
};

const Named kNamed[] = {
    {"thnn_conv2d",
     {3, 2, 7, 6},
     {4, 2, 3, 2},
     [](auto& x, auto& w, auto& b) {
       return at::thnn_conv2d(x, w, {3, 2}, b, {2, 1}, {1, 0});
     }},
    {"slow_conv3d",
     {3, 2, 5, 4, 6},
     {4, 2, 3, 2, 3},
     [](auto& x, auto& w, auto& b) {
       return at::slow_conv3d(x, w, {3, 2, 3}, b, {1, 1, 1}, {1, 0, 1});
     }},
    {"slow_conv_dilated2d",
     {3, 2, 7, 6},
     {4, 2, 3, 2},
     [](auto& x, auto& w, auto& b) {
       return at::slow_conv_dilated2d(x, w, {3, 2}, b, {1, 2}, {2, 0}, {2, 1});
     }},
    {"slow_conv_dilated3d",
     {3, 2, 5, 4, 6},
     {4, 2, 2, 2, 2},
     [](auto& x, auto& w, auto& b) {
       return at::slow_conv_dilated3d(x, w, {2, 2, 2}, b, {1, 1, 1}, {1, 0, 0}, {1, 2, 1});
     }},
    {"slow_conv_transpose2d",
     {3, 2, 5, 4},
     {2, 4, 3, 2},
     [](auto& x, auto& w, auto& b) {
       return at::slow_conv_transpose2d(x, w, {3, 2}, b, {2, 1}, {1, 0}, {1, 0}, {1, 1});
     }},
    {"slow_conv_transpose3d",
     {3, 2, 3, 4, 3},
     {2, 4, 2, 2, 2},
     [](auto& x, auto& w, auto& b) {
       return at::slow_conv_transpose3d(x, w, {2, 2, 2}, b, {2, 1, 1}, {0, 0, 0}, {0, 0, 0}, {1, 1, 1});
     }},
    {"conv_tbc", {7, 3, 2}, {3, 2, 4}, [](auto& x, auto& w, auto& b) { return at::conv_tbc(x, w, b, 1); }},
};

TEST(ConvNames, EveryOneEqualsTheWholeTensor) {
  struct Way {
    Ints mesh;
    std::vector<Placement> input, weight;
  };
  const std::vector<Way> ways = {
      {{2}, {shard(0, {1, 2})}, {replicate()}},
      {{3}, {shard(0, {1, 0, 2})}, {replicate()}},
      {{2}, {shard(2)}, {replicate()}},
      {{2}, {shard(1)}, {shard(0)}},
      {{2, 2}, {shard(0), shard(2)}, {replicate(), replicate()}},
      {{2}, {replicate()}, {shard(1)}},
  };
  for (const Named& named : kNamed) {
    const bool sequence = named.input.size() == 3;
    for (Way way : ways) {
      SCOPED_TRACE(named.name);
      if (sequence) {  // [time, batch, channels]
        for (Placement& p : way.input) {
          if (p.is_shard()) p = shard(p.dim == 0 ? 1 : p.dim == 1 ? 2 : 0);
        }
      }
      expect_same_as_plain(way.mesh,
                           {{.full = make_tensor(named.input, 1), .placements = way.input},
                            {.full = make_tensor(named.weight, 2), .placements = way.weight},
                            {.full = make_tensor({4}, 3)}},
                           [&](const Tensors& t) { return Tensors{named.run(t[0], t[1], t[2])}; },
                           {.double_backward = !sequence});
    }
  }
}

TEST(ConvNames, ACutBatchIsNotMoved) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    for (const Named& named : kNamed) {
      const int64_t batch = named.input.size() == 3 ? 1 : 0;
      const at::Tensor x = shard_of(make_tensor(named.input, 1), mesh, {shard(batch, {1, 2})});
      mesh->group().reset_stats();
      const at::Tensor y = named.run(x, make_tensor(named.weight, 2), make_tensor({4}, 3));
      EXPECT_EQ(sharding_sizes(y).at(0), (Ints{1, 2})) << named.name;
      EXPECT_EQ(mesh->group().stats().total().bytes, 0) << named.name;
    }
  });
}

TEST(ConvNames, SequencesThatDoNotFitAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({7, 3, 2}, 1), mesh, {shard(1)});
    for (const Ints& weight : {Ints{3, 3, 4}, Ints{8, 2, 4}, Ints{3, 2, 5}}) {
      EXPECT_THAT(message_of([&] { at::conv_tbc(x, make_tensor(weight, 2), make_tensor({4}, 3), 0); }),
                  ::testing::StartsWith("conv_tbc: an input of shape [7, 3, 2], a weight of " + shape_string(weight)));
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_conv_names
