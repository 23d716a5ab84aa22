// SPDX-License-Identifier: Apache-2.0
// Redistributes a 64 MiB float32 tensor over four thread ranks, on a line and on a square, between every pair of a
// table of placements. For each pair: bytes that were sent against the fewest possible (counted element by element
// from the intervals, tests/support/fewest.h), the time, and its ratio to a plain memcpy of the same bytes by the
// same four threads, and of the bytes of the four results (what stays on a rank must be copied too). Medians of
// interleaved rounds.
//   bench_redistribute [ROUNDS]
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "tests/support/fewest.h"
#include "tests/support/oracle.h"

namespace mh = moonhalo;
namespace {

constexpr int64_t kRows = 4096, kColumns = 4096, kScale = 256;  // counted on 16 x 16, moved on 4096 x 4096
constexpr int kRanks = 4;

using Placements = std::vector<mh::Placement>;

Placements scaled(Placements placements, int64_t factor) {
  for (auto& placement : placements) {
    for (auto& size : placement.sizes) size *= factor;
  }
  return placements;
}

std::string text(const Placements& placements) {
  std::string out;
  for (const auto& placement : placements) {
    out += out.empty() ? "" : " ";
    if (placement.is_replicate()) out += "R";
    if (placement.is_partial()) out += "P";
    if (placement.is_shard()) out += "S" + std::to_string(placement.dim) + (placement.sizes.empty() ? "" : "u");
  }
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds from the moment all ranks stand ready to the moment the last one has ended.
template <typename Body>
double timed(mh::Communicator& world, const Body& body) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  body();
  world.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Plain {
  at::Tensor from = at::ones({kRows * kColumns}, at::kFloat), to = at::ones({kRows * kColumns}, at::kFloat);
  void copy(int64_t bytes) {
    const auto size = static_cast<int64_t>(from.nbytes());
    for (; bytes > 0; bytes -= size) {  // a rank may be sent more than one tensor
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(std::min(bytes, size)));
    }
  }
};

void measure(const std::vector<int64_t>& mesh_shape, const std::vector<Placements>& table, int rounds) {
  mh::run_ranks(kRanks, [&](mh::Communicator& world) {
    const auto mesh = mh::init_device_mesh(world, "cpu", mesh_shape);
    const at::Tensor full = at::arange(kRows * kColumns, at::kFloat).view({kRows, kColumns});
    const std::vector<int64_t> small = {kRows / kScale, kColumns / kScale};
    std::vector<int64_t> there(kRanks);
    std::iota(there.begin(), there.end(), int64_t{0});
    Plain plain;
    for (const Placements& from : table) {
      const at::Tensor x = mh::testing::shard_of(full, mesh, scaled(from, kScale));
      for (const Placements& to : table) {
        if (text(from) == text(to)) continue;
        const auto target = mh::make_spec(mesh, full.sizes(), scaled(to, kScale));
        const int64_t before = world.stats().total().bytes;
        const int64_t result = mh::to_local(mh::redistribute(x, target)).nbytes();
        at::Tensor sums = at::tensor({world.stats().total().bytes - before, result}, at::kLong);
        world.all_reduce(sums);
        const int64_t moved = sums[0].item<int64_t>(), results = sums[1].item<int64_t>();
        std::vector<double> seconds, same_bytes, all_bytes;
        for (int round = 0; round < rounds; ++round) {
          seconds.push_back(timed(world, [&] { mh::redistribute(x, target); }));
          same_bytes.push_back(timed(world, [&] { plain.copy(moved / kRanks); }));
          all_bytes.push_back(timed(world, [&] { plain.copy(results / kRanks); }));
        }
        if (world.rank() != 0) continue;
        const int64_t fewest =
            4 * kScale * kScale *
            mh::testing::fewest_elements(*mh::make_spec(mesh, small, from), *mh::make_spec(mesh, small, to), there);
        const double mib = 1 << 20;
        std::printf(
            "%-8s %-8s %8.0f %8.0f %8s %9.2f %9s %9.2f\n", text(from).c_str(), text(to).c_str(), moved / mib,
            fewest / mib,
            fewest == 0 ? (moved == 0 ? "1.00" : "inf") : std::to_string(double(moved) / fewest).substr(0, 4).c_str(),
            median(seconds) * 1e3,
            moved == 0 ? "-" : std::to_string(median(seconds) / median(same_bytes)).substr(0, 5).c_str(),
            median(seconds) / median(all_bytes));
        std::fflush(stdout);
      }
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  const auto r = mh::replicate(), p = mh::partial();
  std::printf(
      "64 MiB float32 [4096, 4096], four thread ranks, medians of %d rounds; u: blocks of 1/16, 9/16, 2/16, 4/16 (or "
      "5/16, 11/16)\n",
      rounds);
  std::printf("%-8s %-8s %8s %8s %8s %9s %9s %9s\n", "from", "to", "MiB", "fewest", "ratio", "ms", "/memcpy",
              "/results");
  measure({4}, {{r}, {p}, {mh::shard(0)}, {mh::shard(0, {1, 9, 2, 4})}, {mh::shard(1)}, {mh::shard(1, {1, 9, 2, 4})}},
          rounds);
  measure({2, 2},
          {{r, mh::shard(0)},
           {mh::shard(0), r},
           {mh::shard(0), mh::shard(1)},
           {mh::shard(1, {5, 11}), mh::shard(0)},
           {mh::shard(0), mh::shard(0)},
           {p, mh::shard(1)},
           {p, p},
           {r, r}},
          rounds);
  return 0;
}
