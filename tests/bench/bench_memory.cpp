// SPDX-License-Identifier: Apache-2.0
// Peak memory of a rank against the whole on one device: two training steps (forward, backward, AdamW) of a 3-D U-Net
// on a field of 96^3 points with 16 channels at the finest level, on one process and on four, cut into slabs and into
// columns of 2 x 2. Target: a rank needs at most 0.30 of what one device needs. Then the same on four thread ranks of
// one process, which together should need at most 1.25 of it, without and with checkpoints around every pair of
// convolution and norm.
//
// Two figures, each less what the same process held after a step on a tiny field (so that libraries and generated
// kernels are in memory) and before the model was made:
//   live      tensors: the most that LibTorch's allocator had given out at once, on the rank's thread or to all thread
//             ranks
//   resident  VmHWM: everything, with what libraries take for themselves and what malloc keeps of freed blocks.
//             (tcmalloc, as in the moonhalo program; with glibc's malloc it is 1.3 to 1.6.)
//   bench_memory [POINTS [CHANNELS]]             needs mpirun
//   bench_memory --check [POINTS [CHANNELS]]     thread ranks alone; status 1 above kMostLive and kMostResident
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <malloc.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/model/recompute.h"
#include "moonhalo/engine/moonhalo.h"
#include "tests/support/live_bytes.h"
#include "tests/support/process_memory.h"

namespace mh = moonhalo;
namespace nn = torch::nn;
namespace {

constexpr int kRanks = 4;
constexpr double kMB = 1e6;

struct BlockImpl : nn::Module {
  BlockImpl(int64_t from, int64_t to, int64_t stride)
      : conv(nn::Conv3dOptions(from, to, 3).stride(stride).padding(1)), norm(nn::GroupNormOptions(4, to)) {
    register_module("conv", conv);
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) { return at::silu(norm(conv(x))); }

  nn::Conv3d conv;
  nn::GroupNorm norm;
};
TORCH_MODULE(Block);

/// Two levels down by strided convolutions and up again by transposed ones, fields of equal level joined.
struct UNetImpl : nn::Module {
  explicit UNetImpl(int64_t width, bool checkpoints)
      : checkpoints(checkpoints),
        enter(1, width, 1),
        down1(width, 2 * width, 2),
        down2(2 * width, 4 * width, 2),
        up2(nn::ConvTranspose3dOptions(4 * width, 2 * width, 2).stride(2)),
        join2(4 * width, 2 * width, 1),
        up1(nn::ConvTranspose3dOptions(2 * width, width, 2).stride(2)),
        join1(2 * width, width, 1),
        leave(nn::Conv3dOptions(width, 1, 1)) {
    for (const auto& [name, block] : std::map<std::string, Block>{
             {"enter", enter}, {"down1", down1}, {"down2", down2}, {"join2", join2}, {"join1", join1}}) {
      register_module(name, block);
    }
    register_module("up2", up2);
    register_module("up1", up1);
    register_module("leave", leave);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = pass(enter, x), b = pass(down1, a);
    const at::Tensor c = pass(join2, at::cat({up2(pass(down2, b)), b}, 1));
    return leave(pass(join1, at::cat({up1(c), a}, 1)));
  }
  at::Tensor pass(Block& block, const at::Tensor& x) const {
    return checkpoints ? mh::checkpoint([&](const at::Tensor& t) { return block(t); }, x) : block(x);
  }

  bool checkpoints;

  Block enter, down1, down2;
  nn::ConvTranspose3d up2;
  Block join2;
  nn::ConvTranspose3d up1;
  Block join1;
  nn::Conv3d leave;
};
TORCH_MODULE(UNet);

/// A field of `points`^3: whole, or this rank's block of it.
at::Tensor field(int64_t points, const mh::MeshPtr& mesh, const std::vector<mh::Placement>& placements) {
  const std::vector<int64_t> shape{1, 1, points, points, points};
  if (!mesh) return at::ones(shape);
  std::vector<int64_t> block = shape;
  for (size_t i = 0; i < placements.size(); ++i) block[placements[i].dim] /= mesh->shape()[i];
  return mh::from_local(at::ones(block), mesh, placements);
}

struct Run {
  int64_t points, channels;
  bool checkpoints;
};

void train(const Run& run, int64_t points, int steps, const mh::MeshPtr& mesh,
           const std::vector<mh::Placement>& placements) {
  UNet net(run.channels, run.checkpoints);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  const at::Tensor x = field(points, mesh, placements), y = field(points, mesh, placements);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::mse_loss(net(x), y).backward();
    optimizer.step();
  }
}

// Counts all threads that have it installed together.
struct SharedLiveBytes : moonhalo::testing::LiveBytes {
  void reportMemoryUsage(void* data, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex);
    LiveBytes::reportMemoryUsage(data, bytes, allocated, reserved, device);
  }
  std::mutex mutex;
};

// Trains, on every rank that calls it; the first of this process prints its two figures in bytes.
void measure(const Run& run, const std::string& cut, mh::Communicator* world, bool first,
             const std::shared_ptr<SharedLiveBytes>& live) {
  mh::MeshPtr mesh;
  std::vector<mh::Placement> placements{mh::shard(2)};
  if (cut == "columns") placements = {mh::shard(3), mh::shard(4)};
  const auto all_wait = [&] {
    if (world != nullptr) world->barrier();
  };
  if (world != nullptr)
    mesh = mh::init_device_mesh(*world, "cpu",
                                cut == "columns" ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{kRanks});
  train(run, 16, 1, mesh, placements);
  int64_t before = 0;
  all_wait();
  if (first) {
    malloc_trim(0);
    mh::testing::reset_peak_memory();
    before = mh::testing::process_memory("VmRSS");
  }
  all_wait();
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    train(run, run.points, 2, mesh, placements);
  }
  all_wait();
  if (!first) return;
  std::printf("measured %.0f %.0f\n", static_cast<double>(live->peak),
              static_cast<double>(mh::testing::process_memory("VmHWM") - before));
  std::fflush(stdout);
}

/// One process: "whole", one MPI rank with "slabs" or "columns", or four thread ranks with "threads-slabs" or
/// "threads-columns".
void measure(const Run& run, const std::string& how) {
  at::set_num_threads(1);
  at::manual_seed(1);  // plain weights are the same on all ranks
  const auto live = std::make_shared<SharedLiveBytes>();
  const std::string threads = "threads-";
  if (how.starts_with(threads)) {
    return mh::run_ranks(
        kRanks,
        [&](mh::Communicator& world) { measure(run, how.substr(threads.size()), &world, world.rank() == 0, live); }, 1);
  }
  if (how == "whole") return measure(run, how, nullptr, true, live);
  const mh::CommunicatorPtr world = mh::make_world("", mh::detect_launch());
  measure(run, how, world.get(), true, live);
}

struct Peaks {
  double live = 0, resident = 0;
};

/// `path` as one word of the shell: a clone's folder may hold spaces and quotes.
std::string shell_word(const std::string& path) {
  std::string word = "'";
  for (const char c : path) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

/// The largest figures over the processes that `command` starts.
Peaks peaks_of(const std::string& command, int processes) {
  std::FILE* pipe = popen(command.c_str(), "r");
  TORCH_CHECK(pipe, "bench_memory: cannot run ", command);
  Peaks peaks;
  char line[256];
  int found = 0;
  while (std::fgets(line, sizeof(line), pipe)) {
    double live = 0, resident = 0;
    if (std::sscanf(line, "measured %lf %lf", &live, &resident) != 2) continue;
    peaks.live = std::max(peaks.live, live);
    peaks.resident = std::max(peaks.resident, resident);
    ++found;
  }
  const int status = pclose(pipe);
  TORCH_CHECK(status == 0 && found == processes, "bench_memory: ", found, " of ", processes,
              " processes reported their figures\n  have  ", command, ", status ", status,
              "\n  fix   see its messages above; it needs mpirun");
  return peaks;
}

void print(const char* what, const Peaks& peaks, const Peaks& whole) {
  std::printf("  %-34s live %7.1f MB ratio %.3f   resident %7.1f MB ratio %.3f\n", what, peaks.live / kMB,
              peaks.live / whole.live, peaks.resident / kMB, peaks.resident / whole.resident);
  std::fflush(stdout);
}

// Ratios of all thread ranks together to one process. Live bytes are 1.25 with the convolutions of AVX2, in every run.
// Resident bytes vary between runs, from 1.22 to 1.32: malloc keeps what the ranks free in another order each time.
constexpr double kMostLive = 1.28, kMostResident = 1.45;

/// True if all thread ranks together need at most these parts of one process.
bool report(const std::string& self, const std::string& size, bool threads_alone) {
  const std::string ranks = "mpirun -n " + std::to_string(kRanks) + " ";
  const Peaks whole = peaks_of(self + " whole " + size, 1);
  print("one process", whole, whole);
  if (!threads_alone) print("one process, checkpoints", peaks_of(self + " whole " + size + " checkpoints", 1), whole);
  bool good = true;
  for (const std::string cut : {"slabs", "columns"}) {
    if (!threads_alone)
      print(("rank of 4 " + cut).c_str(), peaks_of(ranks + self + " " + cut + " " + size, kRanks), whole);
    for (const std::string checkpoints : {"", " checkpoints"}) {
      const Peaks peaks = peaks_of(self + " threads-" + cut + " " + size + checkpoints, 1);
      print(("4 thread ranks, " + cut + (checkpoints.empty() ? "" : "," + checkpoints)).c_str(), peaks, whole);
      good = good && peaks.live <= kMostLive * whole.live && peaks.resident <= kMostResident * whole.resident;
    }
  }
  if (!good)
    std::printf("bench_memory: four thread ranks need more than %.2f (live) or %.2f (resident) of one process\n",
                kMostLive, kMostResident);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool check = !words.empty() && words[0] == "--check";
  if (check) words.erase(words.begin());
  const bool child = !words.empty() && !std::isdigit(words[0][0]);
  const size_t first = child ? 1 : 0;
  const int64_t points = words.size() > first ? std::stoll(words[first]) : 96;
  const int64_t channels = words.size() > first + 1 ? std::stoll(words[first + 1]) : 16;
  if (child) {
    measure({points, channels, words.back() == "checkpoints"}, words[0]);
    return 0;
  }
  // More ranks than cores, and as root in a container: this is a measurement of memory.
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"}) {
    setenv(name, "1", 0);
  }
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  TORCH_CHECK(length > 0, "bench_memory: cannot tell where this program is");
  const bool good = report(shell_word(std::string(self, static_cast<size_t>(length))),
                           std::to_string(points) + " " + std::to_string(channels), check);
  return check && !good ? 1 : 0;
}
