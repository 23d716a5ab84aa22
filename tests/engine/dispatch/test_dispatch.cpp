// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_dispatch {
namespace {

struct PointwiseCase {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<Input> inputs;
  Program program;
};

const std::vector<PointwiseCase>& cases() {
  static const std::vector<PointwiseCase> table = {
      {"uneven_rows",
       {2},
       {{make_tensor({9, 3}, 1), {shard(0, {5, 4})}}},
       [](const Tensors& t) { return Tensors{(t[0] * 2 + 1).tanh()}; }},
      {"broadcast_bias",
       {2},
       {{make_tensor({9, 3}, 1), {shard(0, {3, 6})}}, {make_tensor({3}, 2), {replicate()}}},
       [](const Tensors& t) { return Tensors{t[0] * t[1] + t[1]}; }},
      {"plain_weight",
       {2},
       {{make_tensor({9, 3}, 1), {shard(0, {3, 6})}}, {make_tensor({3}, 2), {}, true, true}},
       [](const Tensors& t) { return Tensors{(t[0] * t[1]).exp()}; }},
      {"empty_block",
       {3},
       {{make_tensor({9, 2}, 1), {shard(0, {4, 0, 5})}}, {make_tensor({9, 2}, 2), {shard(0, {4, 0, 5})}}},
       [](const Tensors& t) { return Tensors{t[0] / (t[1] * t[1] + 1)}; }},
      {"different_cuts",
       {2},
       {{make_tensor({9, 4}, 1), {shard(0, {5, 4})}}, {make_tensor({9, 4}, 2), {shard(1, {1, 3})}}},
       [](const Tensors& t) { return Tensors{t[0] * t[1]}; }},
      {"same_dim_other_sizes",
       {3},
       {{make_tensor({7, 4}, 1), {shard(0, {1, 5, 1})}}, {make_tensor({7, 4}, 2), {shard(0, {3, 2, 2})}}},
       [](const Tensors& t) { return Tensors{t[0] - t[1] * t[0]}; }},
      {"two_dims",
       {2, 2},
       {{make_tensor({5, 7}, 1), {shard(0, {1, 4}), shard(1, {4, 3})}},
        {make_tensor({7}, 2), {replicate(), shard(0, {4, 3})}}},
       [](const Tensors& t) { return Tensors{(t[0] + t[1]).sin()}; }},
      {"nested",
       {2, 2},
       {{make_tensor({11, 2}, 1), {shard(0), shard(0)}}, {make_tensor({11, 2}, 2), {replicate(), shard(0)}}},
       [](const Tensors& t) { return Tensors{t[0] * t[1]}; }},
      {"partial_terms",
       {3},
       {{make_tensor({4}, 1), {partial()}}, {make_tensor({4}, 2), {partial()}}},
       [](const Tensors& t) {
         return Tensors{(t[0] + t[1]) * 3, t[0] * t[1]};
       }},
      {"comparison",
       {2},
       {{make_tensor({9}, 1), {shard(0)}}},
       [](const Tensors& t) { return Tensors{at::where(t[0] > 0, t[0], t[0] * 0.1)}; }},
  };
  return table;
}

TEST(Dispatch, PointwiseEqualsPlain) {
  for (const auto& row : cases()) {
    SCOPED_TRACE(row.name);
    expect_same_as_plain(row.mesh, row.inputs, row.program, {.double_backward = true});
  }
}

TEST(Dispatch, PlainTensorsNeverArrive) {  // S08
  const int64_t before = Dispatch::of_this_thread().counts.calls;

  const at::Tensor x = make_tensor({3, 3}, 1).requires_grad_();
  (x.matmul(x).relu() + x).sum().backward();

  EXPECT_EQ(Dispatch::of_this_thread().counts.calls, before);
}

TEST(Dispatch, DecisionsAreCached) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({9}, 1), mesh, {shard(0)});
    Dispatch& dispatch = Dispatch::of_this_thread();
    at::Tensor y = x + x;
    const int64_t planned = dispatch.counts.planned;

    for (int i = 0; i < 10; ++i) y = x + y;

    EXPECT_EQ(dispatch.counts.planned, planned);
  });
}

TEST(Dispatch, TensorsOfDifferentMeshesAreRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const MeshPtr other = init_device_mesh(mesh->group(), "cpu", {2});
    const at::Tensor a = shard_of(make_tensor({4}, 1), mesh, {shard(0)});
    const at::Tensor b = shard_of(make_tensor({4}, 1), other, {shard(0)});

    const std::string message = message_of([&] { a + b; });

    EXPECT_NE(message.find("aten::add.Tensor: the tensors live on different meshes"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_dispatch
