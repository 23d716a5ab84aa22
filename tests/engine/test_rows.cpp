// SPDX-License-Identifier: Apache-2.0
// What every program may rely on: code without shards is untouched (S08, S09), operators without a rule are never
// silently wrong (S25), and code written for LibTorch runs on shards as it is (X01, S07, S13).
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <sstream>

#include "engine/communicator.h"
#include "engine/dispatch.h"
#include "engine/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// A convolution net with attention and norms, its loss and all its gradients, on whatever tensors come.
Tensors net(const Tensors& t) {
  const Tensor h = at::group_norm(at::conv2d(t[0], t[1], t[2], 1, 1), 2, t[3], t[4]);
  const Tensor tokens = at::gelu(h).flatten(2).transpose(1, 2);
  const Tensor weights = (tokens.matmul(tokens.transpose(1, 2)) / 2).softmax(-1);
  const Tensor y = at::linear(weights.matmul(tokens), t[5]).sum(1);
  return {at::mse_loss(y, at::zeros_like(y)), y};
}

std::vector<Input> net_inputs(const std::vector<Placement>& cut) {
  return {{make_tensor({2, 3, 5, 4}, 1), cut},   {make_tensor({4, 3, 3, 3}, 2), {}, true, true},
          {make_tensor({4}, 3), {}, true, true}, {make_tensor({4}, 4), {}, true, true},
          {make_tensor({4}, 5), {}, true, true}, {make_tensor({3, 4}, 6), {}, true, true}};
}

// S08, S09: for plain tensors LibTorch's own table of kernels holds nothing of ours, for any operator.
TEST(Rows, S08_NoKernelOfPlainTensorsIsOurs) {
  int64_t operators = 0, claimed = 0;
  std::string foreign;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    ++operators;
    std::istringstream table(op->dumpComputedTable());
    for (std::string line; std::getline(table, line);) {
      if (line.find("moonhalo") == std::string::npos &&
          line.find("intercept.cpp") == std::string::npos)
        continue;
      if (line.rfind(c10::toString(kShardKey), 0) == 0) {
        ++claimed;
      } else if (foreign.empty()) {
        foreign = c10::toString(name) + ": " + line;
      }
    }
  }
  EXPECT_EQ(foreign, "");
  EXPECT_GT(operators, 2500);
  EXPECT_GT(claimed, 2000);
}

TEST(Rows, S08_PlainTensorsGiveTheSameBitsBeforeAndAfterShards) {
  const auto plain_run = [] {
    Tensors t;
    for (const Input& input : net_inputs({})) t.push_back(input.full.clone().requires_grad_());
    Tensors all = net(t);
    all[0].backward();
    for (const Tensor& leaf : t) all.push_back(leaf.grad());
    return all;
  };
  const Tensors before = plain_run();

  on_mesh({2}, [&](const MeshPtr& mesh) {
    const int64_t idle = Dispatch::of_this_thread().counts.calls;
    plain_run();
    EXPECT_EQ(Dispatch::of_this_thread().counts.calls, idle);
    const Tensor x = shard_of(make_tensor({9}, 1), mesh, {shard(0)});
    (x + x).sum();
    EXPECT_GT(Dispatch::of_this_thread().counts.calls, idle);

    const int64_t calls = Dispatch::of_this_thread().counts.calls;
    const Tensors beside = plain_run();
    EXPECT_EQ(Dispatch::of_this_thread().counts.calls, calls);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(beside[i], before[i])) << i;
  });

  const Tensors after = plain_run();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
}

struct Heard final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

// Segments end where their lengths say, which are data: no rule can know.
Tensor sums_of_segments(const Tensor& x) { return at::segment_reduce(x, "sum", at::tensor({1, 3}, at::kLong)); }

TEST(Rows, S25_AnOperatorWithoutARuleIsGatheredAndSaysSoOnce) {
  const Tensor full = make_tensor({4, 4}, 1) + 3 * at::eye(4, at::kDouble);
  on_mesh(
      {2, 2},
      [&](const MeshPtr& mesh) {
        Heard heard;
        c10::WarningUtils::WarningHandlerGuard guard(&heard);
        const Tensor x = shard_of(full, mesh, {shard(0, {1, 3}), shard(1, {4, 0})});

        for (int i = 0; i < 3; ++i)
          EXPECT_EQ(difference(full_tensor(sums_of_segments(x)), sums_of_segments(full), 1e-12), "");

        EXPECT_GE(Dispatch::of_this_thread().gathered.at("aten::segment_reduce"), 3);
        int64_t told = 0;
        for (const std::string& text : heard.texts)
          told += text.rfind("aten::segment_reduce: no rule for these placements", 0) == 0;
        EXPECT_EQ(told, mesh->rank() == 0 ? 1 : 0);
      },
      Fallback::kReplicate);
}

TEST(Rows, S25_OrIsRefusedWithNamePlacementsAndRemedy) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({4, 4}, 1), mesh, {shard(0, {1, 3, 0})});

    const std::string text = message_of([&] { sums_of_segments(x); });

    EXPECT_EQ(text.rfind("aten::segment_reduce: no rule for these placements\n  have  ", 0), 0u)
        << text;
    EXPECT_NE(text.find("[4, 4] on mesh(3: "), std::string::npos) << text;
    EXPECT_NE(text.find("Shard(0, {1, 3, 0})"), std::string::npos) << text;
    EXPECT_NE(text.find("\n  fix   redistribute the cut dims first"), std::string::npos) << text;
    EXPECT_EQ(set_fallback(Fallback::kReplicate), Fallback::kError);
    sums_of_segments(x);
  });
}

// X01, S07, S27: functional code of LibTorch alone, its gradients and those of a gradient penalty.
TEST(Rows, X01_UnmodifiedCodeRunsOnShards) {
  const std::pair<std::vector<int64_t>, std::vector<Placement>> ways[] = {
      {{2}, {shard(2, {4, 1})}},
      {{3}, {shard(3, {1, 0, 3})}},
      {{2, 2}, {shard(2, {2, 3}), shard(3, {3, 1})}},
      {{2, 2}, {shard(0), shard(2)}},
  };
  for (const auto& [mesh, cut] : ways) {
    SCOPED_TRACE(cut[0].to_string());
    expect_same_as_plain(mesh, net_inputs(cut), net);
    expect_same_as_plain(mesh, net_inputs(cut), net, {.backward = false, .double_backward = true});
  }
}

// S13: the Partial of a pool over the cut dim is reduced when a layer needs it, once, and only the pooled values travel.
TEST(Rows, S13_APartialIsResolvedByItsConsumer) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({2, 6, 9}, 1), mesh, {shard(2, {1, 5, 3})});
    const Tensor weight = make_tensor({4, 6}, 2);
    const Tensor pooled = x.mean(2);
    ASSERT_TRUE(spec(pooled)->has_partial());
    const auto reduces = [&] {
      return mesh->group(0).stats().by_kind[CommStats::kAllReduce].calls;
    };
    pooled.relu();
    const int64_t before = reduces();

    at::linear(pooled, weight);
    at::linear(pooled, weight).relu();

    EXPECT_FALSE(spec(pooled)->has_partial());
    EXPECT_EQ(reduces(), before);
  });
}

}  // namespace
}  // namespace moonhalo::testing
