// SPDX-License-Identifier: Apache-2.0
// Saves and loads about 1 GB of state on four ranks, against the same bytes written (pwrite, fsync) and read (pread,
// of the checkpoint's own file: how files are kept in the page cache differs) by as many ranks that do not depend on
// tensors, in turns. The page cache is warm for reads. Prints, as ratios of one run: rates, also of a load that
// compares all data with their checksums first, what a load onto three ranks with other cuts costs, bytes on disk
// and bytes read over bytes of state, memory above the state at the peak of a save (all ranks together), and the
// time that a save in the background stops the run, over a memcpy of this rank's share. A load fills more memory
// than the state has bytes: replicated tensors on every rank, here 1.12 of the state. So it is set against two raw
// reads: of as many bytes on each rank as it holds after the load, and of every byte once. Ratios of times: the
// median of the rounds, of the clock's and of the processors' time, and that of the least. New files fill memory
// that the system has to find, and where the host of a virtual machine had taken that away, a round costs up to
// eight times as much, for either side.
//   bench_checkpoint [FOLDER [MILLION_PARAMETERS]]    FOLDER default: the system's temporary one
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"
#include "moonhalo/io/checkpoint/checkpoint_write.h"
#include "tests/bench/taking_turns.h"
#include "tests/support/process_memory.h"

namespace mh = moonhalo;
namespace io = moonhalo::io;
namespace {

constexpr int kRanks = 4, kRounds = 9;
constexpr double kMiB = 1 << 20;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The time of all ranks together; on a busy machine the time of the processors says more than the wall clock.
struct Seconds {
  double wall = 0, cpu = 0;
};

double median_wall(const std::vector<Seconds>& values) {
  std::vector<double> wall;
  for (const Seconds& value : values) wall.push_back(value.wall);
  return mh::bench::median(std::move(wall));
}

double least(const std::vector<Seconds>& values) {
  return std::min_element(values.begin(), values.end(), [](auto& a, auto& b) { return a.wall < b.wall; })->wall;
}

/// From the moment all ranks stand ready to the moment the last is done.
template <typename Work>
Seconds timed(mh::Communicator& world, const Work& work) {
  world.barrier();
  const double cpu = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const auto begin = std::chrono::steady_clock::now();
  work();
  world.barrier();
  return {seconds_since(begin), static_cast<double>(std::clock()) / CLOCKS_PER_SEC - cpu};
}

/// Layers of a transformer with AdamW's two moments. The products' weights are cut along one dim, norms and positions
/// are replicated.
Tensors make_state(const mh::MeshPtr& mesh, int64_t layers, int64_t dim) {
  Tensors tensors;
  for (const char* kind : {"", "exp_avg/", "exp_avg_sq/"}) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      const auto add = [&](const char* name, const std::vector<int64_t>& shape, const mh::Placement& placement) {
        const mh::SpecPtr spec = mh::make_spec(mesh, shape, {placement});
        const at::Tensor block = mh::empty_block(spec->local_shape(), at::kFloat).fill_(static_cast<double>(layer));
        tensors.emplace_back(kind + std::to_string(layer) + name, mh::from_local(block, spec));
      };
      add(".qkv", {3072, 1024}, mh::shard(dim));
      add(".proj", {1024, 1024}, mh::shard(dim));
      add(".fc1", {4096, 1024}, mh::shard(dim));
      add(".fc2", {1024, 4096}, mh::shard(dim));
      add(".embed", {1024, 512}, mh::replicate());
      for (const char* norm : {".norm1", ".norm2"}) add(norm, {1024}, mh::replicate());
    }
  }
  return tensors;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.numel() * 4;
  return bytes;
}

int64_t bytes_of_blocks(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += mh::to_local(tensor).numel() * 4;
  return bytes;
}

struct Paths {
  std::string raw, checkpoint;
  std::string file() const { return checkpoint + "/state.safetensors"; }
};

/// Each rank a quarter of one file, from memory of its own. The file before is there until this one is complete, as
/// with checkpoints, so that both fill memory that the system has to find.
Seconds write_raw(mh::Communicator& world, const Paths& paths, const at::Tensor& share) {
  return timed(world, [&] {
    const int64_t bytes = share.numel();
    const std::string partial = paths.raw + ".partial";
    if (world.rank() == 0) io::PositionedFile::create("raw", partial, bytes * world.size());
    world.barrier();
    io::PositionedFile file = io::PositionedFile::open_to_write("raw", partial);
    file.write_at(share.const_data_ptr(), bytes, bytes * world.rank());
    file.sync();
    world.barrier();
    if (world.rank() == 0) std::filesystem::rename(partial, paths.raw);
  });
}

/// Ranks read as many bytes as their memory has, of parts of the file that overlap where that is more than a share.
Seconds read_raw(mh::Communicator& world, const std::string& path, at::Tensor& memory) {
  return timed(world, [&] {
    const io::PositionedFile file = io::PositionedFile::open_to_read("raw", path);
    const auto others = static_cast<int64_t>(std::filesystem::file_size(path)) - memory.numel();
    file.read_at(memory.mutable_data_ptr(), memory.numel(), others / (world.size() - 1) * world.rank());
  });
}

void begin_save(mh::Communicator& world, const Paths& paths, io::CheckpointWriter& writer, const Tensors& state) {
  writer.add("state", state);
  writer.check_same_entries();
  if (world.rank() == 0) {
    io::settle_checkpoint("bench", paths.checkpoint);
    std::filesystem::create_directories(paths.checkpoint + ".partial");
    writer.create();
  }
  world.barrier();
}

Seconds save(mh::Communicator& world, const Paths& paths, const Tensors& state) {
  return timed(world, [&] {
    io::CheckpointWriter writer(world, paths.checkpoint);
    begin_save(world, paths, writer, state);
    writer.write();
    if (world.rank() != 0) return;
    io::PositionedFile::create("bench", paths.checkpoint + ".partial/" + io::kCheckpointFile, 0);
    io::put_checkpoint_in_place("bench", paths.checkpoint);
  });
}

struct Loaded {
  Seconds seconds;
  int64_t bytes_read;
};

/// `verify`: as load_checkpoint does unless that is switched off.
Loaded load(mh::Communicator& world, const Paths& paths, const Tensors& state, bool verify = false) {
  io::CheckpointReader reader(world);
  const Seconds seconds = timed(world, [&] {
    reader.add("state", paths.file(), io::read_safetensors_text(paths.file()));
    if (verify) reader.verify({"state"});
    for (const auto& [name, tensor] : state) reader.read_into("state", name, tensor);
    reader.finish();
  });
  at::Tensor bytes = at::full({1}, reader.bytes_read(), at::kLong);
  world.all_reduce(bytes);
  return {seconds, bytes.item<int64_t>()};
}

/// Seconds that copy() takes, and a memcpy of the same bytes; both into memory that was used before.
std::pair<Seconds, Seconds> stop_in_background(mh::Communicator& world, const Paths& paths, const Tensors& state) {
  io::CheckpointWriter writer(world, paths.checkpoint, true);
  begin_save(world, paths, writer, state);
  const int64_t bytes = writer.bytes();
  std::shared_ptr<io::BackgroundWrite> background;
  const Seconds stopped = timed(world, [&] { background = writer.copy(); });
  background->start("{}");
  background->join();
  thread_local at::Tensor from = at::ones({bytes}, at::kByte), to = at::ones({bytes}, at::kByte);
  const Seconds copied =
      timed(world, [&] { std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(bytes)); });
  return {stopped, copied};
}

struct Figures {
  std::vector<Seconds> raw_write, save, raw_read, raw_read_held, load, verified, other_cut, stopped, copied;
  double disk = 0, read = 0, extra = 0;
};

void measure_four(mh::Communicator& world, const Paths& paths, int64_t layers, Figures& figures) {
  const Tensors state = make_state(mh::init_device_mesh(world, "cpu", {kRanks}), layers, 0);
  const int64_t bytes = bytes_of(state);
  at::Tensor share = at::ones({bytes / kRanks}, at::kByte), held = at::ones({bytes_of_blocks(state)}, at::kByte);
  save(world, paths, state);
  write_raw(world, paths, share);
  for (int round = 0; round < kRounds; ++round) {
    const Seconds raw_write = write_raw(world, paths, share);
    if (world.rank() == 0) mh::testing::reset_peak_memory();
    const int64_t resident = mh::testing::process_memory("VmRSS");
    const Seconds saved = save(world, paths, state);
    const auto extra = static_cast<double>(mh::testing::process_memory("VmHWM") - resident);
    const Seconds raw_read = read_raw(world, paths.file(), share);
    const Loaded loaded = load(world, paths, state);
    const Seconds raw_read_held = read_raw(world, paths.file(), held);
    const Seconds verified = load(world, paths, state, true).seconds;
    const auto [stopped, copied] = stop_in_background(world, paths, state);
    if (world.rank() != 0) continue;
    figures.raw_write.push_back(raw_write);
    figures.save.push_back(saved);
    figures.raw_read.push_back(raw_read);
    figures.raw_read_held.push_back(raw_read_held);
    figures.load.push_back(loaded.seconds);
    figures.verified.push_back(verified);
    figures.extra = std::max(figures.extra, extra);
    figures.read = static_cast<double>(loaded.bytes_read) / static_cast<double>(bytes);
    figures.disk = static_cast<double>(std::filesystem::file_size(paths.file())) / static_cast<double>(bytes);
    if (round > 0) {
      figures.stopped.push_back(stopped);
      figures.copied.push_back(copied);
    }
  }
}

void measure_three(mh::Communicator& world, const Paths& paths, int64_t layers, Figures& figures) {
  const Tensors state = make_state(mh::init_device_mesh(world, "cpu", {3}), layers, 1);
  for (int round = 0; round < kRounds; ++round) {
    const Loaded loaded = load(world, paths, state);
    if (world.rank() == 0) figures.other_cut.push_back(loaded.seconds);
  }
}

void print(const char* what, double value, const char* target) {
  std::printf("%-58s %8.3f %8s %8s  %s\n", what, value, "", "", target);
}

/// The number of times that `of` fits into `base`.
void print(const char* what, const std::vector<Seconds>& base, const std::vector<Seconds>& of, const char* target) {
  std::vector<double> wall, cpu;
  for (size_t round = 0; round < of.size(); ++round) {
    wall.push_back(base[round].wall / of[round].wall);
    cpu.push_back(base[round].cpu / of[round].cpu);
  }
  std::printf("%-58s %8.3f %8.3f %8.3f  %s\n", what, mh::bench::median(wall), mh::bench::median(cpu),
              least(base) / least(of), target);
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  const int64_t layers = std::max<int64_t>((argc > 2 ? std::stoll(argv[2]) : 84) / 14, 1);
  const std::string stem = folder / ("bench_checkpoint_" + std::to_string(getpid()));
  const Paths paths{stem + ".raw", stem};
  Figures figures;
  mh::run_ranks(
      kRanks, [&](mh::Communicator& world) { measure_four(world, paths, layers, figures); }, 1);
  mh::run_ranks(
      3, [&](mh::Communicator& world) { measure_three(world, paths, layers, figures); }, 1);

  const double gigabytes = static_cast<double>(std::filesystem::file_size(paths.file())) / 1e9;
  std::printf("%.2f GB of state, %d thread ranks, medians of %d rounds; raw write %.2f GB/s, raw read %.2f GB/s\n",
              gigabytes, kRanks, kRounds, gigabytes / median_wall(figures.raw_write),
              gigabytes / median_wall(figures.raw_read));
  std::printf("%-58s %8s %8s %8s  %s\n", "ratios of", "time", "CPU", "least", "target");
  print("save / raw parallel pwrite and fsync, rates", figures.raw_write, figures.save, ">= 0.85");
  print("load / raw parallel pread of the bytes that ranks hold then", figures.raw_read_held, figures.load, ">= 0.85");
  print("load / raw parallel pread of every byte once", figures.raw_read, figures.load, "");
  print("load of data compared with their checksums / raw, rates", figures.raw_read, figures.verified, "");
  print("load on 3 ranks, other dims / load with the same cut, rates", figures.load, figures.other_cut, ">= 0.6");
  print("a save in the background stops the run / memcpy of its share", figures.stopped, figures.copied, "<= 1.3");
  print("bytes on disk / bytes of state", figures.disk, "<= 1.001");
  print("bytes read by all ranks / bytes of state", figures.read, "<= 1.01");
  print("memory above the state while saving, MiB a rank", figures.extra / kMiB / kRanks, "<= 64");
  std::filesystem::remove_all(paths.checkpoint);
  std::filesystem::remove(paths.raw);
  return 0;
}
