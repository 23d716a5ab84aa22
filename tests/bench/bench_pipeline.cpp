// SPDX-License-Identifier: Apache-2.0
// A training step through a pipeline of two stages on two thread ranks, 8 micro-batches, against the same stages in a
// row on one of them: step / ((m + p - 1) / (m p) serial) is 1 where only the schedule's own waiting is lost.
// "compute": linear layers, a core each, so other work on the machine counts; "sleep": stages that only wait, 4 ms
// forward and 8 ms backward. Kept: what rank 0 holds for backward at most, in activations of one micro-batch (gpipe:
// all 8, 1f1b: as many as stages).
//   bench_pipeline [ROUNDS]
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>

#include "moonhalo/engine/moonhalo.h"
#include "tests/support/live_bytes.h"

namespace mh = moonhalo;
namespace {

constexpr int64_t kRanks = 2, kMicros = 8, kLayers = 4, kWidth = 512, kRows = 256;
using Tensors = mh::Pipeline::Tensors;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

struct Stages {
  std::vector<at::Tensor> weights;
  std::vector<mh::Pipeline::Stage> functions;
};

Stages computing() {
  Stages stages;
  for (int64_t i = 0; i < kRanks * kLayers; ++i) {
    const at::Tensor w = at::sin(at::arange(static_cast<double>(kWidth * kWidth)) * static_cast<double>(i + 1));
    stages.weights.push_back((w.view({kWidth, kWidth}) / 16).to(at::kFloat).requires_grad_());
  }
  for (int64_t s = 0; s < kRanks; ++s) {
    stages.functions.push_back([weights = stages.weights, s](const Tensors& in) {
      at::Tensor h = in[0];
      for (int64_t i = 0; i < kLayers; ++i) h = at::relu(at::matmul(h, weights[s * kLayers + i]));
      return Tensors{h};
    });
  }
  return stages;
}

Stages sleeping() {
  Stages stages;
  for (int64_t s = 0; s < kRanks; ++s) {
    stages.weights.push_back(at::ones({1}).requires_grad_());
    stages.functions.push_back([w = stages.weights.back()](const Tensors& in) {
      sleep_ms(4);
      const at::Tensor y = in[0] * w;
      y.register_hook([](const at::Tensor&) { sleep_ms(8); });
      return Tensors{y};
    });
  }
  return stages;
}

at::Tensor loss_of(const Tensors& outputs, int64_t) { return outputs[0].mean(); }

double milliseconds(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
}

void serial_step(const Stages& stages, const std::vector<Tensors>& samples) {
  for (int64_t m = 0; m < kMicros; ++m) {
    Tensors tensors = samples[m];
    for (const auto& stage : stages.functions) tensors = stage(tensors);
    loss_of(tensors, m).backward();
  }
}

/// Measures what `work` holds on this thread beyond what was held before: at most, and in the end.
mh::testing::LiveBytes bytes_of(const std::function<void()>& work) {
  const auto live = std::make_shared<mh::testing::LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  work();
  return *live;
}

void measure(mh::Communicator& world, const char* kind, const Stages& stages, int rounds) {
  const mh::MeshPtr mesh = mh::init_device_mesh(world, "cpu", {kRanks}, {"pp"});
  const std::vector<Tensors> samples(kMicros, Tensors{at::ones({kRows, kWidth})});
  for (const mh::Schedule schedule : {mh::Schedule::kGPipe, mh::Schedule::k1F1B}) {
    mh::Pipeline pipeline(mesh, "pp", stages.functions, {.schedule = schedule, .micros = kMicros});
    const auto step = [&] { pipeline.train_step(samples, loss_of); };
    step();  // gradients are there from now on
    double serial = std::numeric_limits<double>::max(), piped = serial;
    for (int round = 0; round < rounds; ++round) {
      world.barrier();
      if (world.rank() == 0) serial = std::min(serial, milliseconds([&] { serial_step(stages, samples); }));
      world.barrier();
      piped = std::min(piped, milliseconds(step));
    }
    Tensors kept;
    const int64_t one = bytes_of([&] { kept = stages.functions[0](samples[0]); }).now;
    const int64_t most = bytes_of(step).peak;
    if (world.rank() != 0) continue;
    const double ideal = serial * (kMicros + kRanks - 1) / (kMicros * kRanks);
    std::printf("%-8s %-6s serial %7.1f ms, pipeline %7.1f ms, step / ideal %.3f", kind, name(schedule), serial, piped,
                piped / ideal);
    if (one > int64_t{1} << 20)
      std::printf(", kept %.2f micro-batches", static_cast<double>(most) / static_cast<double>(one));
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  mh::run_ranks(
      kRanks,
      [&](mh::Communicator& world) {
        measure(world, "compute", computing(), rounds);
        measure(world, "sleep", sleeping(), rounds);
      },
      1);
}
