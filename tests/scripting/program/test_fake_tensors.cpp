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

}  // namespace
}  // namespace moonhalo::scripting::test_fake_tensors
