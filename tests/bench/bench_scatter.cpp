// SPDX-License-Identifier: Apache-2.0
// Reads a 1 GiB contiguous float32 dataset as blocks of four thread ranks, against one plain H5Dread
// of the whole file, in turns, from a warm page cache. Prints median rates, their ratio and the
// memory above the blocks: the growth of the process's peak resident size (VmHWM, reset before each
// scatter) less the bytes of all blocks. That is the sum over the four ranks, so an upper bound for
// any one of them.
//   bench_scatter [FOLDER]    the file is made in FOLDER (default: the system's temporary one)
#include <ATen/ATen.h>
#include <hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/support/process_memory.h"

namespace mh = moonhalo;
namespace {

constexpr int64_t kShape[] = {256, 1024, 1024};
constexpr int kRanks = 4;
constexpr int kRounds = 7;
constexpr double kGiB = 1 << 30;

struct Case {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<mh::Placement> placements;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// CPU time of all threads; on a busy machine it says more than the wall clock.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Measured {
  double seconds = 0;
  double cpu = 0;
  int64_t extra_bytes = 0;
};

Measured read_plainly(const std::string& path) {
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t dataset = H5Dopen2(file, "x", H5P_DEFAULT);
  const at::Tensor whole = at::empty(kShape, at::kFloat);
  const herr_t status = H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, whole.mutable_data_ptr());
  TORCH_CHECK(status >= 0, "bench_scatter: H5Dread failed");
  H5Dclose(dataset);
  H5Fclose(file);
  return {seconds_since(begin), cpu_seconds() - cpu, 0};
}

/// From the moment all ranks stand ready to the moment the last one has its block.
Measured read_blocks(const std::string& path, const Case& c) {
  Measured measured;
  mh::run_ranks(kRanks, [&](mh::Communicator& world) {
    const auto mesh = mh::init_device_mesh(world, "cpu", c.mesh);
    world.barrier();
    if (world.rank() == 0) mh::testing::reset_peak_memory();
    const int64_t resident = mh::testing::process_memory("VmRSS");
    world.barrier();
    const double cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    const int64_t before = mh::io::bytes_read();

    const at::Tensor x = mh::scatter_tensor(mh::io::open(path)["x"], mesh, c.placements);

    world.barrier();
    const double seconds = seconds_since(begin);
    const int64_t block = mh::to_local(x).numel() * 4;
    TORCH_CHECK(mh::io::bytes_read() - before == block, "bench_scatter: a rank read ", mh::io::bytes_read() - before,
                " bytes for a block of ", block);
    if (world.rank() == 0) {
      measured = {seconds, cpu_seconds() - cpu, mh::testing::process_memory("VmHWM") - resident - x.numel() * 4};
    }
    world.barrier();
  });
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  const std::string path = folder / ("bench_scatter_" + std::to_string(getpid()) + ".h5");
  {
    mh::io::File file = mh::io::open(path, "w");
    file.write("x", at::arange(kShape[0] * kShape[1] * kShape[2], at::kFloat).view(kShape));
    file.close();
  }
  const std::vector<Case> cases = {
      {"Shard(0)", {4}, {mh::shard(0)}},
      {"Shard(1)", {4}, {mh::shard(1)}},
      {"Shard(2)", {4}, {mh::shard(2)}},
      {"Shard(1), Shard(2)", {2, 2}, {mh::shard(1), mh::shard(2)}},
      {"Shard(0, uneven)", {4}, {mh::shard(0, {100, 80, 60, 16})}},
  };
  read_plainly(path);
  std::printf("1 GiB float32 %s, %d thread ranks, page cache warm, medians of %d rounds\n",
              mh::shape_string(kShape).c_str(), kRanks, kRounds);
  std::printf("%-20s %14s %14s %6s %7s %13s %13s %10s %7s\n", "placements", "H5Dread GiB/s", "scatter GiB/s", "ratio",
              "target", "H5Dread CPU s", "scatter CPU s", "extra MiB", "target");
  for (const Case& c : cases) {
    std::vector<double> plain, plain_cpu, blocks, blocks_cpu, extra;
    for (int round = 0; round < kRounds; ++round) {
      const Measured whole = read_plainly(path);
      plain.push_back(whole.seconds);
      plain_cpu.push_back(whole.cpu);
      const Measured measured = read_blocks(path, c);
      blocks.push_back(measured.seconds);
      blocks_cpu.push_back(measured.cpu);
      extra.push_back(static_cast<double>(measured.extra_bytes) / (1 << 20));
    }
    const double gib = static_cast<double>(kShape[0] * kShape[1] * kShape[2] * 4) / kGiB;
    std::printf("%-20s %14.2f %14.2f %6.2f %7.2f %13.3f %13.3f %10.1f %7.0f\n", c.name.c_str(), gib / median(plain),
                gib / median(blocks), median(plain) / median(blocks), 1.0, median(plain_cpu), median(blocks_cpu),
                *std::max_element(extra.begin(), extra.end()), 32.0);
  }
  std::filesystem::remove(path);
  return 0;
}
