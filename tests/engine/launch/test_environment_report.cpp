// SPDX-License-Identifier: Apache-2.0
// The lines of `moonhalo env`, with environments set by hand and simulated devices.
#include "moonhalo/engine/launch/environment_report.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/launch/check_connectivity.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_environment_report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using testing::on_ranks;
namespace fake = testing::fake;
using Variables = std::map<std::string, std::string>;

std::string env(const Variables& variables, const std::string& device = "cpu") {
  const auto getenv = [&](const char* variable) -> const char* {
    const auto found = variables.find(variable);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return describe(detect_launch(getenv), device, getenv);
}

Variables step(const char* rank, const char* local, const char* tasks) {
  return {{"SLURM_PROCID", rank},
          {"SLURM_NTASKS", tasks},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_LOCALID", local},
          {"SLURM_JOB_ID", "1000"},
          {"SLURM_STEP_NODELIST", "n[03-04]"},
          {"SLURM_STEP_TASKS_PER_NODE", tasks},
          {"SLURM_NODEID", "0"}};
}

TEST(Surroundings, Y21_LauncherAndControl) {
  EXPECT_THAT(env({}),
              AllOf(HasSubstr("launcher      single (no launcher's variables are set)"),
                    HasSubstr("control       threads"), HasSubstr("device        cpu"), Not(HasSubstr("believed"))));
  EXPECT_THAT(env({{"RANK", "1"},
                   {"WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "n1"},
                   {"MASTER_PORT", "29500"},
                   {"LOCAL_RANK", "1"},
                   {"LOCAL_WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("launcher      torchrun (RANK=1"), HasSubstr("rank          1 of 4, 1 of 2 on "),
                    HasSubstr("control       tcp, store at n1:29500 (served by another)")));
  std::map<std::string, std::string> torchrun = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "192.0.2.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_THAT(env(torchrun), HasSubstr("192.0.2.1:29500 (served by another), open: without MOONHALO_JOB_KEY"));
  torchrun["MOONHALO_JOB_KEY"] = "0123456789abcdef";
  EXPECT_THAT(env(torchrun),
              AllOf(HasSubstr("(served by another), with a job key"), Not(HasSubstr("0123456789abcdef"))));
  torchrun["MOONHALO_JOB_KEY"] = "short";
  EXPECT_THAT(env(torchrun), HasSubstr("control       launch: the job key can be guessed"));
  torchrun["MOONHALO_JOB_KEY"] = "";
  torchrun["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_THAT(env(torchrun), HasSubstr("(served by another), open to this machine"));
  EXPECT_THAT(env(step("0", "0", "4")), AllOf(HasSubstr("launcher      slurm"), HasSubstr("tcp, store at n03:"),
                                              HasSubstr("served by this process")));
  EXPECT_THAT(env({{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"SLURM_PROCID", "0"},
                   {"SLURM_NTASKS", "9"},
                   {"SLURM_STEP_ID", "1"}}),
              AllOf(HasSubstr("launcher      openmpi"), HasSubstr("not believed  slurm, rank 0 of 9"),
                    HasSubstr("control       mpi")));
  // Without PMI it is not known where the processes of a job of Flux connect.
  EXPECT_THAT(env({{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}}),
              HasSubstr("tcp, but not where the processes connect: set MASTER_ADDR"));
  EXPECT_THAT(env({{"NCCL_P2P_DISABLE", "1"}, {"NCCL_IB_DISABLE", "0"}, {"CUDA_VISIBLE_DEVICES", ""}}),
              AllOf(HasSubstr("NCCL_P2P_DISABLE=1 makes runs slower"), Not(HasSubstr("NCCL_IB_DISABLE")),
                    HasSubstr("CUDA_VISIBLE_DEVICES is empty")));
}

TEST(Surroundings, ADeviceForEachRankOfAHost) {
  fake::install();

  EXPECT_THAT(env(step("6", "6", "8"), "fake"), AllOf(HasSubstr("device        fake:6 of 8 on this host"),
                                                      HasSubstr("staged, through memory of the host")));
  EXPECT_THAT(env(step("8", "8", "9"), "fake"), HasSubstr("none: 9 ranks for 8 devices on this host"));
  EXPECT_THAT(env(step("8", "8", "9"), "fake:2"),
              HasSubstr("fake:2 of 8 on this host, shared by all ranks of the host"));
  EXPECT_THAT(env({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "fake"),
              HasSubstr("one of 8 on this host a rank; which, the ranks find"));
  EXPECT_THAT(env({}, "abacus"), HasSubstr("'abacus' is neither cpu nor a device"));
  EXPECT_THAT(env({{"CUDA_VISIBLE_DEVICES", ""}}, "cuda"),
              AnyOf(HasSubstr("none: cuda was asked for"), HasSubstr("neither cpu nor")));
}

TEST(LocalRank, CountsTheRanksBeforeOnTheSameHost) {
  const std::vector<std::string> hosts = {"a", "b", "a", "b", "b"};
  std::vector<int64_t> numbers;
  for (int rank = 0; rank < 5; ++rank) numbers.push_back(count_before(hosts, rank));
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 0, 1, 1, 2}));
  on_ranks(3, [](Communicator& world) { EXPECT_EQ(local_rank(world), world.rank()); });
}

TEST(TryMessages, TimesOfEverySizeOnHostAndDevice) {
  fake::install();
  on_ranks(3, [](Communicator& world) {
    const auto staged = make_device_communicator(world.shared_from_this(), fake::device(world.rank()));
    fake::exchange_device(world.rank());
    for (const auto& all :
         {check_connectivity(world, at::kCPU), check_connectivity(*staged, fake::device(world.rank()))}) {
      ASSERT_EQ(all.size(), 5);
      EXPECT_EQ(all[0].bytes, 8);
      for (const MessageTimes& times : all) EXPECT_TRUE(times.ring > 0 && times.all_reduce > 0);
    }
  });
  on_ranks(1, [](Communicator& world) { EXPECT_EQ(check_connectivity(world, at::kCPU).size(), 5); });
}

// Waiting of the device is lost: what arrives is not what was sent, and every rank gets an error.
TEST(TryMessages, NumbersThatArriveChangedAreAnError) {
  fake::install();
  on_ranks(2, [](Communicator& world) {
    const auto staged = make_device_communicator(world.shared_from_this(), fake::device(world.rank()));
    fake::exchange_device(world.rank());
    world.barrier();
    if (world.rank() == 0) fake::lose({.of_pool_streams = true, .of_the_host = true});
    world.barrier();
    const std::string text = message_of([&] { check_connectivity(*staged, fake::device(world.rank())); });
    world.barrier();
    fake::lose({});
    EXPECT_THAT(text, AllOf(HasSubstr("messages arrive changed"), HasSubstr("\n  fix   ")));
  });
}

}  // namespace
}  // namespace moonhalo::test_environment_report
