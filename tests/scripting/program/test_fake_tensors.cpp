// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_fake_tensors {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A field of 16,384 x 16,384 points in 8 x 8 blocks: a real step needs 1.2 GB on a rank.
TEST(FakeTensors, X14_AStepComputesNothing) {
  const moonhalo::testing::Folder folder;
  const std::string script = (folder.path() / "step.lua").string();
  std::ofstream(script) << R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {8, 8}, {"rows", "columns"})
local net = mh.nn.Sequential(mh.nn.Conv2d(3, 16, 3, {padding = 1}), mh.nn.GELU(), mh.nn.Conv2d(16, 1, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local side = tonumber(arg[1])
local x = mh.distribute_tensor(mh.zeros{1, 3, side, side}, mesh, {mh.Shard(2), mh.Shard(3)})
mh.memory{reset = true}
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
for _ = 1, 3 do
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  loss:backward()
  optimizer:step()
end
local sent = mh.comm_stats()
print(mh.memory().peak, sent.messages, sent.bytes)
)";
  const auto of_side = [&](const char* side, std::vector<std::string> more) {
    std::vector<std::string> words = {"run", script, "--backend", "fake", "--ranks", "64"};
    more.insert(more.end(), {"--", side});
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };

  const Result large = of_side("16384", {"--fake-tensors"}), small = of_side("1024", {"--fake-tensors"}),
               real = of_side("1024", {});

  EXPECT_EQ(large.status, 0) << large.err;
  EXPECT_THAT(large.out, HasSubstr("rank 0 of 64: "));
  EXPECT_GT(std::stod(large.out), 1e9);
  EXPECT_THAT(small.out, HasSubstr(real.out.substr(real.out.find('\t'))));  // messages and bytes
  EXPECT_NEAR(std::stod(small.out), std::stod(real.out), 0.08 * std::stod(real.out));
  EXPECT_THAT(run({"run", script, "--ranks", "2", "--fake-tensors"}).err,
              AllOf(HasSubstr("--fake-tensors"), HasSubstr("fix")));
}

// Rank 1 has zeros of what rank 0 would send: no scale, no weight, and points that are far from their outputs.
TEST(FakeTensors, X14_ValuesThatAreNotComputedArePrintedAndNotJudged) {
  const moonhalo::testing::Folder folder;
  const std::string script = (folder.path() / "values.lua").string();
  std::ofstream(script) << R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {3}, {"rows"})
local function sent(x) return mh.scatter_tensor(x, mesh, {mh.Shard(0)}) end
print(nn.Linear(3, 2).weight)
print((tostring(sent(mh.zeros{3000, 300}))))
mh.distributions.Normal(0.0, sent(mh.ones{9})):sample()
mh.distributions.Uniform(0.0, sent(mh.ones{9})):sample()
print(mh.distributions.Categorical({probs = sent(mh.ones{6, 4})}):sample().shape[1])
print(mh.multinomial(sent(mh.ones{6, 4}), 2, true).shape[2])
local theta = mh.tensor{{{1.0, 0.0, 0.0}, {0.0, 1.0, 0.0}}}
local grid = mh.scatter_tensor(nn.functional.affine_grid(theta, {1, 1, 9, 5}), mesh, {mh.Shard(1)})
local field = mh.scatter_tensor(mh.ones{1, 1, 9, 5}, mesh, {mh.Shard(2)}):requires_grad_()
nn.functional.grid_sample(field, grid, {max_displacement = {1, 1}}):sum():backward()
print(field.grad.shape[3])
local bags = nn.EmbeddingBag(7, 3)
bags(mh.tensor({1, 2, 3}, {dtype = "int64"}), mh.tensor({0, 1}, {dtype = "int64"})):sum():backward()
print(bags.weight.grad.shape[1])
local net = nn.Linear(3, 2)
local found = mh.find_lr(net, mh.optim.SGD(net:parameters(), {lr = 0.1}), function() return net(mh.ones{4, 3}):mean() end)
print(found.suggestion > 0)
print(io.open("no_such_file", "r+b"))
print(select(2, pcall(mh.testing.assert_equal, net.weight:sum():item(), 3)))
)";

  for (const char* fake_rank : {"0", "1"}) {
    const Result result =
        run({"run", script, "--backend", "fake", "--ranks", "3", "--fake-rank", fake_rank, "--fake-tensors"});

    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("tensor(..., size=[2, 3], not computed, requires_grad=True)\n"),
                                  HasSubstr("local=..., size=[1000, 300], not computed)\n"),
                                  HasSubstr("\n6\n2\n9\n7\ntrue\nnil\tno_such_file: No such file or directory"),
                                  HasSubstr("note  in a dry run what other ranks have is zeros")));
  }
}

}  // namespace
}  // namespace moonhalo::scripting::test_fake_tensors
