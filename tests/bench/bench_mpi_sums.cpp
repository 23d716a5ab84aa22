// SPDX-License-Identifier: Apache-2.0
// Compares all_reduce over MPI with MPI_Allreduce, which neither compares calls nor adds in the order of other
// backends. Microseconds a call of the slowest rank, medians; quotients of rounds that follow each other, their median
// and quartiles; microseconds of the processor, page faults and switches of rank 0, which polls while it waits.
//   mpirun -n RANKS bench_mpi_sums
#include <ATen/ATen.h>
#include <mpi.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/bench/taking_turns.h"

namespace {

namespace mh = moonhalo;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 60, kCalls = 4;

struct Measured {
  std::vector<double> us;
  double processor_ms = 0;
  int64_t faults = 0, switches = 0;
};

template <typename Sum>
void measure(Measured& measured, const Sum& sum) {
  rusage before{}, after{};
  MPI_Barrier(MPI_COMM_WORLD);
  getrusage(RUSAGE_SELF, &before);
  const double processor = mh::bench::processor_time();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kCalls; ++i) sum();
  double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kCalls;
  measured.processor_ms += mh::bench::processor_time() - processor;
  getrusage(RUSAGE_SELF, &after);
  measured.faults += after.ru_minflt - before.ru_minflt;
  measured.switches += after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw;
  MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  measured.us.push_back(us);
}

void print(const char* what, const Measured& measured) {
  constexpr double kAllCalls = kRounds * kCalls;
  std::printf("  %-13s %9.1f us %9.1f us of the processor %6.2f faults %7.2f switches\n", what,
              mh::bench::median(measured.us), measured.processor_ms * 1e3 / kAllCalls,
              static_cast<double>(measured.faults) / kAllCalls, static_cast<double>(measured.switches) / kAllCalls);
}

void compare(mh::Communicator& world, int64_t bytes) {
  at::Tensor data = at::zeros({bytes / 4});
  const auto ours = [&] { world.all_reduce(data); };
  const auto mpis = [&] {
    MPI_Allreduce(MPI_IN_PLACE, data.mutable_data_ptr(), static_cast<int>(bytes / 4), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  for (int i = 0; i < kCalls; ++i) {
    ours();
    mpis();
  }
  Measured our, mpi;
  std::vector<double> quotients;
  for (int round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) measure(mpi, mpis);
    measure(our, ours);
    if (round % 2 != 0) measure(mpi, mpis);
    quotients.push_back(our.us.back() / mpi.us.back());
  }
  if (world.rank() != 0) return;
  std::printf("%ld bytes: x %.2f (quartiles %.2f, %.2f)\n", static_cast<long>(bytes), mh::bench::median(quotients),
              mh::bench::quartile(quotients, 1), mh::bench::quartile(quotients, 3));
  print("all_reduce", our);
  print("MPI_Allreduce", mpi);
  std::fflush(stdout);
}

}  // namespace

int main() {
  const mh::CommunicatorPtr world = mh::make_mpi_world();
  for (const int64_t bytes : {64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20}) compare(*world, bytes);
}
