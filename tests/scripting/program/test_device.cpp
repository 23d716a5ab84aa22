// SPDX-License-Identifier: Apache-2.0
// Scripts on make-believe devices: moonhalo run --device fake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/fake_device.h"

namespace moonhalo::scripting {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Result run_on(const std::string& device, int ranks, const std::string& lines) {
  moonhalo::testing::fake::install();
  const auto path = std::filesystem::temp_directory_path() / ("moonhalo_device_" + std::to_string(getpid()) + ".lua");
  std::ofstream(path) << "local mh = require 'moonhalo'\n" << lines;
  const Result result = run({"run", path.string(), "--ranks", std::to_string(ranks), "--device", device});
  std::filesystem::remove(path);
  return result;
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

TEST(ScriptOnDevices, TheDeviceOfTheRunIsThatOfItsMeshes) {
  const Result result = run_on("fake", 3,
                               "local mesh = mh.init_device_mesh(mh.device(), {3}, {'rows'})\n"
                               "assert(mh.device() == 'fake:' .. mh.rank(), mh.device())\n"
                               "assert(mh.ones({2}).device == mh.device())\n"
                               "local x = mh.from_local(mh.ones({2, 2}), mesh, {mh.Shard(0)})\n"
                               "assert(x:sum():item() == 12)\n"
                               "assert(mh.init_device_mesh(nil, {3}).device_type == 'fake')\n");

  EXPECT_EQ(result.status, kDone) << result.err;
}

TEST(ScriptOnDevices, ADeviceThatIsNamedIsShared) {
  const Result result = run_on("fake:2", 3,
                               "local mesh = mh.init_device_mesh(mh.device(), {3}, {'rows'})\n"
                               "assert(mh.device() == 'fake:2')\n"
                               "local x = mh.from_local(mh.ones({2, 2}), mesh, {mh.Shard(0)})\n"
                               "assert(x:sum():item() == 12)\n");

  EXPECT_EQ(result.status, kDone) << result.err;
}

TEST(ScriptOnDevices, ComputesWhatTheCpuComputes) {
  const Result on_cpu = run_on("cpu", 1, kTraining), on_devices = run_on("fake", 3, kTraining);

  EXPECT_EQ(on_cpu.status, kDone) << on_cpu.err;
  EXPECT_EQ(on_devices.status, kDone) << on_devices.err;
  EXPECT_EQ(on_devices.out, on_cpu.out);
}

TEST(ScriptOnDevices, MoreRanksThanDevicesEndBeforeTheScript) {
  const Result result = run_on("fake", 9, "print('begun')\n");

  EXPECT_EQ(result.status, kWrongUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("9 ranks for 8 devices"), HasSubstr("\n  fix   ")));
}

}  // namespace
}  // namespace moonhalo::scripting
