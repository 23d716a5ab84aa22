// SPDX-License-Identifier: Apache-2.0
// Times the collectives: microseconds a call, of the slowest rank, medians of 15 rounds. BYTES is the tensor that is
// reduced, or what all ranks have together.
//   mpirun -n RANKS bench_collectives       processes
//   bench_collectives RANKS                 threads
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace {

namespace mh = moonhalo;
using Counts = std::vector<int64_t>;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;

template <typename Body>
double median_us(mh::Communicator& world, int calls, const Body& body) {
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    world.barrier();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    at::Tensor spent =
        at::full({1}, std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls, at::kDouble);
    world.all_reduce(spent, mh::ReduceOp::kMax);
    if (round > 0) rounds.push_back(spent.item<double>());
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void measure(mh::Communicator& world) {
  const int size = world.size();
  if (world.rank() == 0) {
    std::printf("%d ranks (%s)\n%10s %12s %12s %12s %12s\n", size, world.backend(), "bytes", "all_reduce",
                "reduce_scat.", "all_gather", "all_to_all");
  }
  for (const int64_t bytes : {4 * 16, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}) {
    const int64_t part = std::max<int64_t>(1, bytes / 4 / size), n = part * size;
    const int calls = static_cast<int>(std::clamp<int64_t>((8 << 20) / bytes, 1, 200));
    const Counts counts(size, part);
    at::Tensor whole = at::ones({n}), other = at::ones({n}), mine = at::ones({part});
    const double reduce = median_us(world, calls, [&] { world.all_reduce(whole, mh::ReduceOp::kAvg); });
    const double scatter =
        median_us(world, calls, [&] { world.reduce_scatter(whole, counts, mine, mh::ReduceOp::kAvg); });
    const double gather = median_us(world, calls, [&] { world.all_gather(mine, counts, other); });
    const double turn = median_us(world, calls, [&] { world.all_to_all(whole, counts, other, counts); });
    if (world.rank() == 0) {
      std::printf("%10ld %12.1f %12.1f %12.1f %12.1f\n", static_cast<long>(n * 4), reduce, scatter, gather, turn);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    mh::run_ranks(std::max(1, std::atoi(argv[1])), measure);
  } else {
    measure(*mh::make_mpi_world());
  }
}
