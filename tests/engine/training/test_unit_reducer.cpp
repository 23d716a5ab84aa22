// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over the ranks: what is left of a backward pass that throws, and plain parameters behind results of
// each rank alone. Scripts show more (tests/scripting/fully_shard_sums_ranks3.lua).
#include "moonhalo/engine/training/unit_reducer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "moonhalo/engine/model/stage_parameters.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/clip.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "moonhalo/engine/training/local_loss_mesh.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_unit_reducer {
namespace {

at::Tensor stored_leaf(const MeshPtr& mesh, int64_t seed) {
  return store_parameter(make_tensor({6, 4}, seed).requires_grad_(true), mesh, {.min_numel = 1}, "weight");
}

TEST(UnitReducer, N35_APassThatThrowsLeavesEarlierSumsAlone) {
  for (const int64_t ranks : {2, 3}) {
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      const at::Tensor a = stored_leaf(mesh, 1), b = stored_leaf(mesh, 2);
      // Sums are sent as soon as a leaf is complete.
      const auto reducer = UnitReducer::of({a, b}, /*sums=*/true, {.bucket_bytes = 1});
      const at::Tensor x = local_batch(make_tensor({2, 4}, 3 + mesh->rank()).to(device_of(*mesh)), mesh);
      const auto pass = [&](bool throws) {
        at::Tensor h = at::matmul(x, a.t()).tanh();
        if (throws) h.register_hook([](const at::Tensor&) { TORCH_CHECK_VALUE(false, "stop here"); });
        at::matmul(h, b).square().sum().backward();
      };
      const auto grads = [&] { return std::vector{full_tensor(a.grad()).cpu(), full_tensor(b.grad()).cpu()}; };
      pass(false);
      const auto once = grads();

      EXPECT_THAT(message_of([&] { pass(true); }), ::testing::HasSubstr("stop here"));

      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(grads()[i], once[i])) << i;
      for (const at::Tensor& leaf : {a, b}) leaf.mutable_grad() = at::Tensor();
      EXPECT_THAT(message_of([&] { pass(true); }), ::testing::HasSubstr("stop here"));
      for (const at::Tensor& leaf : {a, b}) EXPECT_FALSE(leaf.grad().defined());
      pass(false);
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(grads()[i], once[i])) << i;
      pass(false);
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(grads()[i], once[i] * 2)) << i;
    });
  }
}

TEST(LocalResults, N36_PlainParametersGetTheMeanOfTheirGradients) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const auto device = device_of(*mesh);
    const auto leaf = [&](int64_t seed, at::ScalarType dtype) {
      return make_tensor({3, 2}, seed).to(device, dtype).requires_grad_(true);
    };
    const at::Tensor head = leaf(1, at::kDouble), part = leaf(2, at::kFloat), unused = leaf(3, at::kDouble);
    const at::Tensor met = leaf(4, at::kDouble);
    head.mutable_grad() = at::full({3, 2}, 3.0 * static_cast<double>(mesh->rank()), head.options());
    if (mesh->rank() == 1) part.mutable_grad() = at::ones({3, 2}, part.options());
    (from_local(at::ones({1, 2}, head.options().requires_grad(false)), mesh, {shard(0)}) * met.sum()).sum().backward();
    const at::Tensor before = met.grad().cpu();
    const std::vector<at::Tensor> all{head, part, unused, met};

    finish_grad_sync(all);
    EXPECT_EQ(head.grad().cpu()[0][0].item<double>(), 3.0 * static_cast<double>(mesh->rank()));  // nothing was noted
    register_local_loss_mesh(mesh);
    const MeshPtr same = init_device_mesh(mesh->group(), device.is_cuda() ? "cuda" : "cpu", {3}, {"again"});
    register_local_loss_mesh(same);
    const auto sums = [&] { return mesh->group().stats().by_kind[CommStats::kAllReduce].calls; };
    const int64_t before_sync = sums();
    finish_grad_sync(all);

    EXPECT_EQ(sums() - before_sync, 2);  // one for each dtype
    EXPECT_TRUE(at::equal(head.grad().cpu(), at::full({3, 2}, 3.0, at::kDouble)));
    EXPECT_EQ(difference(part.grad().cpu(), at::full({3, 2}, 1.0 / 3, at::kFloat), 1e-6), "");
    EXPECT_FALSE(unused.grad().defined());
    EXPECT_TRUE(at::equal(met.grad().cpu(), before));
    EXPECT_EQ(
        difference(grad_norm({head}).cpu().to(at::kDouble), at::scalar_tensor(std::sqrt(54.0), at::kDouble), 1e-9), "");
  });
}

// Gradients of plain tensors, of copies and of blocks, in any order, have one norm.
TEST(Clip, N34_NormsOfPlainAndCutGradients) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const auto device = device_of(*mesh);
    const at::Tensor grads[] = {make_tensor({3, 2}, 1), make_tensor({4, 3}, 2), make_tensor({5}, 3)};
    const at::Tensor all = at::cat({grads[0].view(-1), grads[1].view(-1), grads[2].view(-1)});
    const auto leaf = [&](int64_t i, const std::vector<Placement>& cut) {
      const at::Tensor full = grads[i].to(device);
      at::Tensor made = cut.empty() ? at::zeros_like(full) : shard_of(at::zeros_like(full), mesh, cut);
      made.requires_grad_(true).mutable_grad() = cut.empty() ? full.clone() : shard_of(full, mesh, cut);
      return made;
    };
    const std::vector<at::Tensor> leaves{leaf(0, {}), leaf(1, {shard(0)}), leaf(2, {replicate()})};
    for (const std::vector<int64_t>& order : {std::vector<int64_t>{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
      std::vector<at::Tensor> parameters;
      for (const int64_t i : order) parameters.push_back(leaves[i]);
      for (const double p : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
        const at::Tensor expected = at::linalg_vector_norm(all, p);
        EXPECT_EQ(difference(grad_norm(parameters, p).cpu().to(at::kDouble), expected, 1e-12), "") << p;
      }
    }
  });
}

// Stages have parameters of their own, beside one that all ranks have.
TEST(Clip, N34_NormsOfStagesAndOfWhatIsNoStage) {
  on_ranks(2, [](Communicator& world) {
    const at::Tensor grads[] = {make_tensor({3, 2}, 1), make_tensor({3, 2}, 2) * 3, make_tensor({5}, 3) * 2};
    const at::Tensor all = at::cat({grads[0].view(-1), grads[1].view(-1), grads[2].view(-1)});
    const at::Tensor own = at::zeros({3, 2}, at::kDouble).requires_grad_(true),
                     common = at::zeros({5}, at::kDouble).requires_grad_(true);
    own.mutable_grad() = grads[world.rank()].clone();
    common.mutable_grad() = grads[2].clone();
    note_stage_parameter(own, world.shared_from_this(), true);
    for (const double p : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
      for (const std::vector<at::Tensor>& parameters : {std::vector{own, common}, {common, own}})
        EXPECT_EQ(difference(grad_norm(parameters, p), at::linalg_vector_norm(all, p), 1e-12), "") << p;
    }
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_unit_reducer
