// SPDX-License-Identifier: Apache-2.0
// Steps (forward and backward, the U-Net also with its optimizer) on blocks against the unsharded step on the same
// cores: one plain tensor with as many LibTorch threads as there are cores. Ranks are threads, 2 (blocks of rows) and 4
// (a 2 x 2 grid), or the processes of mpirun. The variants of one case and the unsharded step take turns, step by step,
// in another order every round (what runs after the unsharded step finds cold caches); medians are printed, of which
// one run's can be compared.
//   ratio      unsharded / sharded time: above 1 the blocks are faster
//   bytes      exchanged by all ranks / the fewest that the windows allow, from a count of rows made here
//   hidden     share of the time that halos were under way in which the ranks computed
//   unchecked  processes do not compare their calls (set_check_calls); threads always do
// On a busy machine set OMP_WAIT_POLICY=passive: else the threads of the unsharded step spin for each other, and count
// as work.
// usage: bench_halo [rounds] [name of one case]      mpirun -n 2 bench_halo ...
#include <sched.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/bench/taking_turns.h"

namespace {

namespace mh = moonhalo;
using mh::bench::MainThread;
using mh::bench::median;
using mh::bench::processor_time;
using Clock = std::chrono::steady_clock;
using Step = std::function<void(const at::Tensor&)>;

constexpr int64_t kBlock = 256;

struct Grid {
  int64_t rows, columns;
};

// Rows that a block reads beyond its own, of a field of `extent` rows in `blocks` equal blocks, along one dim.
int64_t reached(int64_t extent, int64_t blocks, int64_t block, int64_t reach) {
  const int64_t size = extent / blocks, begin = block * size;
  return std::min(begin + size + reach, extent) - std::max<int64_t>(begin - reach, 0);
}

// Elements of one channel that all blocks together fetch.
int64_t halo_rows(const Grid& grid, int64_t height, int64_t width, int64_t reach) {
  int64_t total = 0;
  for (int64_t i = 0; i < grid.rows; ++i) {
    for (int64_t j = 0; j < grid.columns; ++j)
      total += reached(height, grid.rows, i, reach) * reached(width, grid.columns, j, reach);
  }
  return total - height * width;
}

struct UNetImpl : torch::nn::Module {
  UNetImpl() {
    const auto conv = [](int64_t in, int64_t out) {
      return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
    };
    const auto norm = [](int64_t channels) { return torch::nn::GroupNorm(4, channels); };
    const auto up = [](int64_t in, int64_t out) {
      return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 2).stride(2));
    };
    int64_t n = 0;
    const auto stage = [&](int64_t in, int64_t out) {
      return register_module("stage" + std::to_string(n++),
                             torch::nn::Sequential(conv(in, out), norm(out), torch::nn::GELU(), conv(out, out),
                                                   norm(out), torch::nn::GELU()));
    };
    down = {stage(4, 16), stage(16, 32), stage(32, 64)};
    rise = {stage(64, 32), stage(32, 16)};
    ups = {register_module("up0", up(64, 32)), register_module("up1", up(32, 16))};
    head = register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 1, 1)));
    for (auto& p : parameters()) {
      const at::NoGradGuard no_grad;
      p.copy_((at::arange(p.numel(), at::kFloat) * 0.7).sin().view(p.sizes()) * 0.1);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = down[0]->forward(x), b = down[1]->forward(at::max_pool2d(a, 2));
    const at::Tensor c = down[2]->forward(at::max_pool2d(b, 2));
    const at::Tensor d = rise[0]->forward(at::cat({ups[0]->forward(c), b}, 1));
    return head->forward(rise[1]->forward(at::cat({ups[1]->forward(d), a}, 1)));
  }
  std::vector<torch::nn::Sequential> down, rise;
  std::vector<torch::nn::ConvTranspose2d> ups;
  torch::nn::Conv2d head = nullptr;
};
TORCH_MODULE(UNet);

// Input and output channels and scale of the U-Net's convolutions with a halo.
constexpr int64_t kLayers[][3] = {{4, 16, 1},  {16, 16, 1}, {16, 32, 2}, {32, 32, 2}, {32, 64, 4},
                                  {64, 64, 4}, {64, 32, 2}, {32, 32, 2}, {32, 16, 1}, {16, 16, 1}};

struct Case {
  const char* name;
  std::vector<int64_t> (*shape)(int64_t height, int64_t width);
  int64_t first_dim;  // of the two that are cut
  Step (*make)();
  int64_t (*fewest)(const Grid& grid, int64_t height, int64_t width);  // elements per step
};

template <int64_t kKernel, int64_t kChannels>
Step conv_step() {
  const at::Tensor w = at::full({kChannels, kChannels, kKernel, kKernel}, 0.01f).requires_grad_();
  const at::Tensor b = at::zeros({kChannels}).requires_grad_();
  return [w, b](const at::Tensor& given) {
    const at::Tensor x = given.detach().requires_grad_();
    const at::Tensor y = at::conv2d(x, w, b, 1, kKernel / 2);
    torch::autograd::grad({y}, {x, w, b}, {given});
  };
}

// Forward and, for the weight's gradient, backward; gradients return to their owners.
template <int64_t kKernel, int64_t kChannels>
int64_t conv_fewest(const Grid& grid, int64_t height, int64_t width) {
  return 3 * kChannels * halo_rows(grid, height, width, kKernel / 2);
}

template <int64_t kChannels>
std::vector<int64_t> planes(int64_t height, int64_t width) {
  return {1, kChannels, height, width};
}

Step attention_step() {
  return [](const at::Tensor& given) {
    const at::Tensor q = given.detach().requires_grad_(), k = given.detach().requires_grad_(),
                     v = given.detach().requires_grad_();
    const at::Tensor y = std::get<0>(mh::neighborhood_attention(q, k, v, {{7}}));
    torch::autograd::grad({y}, {q, k, v}, {given});
  };
}

Step unet_step() {
  UNet net;
  const auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 1e-6);
  return [net, optimizer](const at::Tensor& x) mutable {
    optimizer->zero_grad();
    net->forward(x).square().mean().backward();
    optimizer->step();
  };
}

int64_t unet_fewest(const Grid& grid, int64_t height, int64_t width) {
  int64_t total = 0;
  for (const auto& [in, out, scale] : kLayers) {
    const int64_t times = in == 4 ? 2 : 3;  // the field itself needs no gradient
    total += times * in * halo_rows(grid, height / scale, width / scale, 1);
  }
  return total;
}

const Case kCases[] = {
    {"conv3", planes<32>, 2, conv_step<3, 32>, conv_fewest<3, 32>},
    {"conv7", planes<16>, 2, conv_step<7, 16>, conv_fewest<7, 16>},
    {"na7",
     [](int64_t h, int64_t w) {
       return std::vector<int64_t>{1, h, w, 4, 32};
     },
     1, attention_step,
     [](const Grid& grid, int64_t h, int64_t w) { return 3 * 2 * 4 * 32 * halo_rows(grid, h, w, 3); }},
    {"unet", planes<4>, 2, unet_step, unet_fewest},
};

struct Time {
  double wall, processor;  // milliseconds
};
struct Times {
  void add(const Time& time) {
    wall.push_back(time.wall);
    processor.push_back(time.processor);
  }
  std::vector<double> wall, processor;
};

struct Variant {
  const char* name;
  mh::HaloOptions options;
  bool check_calls = true;
};
const Variant kVariants[] = {{"p2p, overlap", {true, mh::HaloBackend::kP2p}},
                             {"p2p, no overlap", {false, mh::HaloBackend::kP2p}},
                             {"all_to_all", {true, mh::HaloBackend::kAllToAll}},
                             {"p2p, unchecked", {true, mh::HaloBackend::kP2p}, false}};
constexpr int kVariantCount = 4, kUnchecked = 3;

// `elsewhere`: runs the unsharded step.
using Elsewhere = std::function<void(const std::function<void()>&)>;

// The measurements of one rank.
struct Measured {
  Times unsharded, times[kVariantCount];
  mh::HaloTimes halo[kVariantCount];
  mh::CommStats::Count moved;
};

// Rank threads compare their calls whatever was set.
int variant_count(const mh::Communicator& world) {
  return std::string(world.backend()) == "threads" ? kUnchecked : kVariantCount;
}

// The time and, if this rank counts its own, the processor time of a step of all ranks.
Time timed(mh::Communicator& world, bool counts, const std::function<void()>& step) {
  world.barrier();
  const double cpu = processor_time();
  const auto start = Clock::now();
  step();
  world.barrier();
  const double time = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  at::Tensor spent = at::full({1}, counts ? processor_time() - cpu : 0.0, at::kDouble);
  world.all_reduce(spent);
  return Time{time, spent.item<double>()};
}

// `unsharded` and `sharded` are the steps of this rank. They take turns; round -1 is not counted.
Measured measure(mh::Communicator& world, int rounds, const std::function<void()>& unsharded,
                 const std::function<void()>& sharded) {
  Measured measured;
  const bool counts_time = world.rank() == 0 || std::string(world.backend()) != "threads";
  const int variants = variant_count(world);
  std::vector<int> order(variants + 1);  // the last is the unsharded step
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 draws;  // the same on every rank
  for (int round = -1; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), draws);
    for (const int v : order) {
      if (v == variants) {
        const Time whole = timed(world, world.rank() == 0, unsharded);
        if (round >= 0) measured.unsharded.add(whole);
        continue;
      }
      mh::set_halo(kVariants[v].options);
      mh::set_check_calls(world, kVariants[v].check_calls);
      world.reset_stats();
      mh::halo_times() = {};
      const Time time = timed(world, counts_time, sharded);
      if (round < 0) continue;
      measured.times[v].add(time);
      measured.halo[v].under_way += mh::halo_times().under_way;
      measured.halo[v].waited += mh::halo_times().waited;
      if (v == 0) measured.moved = world.stats().by_kind[mh::CommStats::kExchange];
    }
  }
  mh::set_halo({});
  mh::set_check_calls(world, true);
  return measured;
}

// Sums over the ranks.
struct Totals {
  mh::HaloTimes halo[kVariantCount];
  double moved_bytes;
};

Totals totals_of(const Measured& measured, mh::Communicator& world) {
  constexpr int kBytes = 2 * kVariantCount;
  at::Tensor sums = at::empty({kBytes + 1}, at::kDouble);
  for (int v = 0; v < kVariantCount; ++v) {
    sums[2 * v] = measured.halo[v].under_way;
    sums[2 * v + 1] = measured.halo[v].waited;
  }
  sums[kBytes] = static_cast<double>(measured.moved.bytes);
  world.all_reduce(sums);
  const double* sum = sums.const_data_ptr<double>();
  Totals totals{.moved_bytes = sum[kBytes]};
  for (int v = 0; v < kVariantCount; ++v) {
    totals.halo[v].under_way = sum[2 * v];
    totals.halo[v].waited = sum[2 * v + 1];
  }
  return totals;
}

void print(const char* name, double fewest_bytes, const Measured& measured, const Totals& totals,
           const mh::Communicator& world) {
  const Times& unsharded = measured.unsharded;
  const mh::HaloTimes& overlapped = totals.halo[0];
  std::printf(
      "%-6s %d %s ranks of %lld x %lld   unsharded %8.1f ms (processors %.1f)   bytes / fewest "
      "%.3f   %lld messages   hidden %.0f %%\n",
      name, world.size(), world.backend(), static_cast<long long>(kBlock), static_cast<long long>(kBlock),
      median(unsharded.wall), median(unsharded.processor), totals.moved_bytes / fewest_bytes,
      static_cast<long long>(measured.moved.messages),
      overlapped.under_way > 0 ? 100 * (1 - overlapped.waited / overlapped.under_way) : 0.0);
  for (int v = 0; v < variant_count(world); ++v) {
    const Times& times = measured.times[v];
    const double rounds = static_cast<double>(times.wall.size());
    std::printf("         %-16s %8.1f ms, %6.2f of it waiting   ratio %.3f   of processor time %.3f\n",
                kVariants[v].name, median(times.wall), 1e3 * totals.halo[v].waited / rounds / world.size(),
                median(unsharded.wall) / median(times.wall), median(unsharded.processor) / median(times.processor));
  }
  std::fflush(stdout);
}

void run(const Case& c, const Grid& grid, mh::Communicator& world, int rounds, const Elsewhere& elsewhere) {
  const int64_t height = grid.rows * kBlock, width = grid.columns * kBlock;
  const auto mesh = mh::init_device_mesh(world, "cpu", {grid.rows, grid.columns}, {"rows", "columns"});
  const std::vector<int64_t> shape = c.shape(height, width);
  const int64_t numel = c10::multiply_integers(shape);
  const at::Tensor full = (at::arange(numel, at::kFloat) * 0.37).sin_().view(shape);
  const at::Tensor x = mh::from_local(full.narrow(c.first_dim, mesh->coordinate(0) * kBlock, kBlock)
                                          .narrow(c.first_dim + 1, mesh->coordinate(1) * kBlock, kBlock)
                                          .contiguous(),
                                      mesh, {mh::shard(c.first_dim), mh::shard(c.first_dim + 1)});
  const Step plain = c.make(), sharded = c.make();
  const auto alone = [&] {
    if (world.rank() == 0) elsewhere([&] { plain(full); });
  };
  const Measured measured = measure(world, rounds, alone, [&] { sharded(x); });
  const Totals totals = totals_of(measured, world);
  const double fewest_bytes = 4.0 * static_cast<double>(c.fewest(grid, height, width));
  if (world.rank() == 0) print(c.name, fewest_bytes, measured, totals, world);
}

void run_all(mh::Communicator& world, int rounds, const std::string& only, const Elsewhere& elsewhere) {
  const Grid grid = world.size() == 4 ? Grid{2, 2} : Grid{world.size(), 1};
  for (const Case& c : kCases) {
    if (only.empty() || only == c.name) run(c, grid, world, rounds, elsewhere);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const std::string only = argc > 2 ? argv[2] : "";
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const mh::Launch launch = mh::detect_launch();
  if (launch.size > 1) {
    // mpirun binds each process to a core; the unsharded step is to have them all.
    cpu_set_t every;
    CPU_ZERO(&every);
    for (int i = 0; i < cores; ++i) CPU_SET(i, &every);
    sched_setaffinity(0, sizeof(every), &every);
    const int threads = std::max(1, cores / launch.size);
    at::set_num_threads(threads);
    run_all(*mh::make_world("mpi", launch), rounds, only, [&](const std::function<void()>& step) {
      at::set_num_threads(cores);
      step();
      at::set_num_threads(threads);
    });
    return 0;
  }
  for (const int ranks : {2, 4}) {
    MainThread main_thread;
    std::thread others([&] {
      mh::run_ranks(ranks, [&](mh::Communicator& world) {
        run_all(world, rounds, only, [&](const std::function<void()>& step) {
          main_thread.run([&] {
            at::set_num_threads(cores);
            step();
          });
        });
      });
      main_thread.end();
    });
    main_thread.serve();
    others.join();
  }
  return 0;
}
