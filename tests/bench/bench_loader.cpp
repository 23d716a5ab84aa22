// SPDX-License-Identifier: Apache-2.0
// Batches of mh.data from a compressed field of 256 MiB in a warm page cache: what reading them ahead costs beside a
// computation of 30 ms a batch, and what statistics cost beside the reading that they need.
//   waits       the computation is a device's: this thread sleeps, a core is free to read
//   computes    it is this thread's own; on fewer cores than threads they share what there is
//   bench_loader [FOLDER]    the file is made in FOLDER (default: the system's temporary one)
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "moonhalo/io/fields/frame_queue.h"
#include "moonhalo/io/fields/moments.h"
#include "tests/bench/taking_turns.h"
#include "tests/bench/waves.h"

namespace io = moonhalo::io;
namespace {

using moonhalo::bench::Times;

constexpr int64_t kSteps = 64, kRows = 1024;
constexpr int kRounds = 3, kBatches = 20;
constexpr double kCompute = 0.030, kReading = 0.020;

io::FrameSource source(const std::string& path) {
  return {.path = path, .dataset = "x", .step_dim = 0, .sample_dim = -1, .channel_dims = {}, .space_dims = {1, 2}};
}

/// A reader of whole frames. It keeps nothing.
std::shared_ptr<io::FrameReader> reader(const std::string& path) {
  return std::make_shared<io::FrameReader>(std::vector{source(path)}, moonhalo::Box{{0, kRows}, {0, kRows}}, at::kFloat,
                                           0);
}

std::vector<io::FramePlace> batch(int number, int64_t frames) {
  std::vector<io::FramePlace> places;
  for (int64_t i = 0; i < frames; ++i) places.push_back({0, 0, (number * frames + i) % kSteps});
  return places;
}

void compute(bool waits) {
  const double until = moonhalo::bench::seconds() + kCompute;
  if (waits) return std::this_thread::sleep_for(std::chrono::duration<double>(kCompute));
  at::Tensor x = at::ones({64, 64});
  while (moonhalo::bench::seconds() < until) x = x.matmul(x).mul_(1.0 / 64);
}

void load(const std::string& path, int64_t frames, size_t ahead, bool waits) {
  io::FrameQueue queue({{.name = "x", .reader = reader(path), .channels = 1}});
  std::deque<std::shared_ptr<io::FrameQueue::Ticket>> under_way;
  int begun = 0;
  for (int done = 0; done < kBatches; ++done) {
    while (begun < kBatches && under_way.size() <= ahead)
      under_way.push_back(queue.submit({{0, batch(begun++, frames)}}));
    under_way.front()->wait();
    under_way.pop_front();
    while (ahead > 0 && begun < kBatches && under_way.size() <= ahead)
      under_way.push_back(queue.submit({{0, batch(begun++, frames)}}));
    compute(waits);
  }
}

void overlap(const std::string& path, int64_t frames, bool waits) {
  Times alone, none, ahead;
  for (int round = 0; round < kRounds; ++round) {
    alone.take([&] {
      for (int i = 0; i < kBatches; ++i) compute(waits);
    });
    none.take([&] { load(path, frames, 0, waits); });
    ahead.take([&] { load(path, frames, 2, waits); });
  }
  const std::string name = waits ? "waits 30 ms a batch" : "computes 30 ms a batch";
  moonhalo::bench::print_ratios((name + ": alone, beside no prefetch").c_str(), alone, none, 0);
  moonhalo::bench::print_ratios((name + ": alone, beside prefetch 2").c_str(), alone, ahead, 1 / 1.05);
}

void statistics(const std::string& path) {
  Times reading, all;
  const at::Tensor frame = at::empty({1, kRows, kRows});
  for (int round = 0; round < kRounds; ++round) {
    reading.take([&] {
      const auto from = reader(path);
      for (int64_t step = 0; step < kSteps; ++step) from->read({0, 0, step}, frame);
    });
    all.take([&] {
      const auto from = reader(path);
      at::Tensor moments = io::no_moments(1);
      for (int64_t step = 0; step < kSteps; ++step) {
        from->read({0, 0, step}, frame);
        io::merge_moments(moments, io::frame_moments(frame, {}));
      }
    });
  }
  moonhalo::bench::print_ratios("statistics: reading alone", reading, all, 0.8);
}

/// As many frames as are read in kReading.
int64_t frames_of_a_batch(const std::string& path) {
  const auto from = reader(path);
  const at::Tensor frame = at::empty({1, kRows, kRows});
  from->read({0, 0, 0}, frame);
  const double began = moonhalo::bench::seconds();
  for (int64_t step = 1; step < 9; ++step) from->read({0, 0, step}, frame);
  const double each = (moonhalo::bench::seconds() - began) / 8;
  return std::max<int64_t>(1, static_cast<int64_t>(kReading / each + 0.5));
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
  const std::string path = folder / ("bench_loader_" + std::to_string(getpid()) + ".h5");
  at::set_num_threads(1);
  io::File file = io::open(path, "w");
  file.write("x", moonhalo::bench::waves({kSteps, kRows, kRows}), {.chunks = {1, kRows, kRows}, .compression = 4});
  file.close();
  const int64_t frames = frames_of_a_batch(path);
  std::printf("%d batches of %lld frames of 4 MiB, about 20 ms of reading each, medians of %d rounds: seconds\n",
              kBatches, static_cast<long long>(frames), kRounds);
  moonhalo::bench::print_heading();
  overlap(path, frames, true);
  overlap(path, frames, false);
  statistics(path);
  std::filesystem::remove(path);
  return 0;
}
