// SPDX-License-Identifier: Apache-2.0
// The k nearest of N points for as many queries: moonhalo::knn on one device, and cut over two thread ranks, against
// at::cdist and topk (all distances at once). Forward, and forward + backward through the distances. Medians of
// interleaved rounds, float32.
//   bench_points [ROUNDS] [THREADS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "tests/support/oracle.h"

namespace mh = moonhalo;
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

at::Tensor dense(const at::Tensor& query, const at::Tensor& points, int64_t k) {
  return std::get<0>(at::topk(at::cdist(query, points), k, -1, /*largest=*/false));
}

at::Tensor searched(const at::Tensor& query, const at::Tensor& points, int64_t k) {
  return std::get<0>(mh::knn(query, points, k));
}

using Search = at::Tensor (*)(const at::Tensor&, const at::Tensor&, int64_t);

double timed(Search search, const at::Tensor& query, const at::Tensor& points, int64_t k, bool backward) {
  const at::Tensor q = query.detach().requires_grad_(backward), p = points.detach().requires_grad_(backward);
  return seconds([&] {
    const at::Tensor distances = search(q, p, k);
    if (backward) distances.sum().backward();
  });
}

double timed_on_ranks(const at::Tensor& query, const at::Tensor& points, int64_t k, bool backward, int ranks) {
  double taken = 0;
  mh::run_ranks(ranks, [&](mh::Communicator& world) {
    at::set_num_threads(1);
    const auto mesh = mh::init_device_mesh(world, "cpu", {ranks});
    const at::Tensor q = mh::testing::shard_of(query, mesh, {mh::shard(0)}),
                     p = mh::testing::shard_of(points, mesh, {mh::shard(0)});
    for (const bool warm : {false, true}) {
      world.barrier();
      const double mine = seconds([&] {
        timed(searched, q, p, k, backward);
        world.barrier();
      });
      if (warm && world.rank() == 0) taken = mine;
    }
  });
  return taken;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5,
            threads = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  const struct {
    int64_t points, features, k;
  } cases[] = {{2000, 3, 8}, {10000, 3, 16}, {10000, 2, 1}, {4000, 32, 16}, {100000, 3, 16}};
  std::printf(
      "float32, as many queries as points, %d threads, and %d thread ranks of one; medians of %d "
      "rounds, ms\n",
      threads, threads, rounds);
  std::printf("%8s %3s %3s %-9s %12s %10s %8s %10s\n", "points", "D", "k", "", "cdist+topk", "knn", "faster",
              "on ranks");
  for (const auto& c : cases) {
    const at::Tensor query = mh::testing::make_tensor({c.points, c.features}, 1, at::kFloat),
                     points = mh::testing::make_tensor({c.points, c.features}, 2, at::kFloat);
    // All distances of the largest case would take 40 GB.
    const bool all = c.points <= 10000;
    for (const bool backward : {false, true}) {
      std::vector<double> theirs, ours, cut;
      for (int round = 0; round <= rounds; ++round) {
        at::set_num_threads(threads);
        const double a = all ? timed(dense, query, points, c.k, backward) : 0,
                     b = timed(searched, query, points, c.k, backward),
                     r = timed_on_ranks(query, points, c.k, backward, threads);
        if (round == 0) continue;
        theirs.push_back(a * 1e3);
        ours.push_back(b * 1e3);
        cut.push_back(r * 1e3);
      }
      std::printf("%8lld %3lld %3lld %-9s ", static_cast<long long>(c.points), static_cast<long long>(c.features),
                  static_cast<long long>(c.k), backward ? "with grad" : "forward");
      if (all) {
        std::printf("%12.1f %10.2f %8.1f", median(theirs), median(ours), median(theirs) / median(ours));
      } else {
        std::printf("%12s %10.2f %8s", "not run", median(ours), "-");
      }
      std::printf(" %10.2f\n", median(cut));
      std::fflush(stdout);
    }
  }
  return 0;
}
