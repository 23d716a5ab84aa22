// SPDX-License-Identifier: Apache-2.0
// Fourier transforms of cut fields over thread ranks. For each: bytes that were sent against the fewest that its
// pencils need (counted from the blocks' intersections), and the time against one local transform of the whole field
// on as many cores. Medians of interleaved rounds.
//   bench_fft [ROUNDS] [RANKS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "tests/support/oracle.h"

namespace mh = moonhalo;
namespace {

using Sizes = std::vector<int64_t>;

// A field cut along `from`, whose pencils are cut along `through`; `halved`: the dim a real transform halves (-1:
// complex).
struct Field {
  const char* name;
  Sizes shape;
  int64_t from, through, halved;
  std::function<at::Tensor(const at::Tensor&)> transform;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Elements that change hands when the balanced cut of dim `a` becomes that of dim `b`: all but those in both blocks of
// a rank.
int64_t moved(const Sizes& shape, int64_t a, int64_t b, int64_t ranks) {
  int64_t all = 1, stay = 0;
  for (const int64_t extent : shape) all *= extent;
  const auto rows = mh::balanced_sizes(shape[a], ranks), columns = mh::balanced_sizes(shape[b], ranks);
  for (int64_t r = 0; r < ranks; ++r) stay += all / shape[a] / shape[b] * rows[r] * columns[r];
  return all - stay;
}

// Bytes of both moves; a real element counts 4, a complex one 8.
int64_t fewest(const Field& field, int64_t ranks) {
  Sizes half = field.shape;
  if (field.halved < 0) return 2 * 8 * moved(half, field.from, field.through, ranks);
  half[field.halved] = half[field.halved] / 2 + 1;
  return 8 * moved(half, field.from, field.through, ranks) + 4 * moved(field.shape, field.from, field.through, ranks);
}

void measure(const Field& field, int ranks, int rounds) {
  const auto dtype = field.halved < 0 ? at::kComplexFloat : at::kFloat;
  const at::Tensor full = mh::testing::make_tensor(field.shape, 1, dtype);
  at::set_num_threads(ranks);
  field.transform(full);
  std::vector<double> local, sharded;
  int64_t bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    at::set_num_threads(ranks);
    auto begin = std::chrono::steady_clock::now();
    field.transform(full);
    local.push_back(seconds_since(begin));
    mh::run_ranks(ranks, [&](mh::Communicator& world) {
      at::set_num_threads(1);
      const auto mesh = mh::init_device_mesh(world, "cpu", {ranks});
      const at::Tensor x = mh::testing::shard_of(full, mesh, {mh::shard(field.from)});
      for (const bool warm : {false, true}) {
        world.barrier();
        const int64_t before = world.stats().total().bytes;
        const auto start = std::chrono::steady_clock::now();
        field.transform(x);
        const int64_t sent = world.stats().total().bytes - before;
        world.barrier();
        if (!warm) continue;
        at::Tensor sum = at::tensor({sent}, at::kLong);
        world.all_reduce(sum);
        if (world.rank() != 0) continue;
        sharded.push_back(seconds_since(start));
        bytes = sum.item<int64_t>();
      }
    });
  }
  const int64_t least = fewest(field, ranks);
  std::printf("%-34s %9.2f %9.2f %7.4f %9.2f %9.2f %7.2f\n", field.name, bytes / 1048576.0, least / 1048576.0,
              static_cast<double>(bytes) / static_cast<double>(least), median(sharded) * 1e3, median(local) * 1e3,
              median(sharded) / median(local));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7,
            ranks = argc > 2 ? std::max(2, std::atoi(argv[2])) : 2;
  const Field fields[] = {
      {"fft2 [1024, 1024] rows", {1024, 1024}, 0, 1, -1, [](const at::Tensor& x) { return at::fft_fft2(x); }},
      {"fft along rows [1023, 4096]",
       {1023, 4096},
       0,
       1,
       -1,
       [](const at::Tensor& x) { return at::fft_fft(x, {}, 0); }},
      {"fft2 [8, 16, 256, 256] height",
       {8, 16, 256, 256},
       2,
       0,
       -1,
       [](const at::Tensor& x) { return at::fft_fft2(x); }},
      {"rfft2 [8, 16, 256, 256] height",
       {8, 16, 256, 256},
       2,
       0,
       3,
       [](const at::Tensor& x) { return at::fft_rfft2(x); }},
      {"rfft2 [8, 16, 256, 256] width",
       {8, 16, 256, 256},
       3,
       0,
       3,
       [](const at::Tensor& x) { return at::fft_rfft2(x); }},
      {"fftn [128, 128, 128] first", {128, 128, 128}, 0, 1, -1, [](const at::Tensor& x) { return at::fft_fftn(x); }},
  };
  std::printf(
      "single precision, %d thread ranks of one core, one device on %d cores; medians of %d "
      "rounds\n",
      ranks, ranks, rounds);
  std::printf("%-34s %9s %9s %7s %9s %9s %7s\n", "", "MiB", "fewest", "ratio", "ms", "local ms", "ratio");
  for (const Field& field : fields) measure(field, ranks, rounds);
  return 0;
}
