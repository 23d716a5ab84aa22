// SPDX-License-Identifier: Apache-2.0
// Runs under mpirun. Every rank runs every test; rank 0 prints all results, the others their failures.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <type_traits>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/device/device_watch.h"
#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/comm/mpi/mpi_communicator.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "tests/mpi/world.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"
#include "tests/support/verbs.h"

namespace moonhalo {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::verb_cases;

CommunicatorPtr world;

// A rank that fails alone would leave the others waiting for it.
void run_case(Communicator& comm, size_t index) {
  try {
    verb_cases()[index].check(comm);
  } catch (const std::exception& error) {
    comm.abort(std::string(verb_cases()[index].name) + ": " + error.what());
  }
}

class MpiCommunicator : public ::testing::TestWithParam<size_t> {};

TEST_P(MpiCommunicator, PassesTheCase) { run_case(*world, GetParam()); }

TEST_P(MpiCommunicator, PassesTheCaseInSmallPieces) {
  ::setenv("MOONHALO_MPI_CHUNK_BYTES", "4000", 1);
  const MPI_Comm everyone = MPI_COMM_WORLD;
  const CommunicatorPtr comm = make_mpi_communicator(&everyone);
  comm->set_timeout(testing::kHang);

  run_case(*comm, GetParam());

  ::unsetenv("MOONHALO_MPI_CHUNK_BYTES");
}

INSTANTIATE_TEST_SUITE_P(Cases, MpiCommunicator, ::testing::Range(size_t{0}, verb_cases().size()),
                         [](const auto& info) { return verb_cases()[info.param].name; });

TEST(MpiWorld, TakesTheCallersCommunicatorAndKeepsItsMessagesApart) {
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -world->rank(), &reversed);
  const CommunicatorPtr ours = make_mpi_communicator(&reversed);
  const CommunicatorPtr fortran = make_mpi_communicator_from_fortran(MPI_Comm_c2f(reversed));
  const int right = (ours->rank() + 1) % ours->size();
  const int left = (ours->rank() + ours->size() - 1) % ours->size();
  int got = -1;
  MPI_Request pending[2];
  MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, reversed, &pending[0]);
  at::Tensor from_left = at::zeros({1});

  ours->exchange({{right, at::full({1}, 1.0 * ours->rank())}}, {{left, from_left}});
  const int mine = 1000 + ours->rank();
  MPI_Isend(&mine, 1, MPI_INT, right, 1, reversed, &pending[1]);
  MPI_Waitall(2, pending, MPI_STATUSES_IGNORE);
  MPI_Comm_free(&reversed);
  at::Tensor ones = at::ones({1});
  fortran->all_reduce(ones);

  EXPECT_EQ(ours->rank(), world->size() - 1 - world->rank());
  EXPECT_STREQ(ours->backend(), "mpi");
  EXPECT_EQ(from_left.item<int>(), left);
  EXPECT_EQ(got, 1000 + left);
  EXPECT_EQ(ones.item<int>(), world->size());
  EXPECT_TRUE(has_mpi());
  EXPECT_THROW(make_mpi_communicator(static_cast<const void*>(nullptr)), c10::ValueError);
  const MPI_Comm none = MPI_COMM_NULL;
  EXPECT_THROW(make_mpi_communicator(&none), c10::ValueError);
}

// The sums of both backends may be compared with ==, whatever the dtype.
TEST(MpiWorld, GivesTheSameBitsAsThreads) {
  const int n = world->size();
  for (const int64_t elements : {100, 30000}) {
    const auto part = [&](int rank) { return (at::arange(elements, at::kFloat) * 0.37 + rank * 1.1).sin(); };
    at::Tensor with_mpi = part(world->rank()), with_threads;
    world->all_reduce(with_mpi, ReduceOp::kAvg);
    testing::on_ranks(n, [&](Communicator& comm) {
      at::Tensor data = part(comm.rank());
      comm.all_reduce(data, ReduceOp::kAvg);
      if (comm.rank() == 0) with_threads = data;
    });
    EXPECT_TRUE(at::equal(with_mpi, with_threads));
  }
}

TEST(MpiErrors, SilenceEndsInATimeoutThatNamesTheRank) {
  const CommunicatorPtr part = world->split(0, world->rank());
  part->set_timeout(300ms);
  const int last = world->size() - 1;

  if (world->rank() == 0) {
    at::Tensor never = at::zeros({5});
    EXPECT_THAT(message_of([&] {
                  part->exchange({}, {{last, never}});
                }),
                AllOf(HasSubstr("exchange timed out after 0.3 s on rank 0"),
                      HasSubstr("no message to or from rank " + std::to_string(last))));
    EXPECT_THAT(message_of([&] { part->barrier(); }), HasSubstr("barrier timed out"));
  }
  world->barrier();
}

// By the note of a rank whose call has failed: the others may be waiting for their devices, where no verb looks.
TEST(MpiErrors, X16_ARankThatPartsIsHeardOfWhereDevicesAreWaitedFor) {
  testing::fake::install();
  const MPI_Comm everyone = MPI_COMM_WORLD;
  const CommunicatorPtr group = make_mpi_communicator(&everyone);
  CommunicatorBackend& backend = backend_of(*group);
  ASSERT_TRUE(backend.any_thread());
  group->barrier();
  EXPECT_EQ(backend.peer_failure(1), "");
  backend.note_device_call(0);
  world->barrier();

  if (world->rank() == 1) {
    backend.suspend();
  } else {
    DeviceWatch watch(group);
    const auto never = std::make_shared<c10::Event>(c10::kPrivateUse1);
    watch.begin(group, {.kind = CommStats::kAllReduce}, never, testing::kHang);
    while (!watch.failed()) std::this_thread::sleep_for(1ms);
    EXPECT_THAT(message_of([&] { watch.check("all_reduce"); }),
                HasSubstr("rank 1 of the world has failed or has ended"));
  }
  world->barrier();
  backend.resume();
  group->barrier();
  EXPECT_EQ(backend.peer_failure(1), "");
}

// Where calls are not compared, messages still are.
TEST(MpiErrors, MessagesOfTheWrongSizeAreRefused) {
  const CommunicatorPtr part = world->split(0, world->rank());
  set_check_calls(*world, false);
  at::Tensor longer = at::zeros({8}), shorter = at::zeros({2});

  if (world->rank() == 0) {
    part->exchange({{1, at::ones({5})}, {1, at::ones({5})}}, {});
  } else if (world->rank() == 1) {
    EXPECT_THAT(message_of([&] { part->exchange({}, {{0, longer}}); }), HasSubstr("20 bytes sent, 32 expected"));
    EXPECT_THAT(message_of([&] { part->exchange({}, {{0, shorter}}); }), HasSubstr("MPI_ERR_TRUNCATE"));
  } else {
    part->exchange({}, {});
  }
  set_check_calls(*world, true);
}

// The call ends when its own messages have, too: their memory is free then.
TEST(MpiErrors, AMessageOfTheWrongSizeLeavesNoSendUnderWay) {
  const CommunicatorPtr part = world->split(0, world->rank());
  set_check_calls(*world, false);
  at::Tensor large = at::ones({1 << 18}), longer = at::zeros({8});

  if (world->rank() == 0) {
    part->exchange({{1, at::ones({5})}}, {});
    part->exchange({}, {{1, large}});
  } else if (world->rank() == 1) {
    EXPECT_THAT(message_of([&] {
                  part->exchange({{0, large}}, {{0, longer}});
                }),
                HasSubstr("20 bytes sent, 32 expected"));
    EXPECT_EQ(large.use_count(), 1);
  } else {
    part->exchange({}, {});
  }
  set_check_calls(*world, true);
}

// Users pass it by value; without the header it would become the address of something else.
TEST(MpiCommGiven, IsTakenItselfOrByItsAddressAndRefusedWhereItBecameAnAddress) {
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);

  for (const CommunicatorPtr& made :
       {make_mpi_communicator(MPI_COMM_WORLD), make_mpi_communicator(other), make_mpi_communicator(&other)}) {
    made->barrier();
    EXPECT_EQ(made->size(), world->size());
  }
  if constexpr (std::is_pointer_v<MPI_Comm>) {
    for (MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF, other}) {
      const auto* const address = reinterpret_cast<const void*>(comm);
      EXPECT_THAT(message_of([&] { make_mpi_communicator(address); }),
                  AllOf(HasSubstr("a communicator itself, not its address"), HasSubstr("mpi_communicator.h")));
    }
  }
  MPI_Comm_free(&other);
}

// Does what rank 1 does before its world is there, like misbehave.
void come_late(const std::string& how) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  if (how != "late_init") return;
  ::setenv("MOONHALO_TIMEOUT_S", "1", 1);
  if (std::string(rank ? rank : "") != "1") return;
  std::fprintf(stderr, "all ranks work\n");
  std::this_thread::sleep_for(60s);
}

// The way in which the program is to end, for a script that starts it so (see killed_rank.cmake).
void misbehave(const std::string& how) {
  if (how == "late_end" || how == "late_dup" || how == "exit_alone") {
    backend_of(*world).set_time_limit(1s);
    ::setenv("MOONHALO_TIMEOUT_S", "1", 1);  // of communicators to come
    if (world->rank() == 0) std::fprintf(stderr, "all ranks work\n");
    if (world->rank() == 1 && how == "exit_alone") std::exit(5);
    if (world->rank() == 1 || how == "exit_alone") std::this_thread::sleep_for(60s);
    if (how == "late_dup") make_mpi_communicator(MPI_COMM_WORLD);
    std::exit(EXIT_SUCCESS);
  }
  at::Tensor data = at::ones({10});
  for (int step = 0;; ++step) {
    if (step == 10 && world->rank() == 0) std::fprintf(stderr, "all ranks work\n");
    if (step == 20 && world->rank() == 1) {
      if (how == "returns") std::exit(EXIT_SUCCESS);
      if (how == "killed") ::raise(SIGKILL);
      if (how == "abort") world->abort("the disk is full");
      if (how == "exception") throw std::runtime_error("nothing catches this");
    }
    world->all_reduce(data);
  }
}

class FailuresOnly : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", world->rank(), result.file_name(), result.line_number(),
                 result.message());
  }
};

}  // namespace

Communicator& testing::mpi_world() { return *world; }

}  // namespace moonhalo

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) moonhalo::come_late(argv[1]);
  moonhalo::world = moonhalo::make_mpi_world();
  if (argc > 1) {
    moonhalo::misbehave(argv[1]);
  }
  moonhalo::world->set_timeout(moonhalo::testing::kHang);
  if (moonhalo::world->rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new moonhalo::FailuresOnly);
  }
  return RUN_ALL_TESTS();
}
