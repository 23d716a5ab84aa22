// SPDX-License-Identifier: Apache-2.0
// Scripts on simulated devices: moonhalo run --device fake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result run_on(const std::string& device, int ranks, const std::string& lines) {
  moonhalo::testing::fake::install();
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "device.lua";
  std::ofstream(path) << "local mh, folder = require 'moonhalo', arg[1]\n" << lines;
  return run({"run", path, "--ranks", std::to_string(ranks), "--device", device, "--", folder.path().string()});
}

// A step of training on rows of a field; the losses are those of the CPU.
const std::string kTraining =
    "local nn = mh.nn\n"
    "mh.manual_seed(1)\n"
    "local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {'rows'})\n"
    "local full = mh.arange(60, {dtype = 'float64'}):mul(0.37):sin():view({1, 1, 12, 5})\n"
    "local x = mh.distribute_tensor(full, mesh, {mh.Shard(2)})\n"
    "local w = mh.full({2, 1, 3, 3}, 0.1, {dtype = 'float64'}):requires_grad_()\n"
    "local y = mh.conv2d(x, w, nil, {1, 1}, {1, 1}):relu():mean()\n"
    "y:backward()\n"
    "local said = string.format('%.12f %.12f', y:item(), w.grad:sum():item())\n"
    "if mh.rank() == 0 then print(said) end\n";

void expect_done(const std::string& device, int ranks, const std::string& script) {
  const Result result = run_on(device, ranks, script);
  EXPECT_EQ(result.status, kDone) << result.err;
}

// A whole example: files with missing values, a loader, training, files that are written.
TEST(ScriptOnDevices, S16_AnExampleFromFileToFile) {
  moonhalo::testing::fake::install();
  const moonhalo::testing::Folder folder;
  const std::string path = std::filesystem::path(__FILE__).parent_path() / "../../../examples/sst/train.lua";
  const Result result = run({"run", path, "--ranks", "2", "--device", "fake:0", "--quiet", "--set", "epochs=1", "--set",
                             "plot=false", "--set", "output=" + folder.path().string()});
  EXPECT_EQ(result.status, kDone) << result.err << result.out;
}

// Also what draws without a mesh: layers, factories, dropout. A generator of the device would give other numbers.
TEST(ScriptOnDevices, X02_PlainTensorsDrawTheNumbersOfTheCpu) {
  const std::string script =
      "mh.manual_seed(1)\n"
      "local net = mh.nn.Sequential(mh.nn.Conv2d(1, 2, 3), mh.nn.Dropout(0.5))\n"
      "local drawn = {mh.randn({3}), mh.rand({2, 2}), mh.randperm(5), mh.bernoulli(mh.full({6}, 0.5)), net[0].weight,\n"
      "               net(mh.ones({1, 1, 4, 4})), mh.dropout(mh.ones({5}), 0.5), mh.empty({3}):uniform_(2, 3),\n"
      "               mh.multinomial(mh.ones({4}), 2)}\n"
      "for _, t in ipairs(drawn) do print(tostring(t:detach():cpu():flatten():tolist()[1]), "
      "t:detach():cpu():sum():item()) end\n";
  const Result on_host = run_on("cpu", 1, script), on_device = run_on("fake", 1, script);
  EXPECT_EQ(on_host.status, kDone) << on_host.err;
  EXPECT_EQ(on_device.status, kDone) << on_device.err;
  EXPECT_EQ(on_device.out, on_host.out);
}

TEST(ScriptOnDevices, TheDeviceOfTheRunIsThatOfItsMeshes) {
  expect_done("fake", 3,
              "local mesh = mh.init_device_mesh(mh.device(), {3}, {'rows'})\n"
              "assert(mh.device() == 'fake:' .. mh.rank(), mh.device())\n"
              "assert(mh.ones({2}).device == mh.device())\n"
              "local x = mh.from_local(mh.ones({2, 2}), mesh, {mh.Shard(0)})\n"
              "assert(x:sum():item() == 12)\n"
              "assert(mh.init_device_mesh(nil, {3}).device_type == 'fake')\n");
}

TEST(ScriptOnDevices, ADeviceThatIsNamedIsShared) {
  expect_done("fake:2", 3,
              "local mesh = mh.init_device_mesh(mh.device(), {3}, {'rows'})\n"
              "assert(mh.device() == 'fake:2')\n"
              "local x = mh.from_local(mh.ones({2, 2}), mesh, {mh.Shard(0)})\n"
              "assert(x:sum():item() == 12)\n");
}

// The text is the device of the first rank alone: no rank takes it for its own.
TEST(ScriptOnDevices, ADeviceThatIsNamedIsNoneOfTheRun) {
  expect_done("fake", 3,
              "local mesh = mh.init_device_mesh('fake:0', {3}, {'rows'})\n"
              "assert(mesh.device_type == 'fake:0')\n"
              "local x = mh.from_local(mh.ones({2, 2}, {device = 'fake:0'}), mesh, {mh.Shard(0)})\n"
              "assert(x:sum():item() == 12)\n"
              "assert(mh.init_device_mesh(mh.device(), {3}).device_type == 'fake')\n"
              "assert(mh.init_device_mesh('cpu:0', {3}).device_type == 'cpu')\n");
}

// The first rank has it, and would go on without the others.
TEST(ScriptOnDevices, ADeviceOfOneRankIsRefusedOnEveryRank) {
  expect_done("fake", 3,
              "local mesh = mh.init_device_mesh(nil, {3}, {'rows'})\n"
              "local x = mh.from_local(mh.ones({2, 2}), mesh, {mh.Shard(0)})\n"
              "for _, call in ipairs {function() return x:to('fake:0') end,\n"
              "                       function() return x:to{device = 'fake:0'} end} do\n"
              "  local ok, err = pcall(call)\n"
              "  assert(not ok and tostring(err):find('where the blocks of rank 1 are not'), err)\n"
              "end\n"
              "assert(x:to(mh.device(), 'float64'):to('fake'):sum():item() == 12)\n");
}

TEST(ScriptOnDevices, ADividedModelStaysOnTheDevicesOfTheRun) {
  const std::string script =
      "local config = mh.ComputeConfig {plan_ngpus = mh.world_size()}\n"
      "local net = mh.parallelize(mh.nn.Sequential(mh.nn.Linear(4, 4)), {x = mh.ones({6, 4})}, 'data', config)\n"
      "assert(net.parallel.mesh.device == mh.device(), net.parallel.mesh.device)\n"
      "net(mh.ones({6, 4})):sum():backward()\n";
  for (const char* device : {"fake", "fake:0", "fake:1"}) {
    const Result result = run_on(device, 3, script);
    EXPECT_EQ(result.status, kDone) << device << ": " << result.err;
  }
}

TEST(ScriptOnDevices, ComputesWhatTheCpuComputes) {
  const Result on_cpu = run_on("cpu", 1, kTraining), on_devices = run_on("fake", 3, kTraining);

  EXPECT_EQ(on_cpu.status, kDone) << on_cpu.err;
  EXPECT_EQ(on_devices.status, kDone) << on_devices.err;
  EXPECT_EQ(on_devices.out, on_cpu.out);
}

// Frames are read and normalised on the host; batches are where their mesh does.
TEST(ScriptOnDevices, X21_LoadersReadForMeshesOfAnyDevice) {
  const std::string script =
      "local path = folder .. '/frames.h5'\n"
      "local values = mh.arange(6 * 4 * 3, {dtype = 'float32', device = 'cpu'}):reshape{6, 4, 3}\n"
      "mh._files.on_first_rank(function()\n"
      "  local out <close> = mh.h5.open(path, 'w')\n"
      "  out:set_attr('Conventions', 'CF-1.8')\n"
      "  out:write('time', mh.arange(6, {dtype = 'float64', device = 'cpu'}),\n"
      "            {dims = {'time'}, attrs = {units = 'hours since 2000-01-01', standard_name = 'time'}})\n"
      "  out:write('latitude', mh.linspace(60, -60, 4, {device = 'cpu'}),\n"
      "            {dims = {'latitude'}, attrs = {units = 'degrees_north'}})\n"
      "  out:write('longitude', mh.arange(3, {dtype = 'float32', device = 'cpu'}),\n"
      "            {dims = {'longitude'}, attrs = {units = 'degrees_east'}})\n"
      "  out:write('u', values, {dims = {'time', 'latitude', 'longitude'}})\n"
      "end)\n"
      "local data = mh.data.open({path})\n"
      "data:add_field('sun', {values = values:sqrt(), dims = {'time', 'latitude', 'longitude'}})\n"
      "data:add_field('v', {from = {'u', 'sun'}, make = function(u, sun, place)\n"
      "  return u:roll({1}, {2}) * 2 + sun * place.coordinates.latitude\n"
      "end})\n"
      "local set = data:windows({inputs = {fields = {'u', 'v'}, steps = {0}}, targets = {fields = {'v'}, steps = "
      "{1}}})\n"
      "local found = set:statistics{weights = 'latitude'}\n"
      "for _, device in ipairs {mh.device(), 'cpu', 'fake:1'} do\n"
      "  local mesh = mh.init_device_mesh(device, {mh.world_size()}, {'rows'})\n"
      "  local loader = set:loader{mesh = mesh, cut = {latitude = 'rows'}, batch = 2, normalize = found,\n"
      "    transform = function(batch, place)\n"
      "      batch.targets = batch.targets + batch.inputs:narrow(1, 0, 1) * place.coordinates.latitude\n"
      "      return batch\n"
      "    end}\n"
      "  local sum = 0\n"
      "  for batch in loader:batches() do\n"
      "    assert(batch.inputs:to_local().device == device, batch.inputs:to_local().device)\n"
      "    sum = sum + batch.targets:double():sum():item()\n"
      "  end\n"
      "  if mh.rank() == 0 then print(('%.5f'):format(sum)) end\n"
      "end\n";
  const Result on_cpu = run_on("cpu", 1, script), on_devices = run_on("fake", 3, script);

  EXPECT_EQ(on_cpu.status, kDone) << on_cpu.err;
  EXPECT_EQ(on_devices.status, kDone) << on_devices.err;
  EXPECT_EQ(on_devices.out, on_cpu.out);
}

// The host of rank 1 waits for its device for ever, where nothing can throw.
TEST(ScriptOnDevicesDeathTest, X16_ADeviceThatCannotBeAbortedEndsTheProgram) {
  namespace fake = moonhalo::testing::fake;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the program is started again, up to the call that is to end it
  const moonhalo::testing::Folder folder;
  setenv("MOONHALO_HUNG_SCRIPT", (folder / "hung.lua").c_str(), /*overwrite=*/0);
  const std::string script = std::getenv("MOONHALO_HUNG_SCRIPT");
  std::ofstream(script) << "local mh = require 'moonhalo'\n"
                           "local mesh = mh.init_device_mesh(nil, {3}, {'rows'})\n"
                           "local x = mh.from_local(mh.ones({2, 2}), mesh, {mh.Shard(0)})\n"
                           "for _ = 1, 20 do assert(x:sum():item() == 12) end\n";
  const auto end_alone = [&] {
    fake::install();
    const fake::WithNccl here;
    fake::plant({.rank = 1, .group_at = 4, .async_error = true, .abort_hangs = true});
    std::vector<std::string> words = {"moonhalo", "run", script, "--ranks", "3", "--device", "fake"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    std::_Exit(10 + command_line(static_cast<int>(argv.size()), argv.data()));
  };

  EXPECT_EXIT(end_alone(), ::testing::ExitedWithCode(kRankLost),
              "the communicators of a device could not be aborted: rank 1: NCCL reports: remote process exited");

  unsetenv("MOONHALO_HUNG_SCRIPT");
}

TEST(ScriptOnDevices, MoreRanksThanDevicesEndBeforeTheScript) {
  const Result result = run_on("fake", 9, "print('begun')\n");

  EXPECT_EQ(result.status, kWrongUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("9 ranks for 8 devices"), HasSubstr("\n  fix   ")));
}

}  // namespace
}  // namespace moonhalo::scripting::test_device
