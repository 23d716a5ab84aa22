// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "moonhalo/engine/launch/launch.h"

namespace moonhalo::test_launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables) {
  return detect_launch([&](const char* variable) {
    const auto found = variables.find(variable);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

template <typename Error, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kTorchrun = {
    {"RANK", "5"},       {"WORLD_SIZE", "8"},      {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"},
    {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
const Variables kHydra = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kPals = {{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}, {"PMI_LOCAL_RANK", "2"}, {"PMI_LOCAL_SIZE", "4"}};
const Variables kMvapich = {
    {"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_LOCAL_RANK", "0"}};
const Variables kPalsOwn = {{"PALS_RANKID", "6"}, {"PALS_LOCAL_RANKID", "2"}, {"PALS_APID", "5c1f"}};
const Variables kFlux = {
    {"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_LOCAL_ID", "1"}, {"FLUX_JOB_ID", "f2Xy"}};
const Variables kFluxPmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "5"}};
const Variables kPmix = {{"PMIX_RANK", "4"}, {"PMIX_NAMESPACE", "prterun-1"}};
const Variables kStep = {{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "7"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_ID", "0"}};
const Variables kTasks = {{"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}, {"SLURM_NODEID", "2"}};

struct LaunchCase {
  const char* name;
  Variables variables;
  Launch::Kind kind;
  int rank, size, local_rank, local_size;
  const char* why;
};

const LaunchCase kCases[] = {
    {"nothing", {}, Launch::kSingle, 0, 1, 0, 1, "no launcher's variables"},
    {"torchrun", kTorchrun, Launch::kTorchrun, 5, 8, 1, 4, "MASTER_PORT=29500"},
    {"open_mpi", kOpenMpi, Launch::kOpenMpi, 2, 3, 0, 1, "OMPI_COMM_WORLD_RANK=2"},
    {"hydra", kHydra, Launch::kPmi, 1, 4, 1, 2, "PMI_RANK=1"},
    {"pals", kPals, Launch::kPmi, 6, 7, 2, 4, "PMI_SIZE=7"},
    {"pals_own_variables", kPals + kPalsOwn, Launch::kPals, 6, 7, 2, 4, "PALS_RANKID=6"},
    {"mpirun_in_a_task_of_pals", kHydra + kPalsOwn, Launch::kPmi, 1, 4, 1, 2, "PMI_RANK=1"},
    {"flux", kFlux, Launch::kFlux, 3, 4, 1, -1, "FLUX_JOB_ID=f2Xy"},
    {"flux_with_pmi", kFlux + kFluxPmi, Launch::kFlux, 3, 4, 1, -1, "PMI_RANK=3"},
    {"mpirun_in_a_task_of_flux", kFlux + kHydra, Launch::kPmi, 1, 4, 1, 2, "PMI_RANK=1"},
    {"flux_of_one_task", {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}, Launch::kSingle, 0, 1, 0, 1, "no launcher"},
    {"slurm_with_pmix", kStep + kPmix, Launch::kSlurm, 4, 7, 0, -1, "PMIX_RANK=4"},
    {"open_mpi_with_pmix", kOpenMpi + kPmix, Launch::kOpenMpi, 2, 3, 0, 1, "OMPI_COMM_WORLD_RANK=2"},
    {"mvapich", kMvapich, Launch::kPmi, 0, 2, 0, -1, "MV2_COMM_WORLD_SIZE=2"},
    {"slurm_step", kStep, Launch::kSlurm, 4, 7, 0, -1, "SLURM_STEP_ID=0"},
    {"slurm_third_node", kStep + kTasks, Launch::kSlurm, 4, 7, 0, 2, "SLURM_PROCID=4"},
    {"slurm_last_node", kStep + Variables{{"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}, {"SLURM_NODEID", "3"}},
     Launch::kSlurm, 4, 7, 0, 1, ""},
    {"slurm_batch_shell", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, Launch::kSingle, 0, 1, 0, 1, "no launcher"},
    {"slurm_batch_script",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "4294967291"}},
     Launch::kSingle,
     0,
     1,
     0,
     1,
     "no launcher"},
    {"slurm_one_task",
     {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "3"}},
     Launch::kSingle,
     0,
     1,
     0,
     1,
     "no launcher"},
    {"torchrun_incomplete", {{"RANK", "3"}, {"WORLD_SIZE", "4"}}, Launch::kSingle, 0, 1, 0, 1, "no launcher"},
    {"torchrun_before_mpi", kTorchrun + kOpenMpi, Launch::kTorchrun, 5, 8, 1, 4, "RANK=5"},
    {"open_mpi_before_pmi_and_slurm", kOpenMpi + kHydra + kStep, Launch::kOpenMpi, 2, 3, 0, 1, "OMPI"},
    {"pmi_before_slurm", kHydra + kStep, Launch::kPmi, 1, 4, 1, 2, "PMI"},
    {"empty_is_unset", {{"PMI_RANK", ""}, {"PMI_SIZE", "4"}}, Launch::kSingle, 0, 1, 0, 1, "no launcher"},
};

class DetectLaunch : public ::testing::TestWithParam<LaunchCase> {};

TEST_P(DetectLaunch, BelievesTheRightVariables) {
  const LaunchCase& expected = GetParam();

  const Launch launch = detect(expected.variables);

  EXPECT_EQ(launch.kind, expected.kind) << name(launch.kind);
  EXPECT_EQ(launch.rank, expected.rank);
  EXPECT_EQ(launch.size, expected.size);
  EXPECT_EQ(launch.local_rank, expected.local_rank);
  EXPECT_EQ(launch.local_size, expected.local_size);
  EXPECT_THAT(launch.why, HasSubstr(expected.why));
}

INSTANTIATE_TEST_SUITE_P(Cases, DetectLaunch, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(LaunchErrors, NumbersThatAreNoneOrDoNotFit) {
  EXPECT_THAT(error_of<c10::ValueError>([] {
                detect({{"PMI_RANK", "one"}, {"PMI_SIZE", "4"}});
              }),
              HasSubstr("PMI_RANK=one"));
  EXPECT_THAT(error_of<c10::ValueError>([] {
                detect({{"PMI_RANK", "-1"}, {"PMI_SIZE", "4"}});
              }),
              HasSubstr("PMI_RANK=-1"));
  EXPECT_THAT(error_of<c10::ValueError>([] {
                detect({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}});
              }),
              HasSubstr("launch: rank 4 of 4 does not exist"));
  EXPECT_THAT(error_of<c10::ValueError>([] { detect(kPmix); }), HasSubstr("no variable tells how many there are"));
}

// Whoever is believed, launchers that say otherwise are named.
TEST(NotBelieved, NamesVariablesThatSayOtherwise) {
  const auto text = [](const Variables& variables) { return detect(variables).ignored_variables; };

  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text(kTorchrun), "");
  EXPECT_EQ(text(kFlux + kFluxPmi), "");
  EXPECT_THAT(text(kTorchrun + kOpenMpi), HasSubstr("openmpi, rank 2 of 3 (OMPI_COMM_WORLD_RANK=2"));
  EXPECT_THAT(text(kTorchrun + kStep), HasSubstr("slurm, rank 4 of 7 (SLURM_PROCID=4"));
  EXPECT_THAT(text(kOpenMpi + kHydra + kStep), AllOf(HasSubstr("pmi, rank 1 of 4"), HasSubstr("; slurm, rank 4 of 7")));
  EXPECT_THAT(text(kOpenMpi + Variables{{"PMI_RANK", "x"}, {"PMI_SIZE", "3"}}),
              HasSubstr("launch: PMI_RANK is not a number of ranks"));
  EXPECT_THAT(text({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), HasSubstr("not Slurm, whose steps have an id"));
  EXPECT_THAT(text({{"RANK", "3"}, {"WORLD_SIZE", "4"}}),
              HasSubstr("not torchrun, which sets four variables: only RANK=3"));
  EXPECT_THAT(text({{"PMIX_RANK", "0"}}), HasSubstr("PMIX_RANK=0, which does not tell how many ranks there are"));
  EXPECT_THAT(text({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}), HasSubstr("not Flux"));
}

TEST(MakeWorld, FitsTheLaunchOrSaysWhyNot) {
  const Launch single = detect({}), torchrun = detect(kTorchrun), mpi = detect(kOpenMpi);

  EXPECT_EQ(make_world("", single)->size(), 1);
  EXPECT_STREQ(make_world("threads", single)->backend(), "threads");
  EXPECT_EQ(make_world("fake", torchrun)->size(), 8);
  EXPECT_EQ(make_world("fake", torchrun)->rank(), 5);
  EXPECT_THAT(error_of<c10::ValueError>([&] { make_world("threads", mpi); }),
              HasSubstr("cannot reach the other 2 processes"));
  EXPECT_THAT(error_of<c10::ValueError>([&] { make_world("thread", single); }), HasSubstr("did you mean 'threads'?"));
  EXPECT_THAT(error_of<c10::ValueError>([&] { make_world("carrier pigeon", single); }), HasSubstr("unknown backend"));
  EXPECT_STREQ(make_world("nccl", single)->backend(), "threads");
  EXPECT_STREQ(make_world("staged", single)->backend(), "threads");
  EXPECT_THAT(error_of<c10::ValueError>([&] { make_world("tcp", mpi); }), HasSubstr("set MASTER_ADDR"));
}

}  // namespace
}  // namespace moonhalo::test_launch
