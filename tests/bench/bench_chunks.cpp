// SPDX-License-Identifier: Apache-2.0
// Reads a compressed field of 256 MiB (smooth waves and a little noise, byte shuffle) from a warm page cache, each way
// in turns with the named alternative, and prints medians of wall and processor time and their ratios: on a busy
// machine the processor's say more.
//   whole       one rank with two threads, against one H5Dread
//   cut         four thread ranks that cut whole-step chunks in space, against H5Dread of each rank's block (what
//               scatter_tensor did), and against a cut in time, which divides no chunk
//   plan        who reads which of a million chunks, for 4,096 ranks
//   bench_chunks [FOLDER]    the files are made in FOLDER (default: the system's temporary one)
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <hdf5.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/shares/io_plan.h"
#include "tests/bench/taking_turns.h"
#include "tests/bench/waves.h"
#include "tests/io/support/lzf_stream.h"
#include "tests/support/process_memory.h"

namespace mh = moonhalo;
namespace {

constexpr int64_t kShape[] = {64, 1024, 1024};
constexpr int kRanks = 4, kRounds = 5, kThreads = 2;
constexpr unsigned kLzf = 32000;

/// Chunks of the field: by gzip, or by the lzf stream of their shuffled bytes.
void make_file(const std::string& path, const at::Tensor& field, std::vector<hsize_t> chunk, bool lzf) {
  const hsize_t shape[] = {64, 1024, 1024};
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(3, shape, nullptr);
  H5Pset_chunk(list, 3, chunk.data());
  H5Pset_shuffle(list);
  const unsigned values[] = {4, 261, static_cast<unsigned>(chunk[0] * chunk[1] * chunk[2] * 4)};
  lzf ? H5Pset_filter(list, kLzf, H5Z_FLAG_OPTIONAL, 3, values) : H5Pset_deflate(list, 4);
  const hid_t id = H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
  if (!lzf) {
    H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, field.const_data_ptr());
  } else {
    for (hsize_t step = 0; step < shape[0]; ++step) {
      for (hsize_t row = 0; row < shape[1]; row += chunk[1]) {
        const at::Tensor part =
            field[static_cast<int64_t>(step)].narrow(0, static_cast<int64_t>(row), static_cast<int64_t>(chunk[1]));
        const at::Tensor bytes = part.contiguous().view(at::kByte).view({-1, 4}).t().contiguous();
        const std::string stored = mh::testing::lzf_stream(
            {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())});
        const hsize_t offset[] = {step, row, 0};
        H5Dwrite_chunk(id, H5P_DEFAULT, 0, offset, stored.size(), stored.data());
      }
    }
  }
  H5Dclose(id);
  H5Pclose(list);
  H5Sclose(space);
  H5Fclose(file);
}

/// H5Dread of a box, with HDF5's own chunk cache large enough for every chunk.
at::Tensor library_read(const std::string& path, const mh::Box& box) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), access = H5Pcreate(H5P_DATASET_ACCESS);
  H5Pset_chunk_cache(access, 12421, size_t{64} << 20, 0.75);
  const hid_t id = H5Dopen2(file, "x", access), space = H5Dget_space(id);
  std::vector<hsize_t> begin, count;
  for (const mh::Interval& rows : box) {
    begin.push_back(static_cast<hsize_t>(rows.begin));
    count.push_back(static_cast<hsize_t>(rows.size()));
  }
  H5Sselect_hyperslab(space, H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr);
  const hid_t memory = H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr);
  const at::Tensor out = at::empty(box.shape(), at::kFloat);
  TORCH_CHECK(H5Dread(id, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, out.mutable_data_ptr()) >= 0, "H5Dread failed");
  for (const hid_t open : {memory, space}) H5Sclose(open);
  H5Dclose(id);
  H5Pclose(access);
  H5Fclose(file);
  return out;
}

void whole(const char* what, const std::string& path, double target) {
  const mh::Box all = {{0, kShape[0]}, {0, kShape[1]}, {0, kShape[2]}};
  mh::bench::Times library, ours;
  at::set_num_threads(kThreads);
  TORCH_CHECK(at::equal(library_read(path, all), mh::io::open(path)["x"].read()), "not the same");
  for (int round = 0; round < kRounds; ++round) {
    library.take([&] { library_read(path, all); });
    ours.take([&] { mh::io::open(path)["x"].read(); });
  }
  mh::bench::print_ratios(what, library, ours, target);
}

/// From the moment all ranks stand ready to the moment the last one has its block.
template <typename Read>
void on_ranks(mh::bench::Times& times, const Read& read) {
  mh::run_ranks(kRanks, [&](mh::Communicator& world) {
    const auto mesh = mh::init_device_mesh(world, "cpu", {kRanks});
    world.barrier();
    if (world.rank() != 0) {
      read(mesh);
      return world.barrier();
    }
    times.take([&] {
      read(mesh);
      world.barrier();
    });
  });
}

void cut(const std::string& path) {
  mh::bench::Times in_time;
  for (const int64_t dim : {0, 1, 2}) {
    mh::bench::Times library, ours;
    std::atomic<int64_t> inflated{0}, stored{0};
    for (int round = 0; round < kRounds; ++round) {
      on_ranks(library, [&](const mh::MeshPtr& mesh) {
        const mh::SpecPtr spec = mh::make_spec(mesh, kShape, {mh::shard(dim)});
        library_read(path, mh::block_box(*spec, mesh->rank()));
      });
      on_ranks(ours, [&](const mh::MeshPtr& mesh) {
        const mh::io::IoStats before = mh::io::io_stats();
        mh::scatter_tensor(mh::io::open(path)["x"], mesh, {mh::shard(dim)});
        inflated += mh::io::io_stats().inflated - before.inflated;
        stored += mh::io::io_stats().stored - before.stored;
      });
    }
    const std::string name = "steps, 4 ranks, Shard(" + std::to_string(dim) + "): H5Dread of blocks";
    mh::bench::print_ratios(name.c_str(), library, ours, dim == 0 ? 1 : 5);
    const double field = 4.0 * static_cast<double>(kShape[0] * kShape[1] * kShape[2]) * kRounds;
    std::printf("%-44s inflated / field %.2f, stored bytes %.1f MiB\n", "", static_cast<double>(inflated) / field,
                static_cast<double>(stored) / kRounds / (1 << 20));
    if (dim == 0)
      in_time = ours;
    else
      mh::bench::print_ratios("  against Shard(0)", in_time, ours, 1 / 1.3);
  }
}

/// 10,000 steps of 10 x 10 tiles; a grid of ranks cuts the tiles.
void plan() {
  const mh::CommunicatorPtr world = mh::make_fake_communicator(1234, 4096);
  const auto mesh = mh::init_device_mesh(*world, "cpu", {64, 64});
  const mh::SpecPtr spec = mh::make_spec(mesh, {10000, 1000, 1000}, {mh::shard(1), mh::shard(2)});
  mh::testing::reset_peak_memory();
  const int64_t resident = mh::testing::process_memory("VmHWM");
  const double began = mh::bench::seconds();
  mh::io::ChunkGrid grid = {{{0, 10000}, 1}, {{0, 1000}, 100}, {{0, 1000}, 100}};
  const mh::io::IoPlan plan(std::move(grid), 4, spec);
  int64_t chunks = 0;
  for (int64_t round = 0; round < plan.rounds(); ++round) chunks += plan.cells_read(round, 1234).numel();
  std::printf(
      "plan: 1,000,000 chunks, 4,096 ranks: %.4f s (target 0.5), %lld KiB more memory, %lld rounds, %lld chunks for "
      "this rank\n",
      mh::bench::seconds() - began, static_cast<long long>((mh::testing::process_memory("VmHWM") - resident) >> 10),
      static_cast<long long>(plan.rounds()), static_cast<long long>(chunks));
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  const std::string path = folder / ("bench_chunks_" + std::to_string(getpid()) + ".h5");
  const at::Tensor field = mh::bench::waves(kShape);
  std::printf("256 MiB float32, medians of %d rounds: seconds\n", kRounds);
  mh::bench::print_heading();
  make_file(path, field, {1, 256, 1024}, /*lzf=*/false);
  whole("gzip tiles, whole, 2 threads: one H5Dread", path, 4);
  make_file(path, field, {1, 256, 1024}, /*lzf=*/true);
  mh::io::open(path);  // from now on H5Dread supports lzf
  whole("lzf tiles, whole, 2 threads: one H5Dread", path, 3);
  make_file(path, field, {1, 1024, 1024}, /*lzf=*/false);
  cut(path);
  plan();
  std::filesystem::remove(path);
  return 0;
}
