// SPDX-License-Identifier: Apache-2.0
// Writes a field of 256 MiB (smooth waves and a little noise) into a file that stays in the page cache: two thread
// ranks against one H5Dwrite of the whole, in turns, both until it is on disk (fsync). Prints medians of wall and
// processor time and their ratios (on a busy machine the processor's say more: two ranks share the work, so 3.5 of wall
// time are 1.75 of it), and the size of the file against HDF5's.
//   bench_write [FOLDER [WORD]]    the files are made in FOLDER (default: the system's temporary one); only cases with
//                                  WORD in their names
#include <ATen/ATen.h>
#include <hdf5.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/fields/domain_file.h"
#include "tests/bench/taking_turns.h"
#include "tests/bench/waves.h"

namespace mh = moonhalo;
namespace {

constexpr int64_t kShape[] = {64, 1024, 1024};
constexpr int kRanks = 2, kRounds = 5;

void library_write(const std::string& path, const at::Tensor& field, const std::vector<int64_t>& chunk, int level) {
  const hsize_t shape[] = {64, 1024, 1024};
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(3, shape, nullptr);
  if (level > 0) {
    const std::vector<hsize_t> sizes(chunk.begin(), chunk.end());
    H5Pset_chunk(list, 3, sizes.data());
    H5Pset_shuffle(list);
    H5Pset_deflate(list, static_cast<unsigned>(level));
  }
  const hid_t id = H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
  TORCH_CHECK(H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, field.const_data_ptr()) >= 0, "H5Dwrite");
  H5Dclose(id);
  H5Pclose(list);
  H5Sclose(space);
  H5Fclose(file);
  mh::io::store_on_disk("bench_write", path);
}

struct Case {
  std::string name;
  int64_t dim;
  mh::io::WriteOptions options;
  double target;
};

void compare(const Case& one, const std::string& folder, const at::Tensor& field) {
  const mh::io::WriteOptions& options = one.options;
  const std::string theirs = folder + "/theirs.h5", ours = folder + "/ours.h5";
  mh::bench::Times library, ranks;
  double their_size = 0;
  for (int round = 0; round < kRounds; ++round) {
    // Both find the memory of the file before.
    std::filesystem::remove(ours);
    library.take([&] { library_write(theirs, field, options.chunks, options.compression); });
    their_size = static_cast<double>(std::filesystem::file_size(theirs));
    std::filesystem::remove(theirs);
    mh::run_ranks(kRanks, [&](mh::Communicator& world) {
      const auto mesh = mh::init_device_mesh(world, "cpu", {kRanks});
      const at::Tensor x = mh::distribute_tensor(field, mesh, {mh::shard(one.dim)});
      const auto write = [&] {
        mh::io::File out = mh::io::open(ours, "w");
        out.write("x", x, options);
        out.close();
      };
      world.barrier();
      world.rank() == 0 ? ranks.take(write) : write();
    });
  }
  TORCH_CHECK(at::equal(mh::io::open(ours)["x"].read(), field), "not the same");
  mh::bench::print_ratios((one.name + ": one H5Dwrite").c_str(), library, ranks, one.target);
  std::printf("%-44s size of the file / HDF5's %.3f\n", "",
              static_cast<double>(std::filesystem::file_size(ours)) / their_size);
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path parent = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  const std::string folder = parent / ("bench_write_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const at::Tensor field = mh::bench::waves(kShape);
  std::printf("256 MiB float32, %d ranks, medians of %d rounds: seconds\n", kRanks, kRounds);
  mh::bench::print_heading();
  const std::vector<int64_t> tiles = {1, 256, 1024}, steps = {1, 1024, 1024};
  const Case cases[] = {{"gzip 4, tiles, Shard(0)", 0, {.chunks = tiles, .compression = 4}, 3.5},
                        {"gzip 4, steps, Shard(1)", 1, {.chunks = steps, .compression = 4}, 3.5},
                        {"gzip 4, steps, Shard(2)", 2, {.chunks = steps, .compression = 4}, 3.5},
                        {"gzip 1, tiles, Shard(0)", 0, {.chunks = tiles, .compression = 1}, 3.5},
                        {"contiguous, Shard(0)", 0, {}, 1},
                        {"contiguous, Shard(2)", 2, {}, 1}};
  for (const Case& one : cases) {
    if (argc < 3 || one.name.find(argv[2]) != std::string::npos) compare(one, folder, field);
  }
  std::filesystem::remove_all(folder);
  return 0;
}
