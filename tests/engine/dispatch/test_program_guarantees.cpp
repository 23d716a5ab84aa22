// SPDX-License-Identifier: Apache-2.0
// Guarantees of every program: code without shards is untouched (S08, S09), operators without a rule are never
// silently wrong (S25), and code written for LibTorch runs on shards as it is (X01, S07, S13).
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <iterator>
#include <set>
#include <sstream>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/ops/support/interceptions.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_program_guarantees {
namespace {

using at::Tensor;

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

// The repository's folder, as the compiler named it when it made this file and all others.
std::string source_folder() {
  const std::string here = __FILE__;
  return here.substr(0, here.rfind("tests/engine/dispatch/test_program_guarantees.cpp"));
}

// True if a kernel is Moonhalo's: `origin` is the dispatcher's record of it, "registered at FILE:LINE". Folders may
// have any name.
bool is_ours(const std::string& origin, const std::string& folder) {
  if (origin.rfind("moonhalo [", 0) == 0) return true;  // claim_operators
  for (const char* part : {"engine/", "ops/", "io/", "scripting/"}) {
    if (origin.rfind("registered at " + folder + part, 0) == 0) return true;
  }
  return false;
}

TEST(Rows, S08_AKernelIsOursByItsFileNotByNamesOfFolders) {
  const std::string torch = "registered at /home/moonhalo/aten/src/ATen/RegisterCPU.cpp:7 [kernel]";
  for (const std::string folder : {"/home/moonhalo/", "/tmp/m\xc3\xb6nd halo/moonhalo/", "/src/", "/", ""}) {
    EXPECT_TRUE(is_ours("registered at " + folder + "ops/product/linear.cpp:353 [kernel]", folder)) << folder;
    EXPECT_TRUE(is_ours("moonhalo [kernel]", folder)) << folder;
    EXPECT_FALSE(is_ours(torch, folder)) << folder;
  }
}

// "NAME on KEY" of each of Moonhalo's kernels in LibTorch's tables; a fallback for all operators of a key is "* on
// KEY".
std::set<std::string> kernels_of_ours(int64_t* operators) {
  const std::string folder = source_folder();
  std::set<std::string> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("moonhalo", 0) == 0) continue;
    ++*operators;
    std::istringstream table(op->dumpComputedTable());
    for (std::string line; std::getline(table, line);) {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos || !is_ours(line.substr(colon + 2), folder)) continue;
      const std::string key = line.substr(0, colon);
      const bool all = key == c10::toString(kShardKey) || line.find("[backend fallback]") != std::string::npos;
      found.insert((all ? "*" : c10::toString(name)) + " on " + key);
    }
  }
  return found;
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

// S09: the list of what is intercepted is in one place, and says what LibTorch's own tables of kernels say; S08: so
// plain tensors reach nothing of Moonhalo but what is on it.
TEST(Rows, S08_S09_TheListOfInterceptionsIsWhatTheDispatcherHolds) {
  std::set<std::string> listed;
  for (const Interception& row : interceptions()) {
    EXPECT_FALSE(row.when.empty() || row.why.empty()) << row.operators;
    for (const std::string& name : words_of(row.operators)) {
      for (const std::string& key : words_of(row.keys))
        EXPECT_TRUE(listed.insert((name == "*" ? name : "aten::" + name) + " on " + key).second)
            << name << " on " << key;
    }
  }

  int64_t operators = 0;
  const std::set<std::string> found = kernels_of_ours(&operators);

  for (const std::string& one : found)
    EXPECT_TRUE(listed.count(one)) << "not in ops/support/interceptions.cpp: " << one;
  for (const std::string& one : listed)
    EXPECT_TRUE(found.count(one)) << "the dispatcher has nothing of ours for " << one;
  EXPECT_GT(operators, 2500);
}

// Without a fallback of a key, an operator that offers a kernel to every backend has to be claimed by name.
TEST(Rows, S08_EveryOperatorOfShardsComesToUs) {
  const std::string folder = source_folder();
  int64_t claimed = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    const std::string table = op->dumpComputedTable(), key = std::string(c10::toString(kShardKey)) + ": ";
    const size_t line = table.rfind(key, 0) == 0 ? 0 : table.find("\n" + key);
    if (line != std::string::npos) claimed += is_ours(table.substr(table.find(key, line) + key.size()), folder);
  }
  EXPECT_GT(claimed, 2000);
}

Tensor twice(const Tensor& x) { return x + x; }

// The library is loaded between two meshes.
TEST(Rows, S08_OperatorsOfLaterLibrariesComeToUs) {
  on_mesh({2}, [](const MeshPtr&) {});
  torch::Library library(torch::Library::DEF, "moonhalo_later", std::nullopt, __FILE__, __LINE__);
  library.def("twice(Tensor x) -> Tensor");
  torch::Library kernels(torch::Library::IMPL, "moonhalo_later", c10::DispatchKey::CompositeExplicitAutograd, __FILE__,
                         __LINE__);
  kernels.impl("twice", &twice);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo_later::twice", "");
  EXPECT_FALSE(op.hasKernelForDispatchKey(kShardKey));

  on_mesh(
      {2},
      [&](const MeshPtr& mesh) {
        const Tensor x = shard_of(make_tensor({5}, 1), mesh, {shard(0)});
        EXPECT_NE(message_of([&] { op.typed<Tensor(const Tensor&)>().call(x); }).find("moonhalo_later::twice: no rule"),
                  std::string::npos);
      },
      Fallback::kError);
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
          told += text.rfind("aten::segment_reduce: no sharding rule for these placements", 0) == 0;
        EXPECT_EQ(told, mesh->rank() == 0 ? 1 : 0);
      },
      Fallback::kReplicate);
}

TEST(Rows, S25_OrIsRefusedWithNamePlacementsAndRemedy) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({4, 4}, 1), mesh, {shard(0, {1, 3, 0})});

    const std::string text = message_of([&] { sums_of_segments(x); });

    EXPECT_EQ(text.rfind("aten::segment_reduce: no rule for these placements\n  have  ", 0), 0u) << text;
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

// S13: the Partial of a pool over the cut dim is reduced when a layer needs it, once, and only the pooled values are
// sent.
TEST(Rows, S13_APartialIsResolvedByItsConsumer) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({2, 6, 9}, 1), mesh, {shard(2, {1, 5, 3})});
    const Tensor weight = make_tensor({4, 6}, 2);
    const Tensor pooled = x.mean(2);
    ASSERT_TRUE(spec(pooled)->has_partial());
    const auto reduces = [&] { return mesh->group(0).stats().by_kind[CommStats::kAllReduce].calls; };
    pooled.relu();
    const int64_t before = reduces();

    at::linear(pooled, weight);
    at::linear(pooled, weight).relu();

    EXPECT_FALSE(spec(pooled)->has_partial());
    EXPECT_EQ(reduces(), before);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_program_guarantees
