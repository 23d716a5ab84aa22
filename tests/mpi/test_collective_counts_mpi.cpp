// SPDX-License-Identifier: Apache-2.0
// Messages and bytes of every collective of MPI processes, counted where they are handed to MPI.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <string>

#include "tests/mpi/world.h"
#include "tests/support/collective_formulas.h"

namespace {

int64_t messages = 0, bytes = 0;

}  // namespace

// Comes before MPI's own, which is left its other name.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  ++messages;
  bytes += int64_t{size} * count;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace moonhalo::test_collective_counts_mpi {
namespace {

TEST(MpiCollectiveCounts, Y18_AreThoseOfTheFormulas) {
  Communicator& world = testing::mpi_world();
  const int ranks = world.size();
  for (const testing::CountedVerb& verb : testing::counted_verbs()) {
    if (verb.name == std::string("barrier") || verb.name == std::string("broadcast")) continue;  // MPI's own
    // A rank that has waited for a second sends notes, too (mpi_deadlock_detector.h): then it is done again.
    at::Tensor most;
    for (bool again = true; again; again = most[2].item<int64_t>() != 0) {
      world.barrier();
      messages = bytes = 0;
      const auto begin = std::chrono::steady_clock::now();
      verb.call(world);
      const auto taken = std::chrono::steady_clock::now() - begin;
      most = at::tensor({messages, bytes, int64_t{taken >= std::chrono::seconds(1)}}, at::kLong);
      world.all_reduce(most, ReduceOp::kMax);
    }
    EXPECT_EQ(most[0].item<int64_t>(), verb.messages(ranks)) << verb.name << " of " << ranks;
    EXPECT_NEAR(static_cast<double>(most[1].item<int64_t>()) / static_cast<double>(verb.unit(ranks)), verb.bytes(ranks),
                1e-9)
        << verb.name << " of " << ranks;
  }
}

}  // namespace
}  // namespace moonhalo::test_collective_counts_mpi
