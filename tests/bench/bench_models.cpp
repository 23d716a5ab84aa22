// SPDX-License-Identifier: Apache-2.0
// Training steps (forward, backward, AdamW) of four small models, and single operators forward and backward, three ways
// that take turns, round by round: plain tensors with as many LibTorch threads as there are cores, ShardTensors on a
// mesh of one rank with as many, and ShardTensors cut by rows over as many thread ranks of one thread each. Medians of
// wall and of processor time (all threads of the process); ratios are medians of each round's, to the plain step beside
// it.
//   mesh of 1 / plain    what the engine costs where nothing is cut; required: at most 1.03 of processor time
//   ranks / plain        what cutting costs; required: at most 1.00
// Run again with OMP_WAIT_POLICY=passive, which this program sets: threads that wait would count as work.
// On a GPU (--device cuda:0) all three compute there, two thread ranks share it, wall times end when the GPU has
// finished, and two more tables follow: the most memory that a step of each way takes, and the time of the host for one
// call on tensors so small that the GPU waits for the host.
// usage: bench_models [rounds] [part of a case's name] [--device cuda:0]
#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/bench/models.h"
#include "tests/bench/taking_turns.h"

namespace {

namespace mh = moonhalo;
using Clock = std::chrono::steady_clock;
using Step = std::function<void()>;

c10::Device device(at::kCPU);  // set once by main

void finish_device() {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

struct Case {
  std::string name;
  std::vector<int64_t> shape;                   // of the input; its dim 2 is cut
  std::function<Step(const at::Tensor&)> make;  // a step on this input
  int repeats;                                  // per round
};

template <typename Net, typename... Arguments>
std::function<Step(const at::Tensor&)> training(Arguments... arguments) {
  return [=](const at::Tensor& x) -> Step {
    Net net(arguments...);
    mh::bench::same_weights(*net);
    net->to(device);
    const auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-4);
    return [=]() mutable {
      optimizer->zero_grad();
      net->forward(x).square().mean().backward();
      optimizer->step();
    };
  };
}

using Operator = at::Tensor (*)(const at::Tensor&);

std::function<Step(const at::Tensor&)> forward(Operator f) {
  return [f](const at::Tensor& x) -> Step {
    return [f, x] {
      const at::NoGradGuard no_grad;
      f(x);
    };
  };
}

std::function<Step(const at::Tensor&)> backward(Operator f) {
  return [f](const at::Tensor& given) -> Step {
    const at::Tensor x = given.detach().requires_grad_(), y = f(x), grad = at::ones_like(y).detach();
    return [=] { torch::autograd::grad({y}, {x}, {grad}, /*retain_graph=*/true); };
  };
}

const struct {
  const char* name;
  Operator f;
} kOperators[] = {
    {"group_norm",
     [](const at::Tensor& x) {
       return at::group_norm(x, 4, at::ones({x.size(1)}, device), at::zeros({x.size(1)}, device));
     }},
    {"bilinear x 2", [](const at::Tensor& x) { return mh::bench::UNetImpl::twice(x); }},
    {"cat",
     [](const at::Tensor& x) {
       return at::cat({x, x}, 1);
     }},
    {"mean {2, 3}",
     [](const at::Tensor& x) {
       return x.mean(at::IntArrayRef{2, 3});
     }},
    {"mean", [](const at::Tensor& x) { return x.mean(); }},
    {"silu", [](const at::Tensor& x) { return at::silu(x); }},
    {"max_pool2d", [](const at::Tensor& x) { return at::max_pool2d(x, 2); }},
    {"softmax", [](const at::Tensor& x) { return at::softmax(x, 3); }},
    {"pad",
     [](const at::Tensor& x) {
       return at::constant_pad_nd(x, {1, 1, 1, 1});
     }},
    {"slice + add", [](const at::Tensor& x) { return x.slice(2, 1) + x.slice(2, 0, -1); }},
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [name, f] : kOperators) {
    all.push_back({std::string(name) + " forward", {1, 16, 512, 512}, forward(f), 4});
    all.push_back({std::string(name) + " backward", {1, 16, 512, 512}, backward(f), 4});
  }
  for (const int64_t side : {64, 128, 256, 512}) {
    const int64_t batch = side < 256 ? 4 : side < 512 ? 2 : 1;
    const std::vector<int64_t> shape{batch, mh::bench::kFieldChannels, side, side};
    const std::string size = " " + std::to_string(side);
    const int repeats = side < 256 ? 2 : 1;
    all.push_back({"U-Net" + size, shape, training<mh::bench::UNet>(), repeats});
    all.push_back({"FNO" + size, shape, training<mh::bench::Fno>(), repeats});
    all.push_back({"vision transformer" + size, shape, training<mh::bench::VisionTransformer>(side), repeats});
    all.push_back({"ConvNeXt" + size, shape, training<mh::bench::ConvNext>(), repeats});
  }
  return all;
}

struct Times {
  std::vector<double> wall, processor;
};

void time_into(Times* times, int repeats, const std::function<void()>& step) {
  finish_device();
  const double cpu = mh::bench::processor_time();
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) step();
  finish_device();
  const double wall = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (times == nullptr) return;
  times->wall.push_back(wall / repeats);
  times->processor.push_back((mh::bench::processor_time() - cpu) / repeats);
}

double ratio(const std::vector<double>& mine, const std::vector<double>& plain) {
  std::vector<double> ratios;
  for (size_t i = 0; i < mine.size(); ++i) ratios.push_back(mine[i] / plain[i]);
  return mh::bench::median(ratios);
}

// `world` is of thread ranks; `alone` of one rank, used in the main thread.
void run(const Case& c, mh::Communicator& world, mh::Communicator& alone, int rounds,
         mh::bench::MainThread& main_thread) {
  const int64_t numel = c10::multiply_integers(c.shape);
  const at::Tensor full = (at::arange(numel, at::kFloat) * 0.37).sin_().view(c.shape).to(device);
  const auto mesh = mh::init_device_mesh(world, device.str(), {world.size()}, {"rows"});
  const int64_t rows = c.shape[2] / world.size();
  const Step cut = c.make(mh::from_local(full.narrow(2, world.rank() * rows, rows).contiguous(), mesh, {mh::shard(2)}));
  Step plain, whole;
  if (world.rank() == 0) {
    main_thread.run([&] {
      plain = c.make(full);
      whole = c.make(mh::from_local(full, mh::init_device_mesh(alone, device.str(), {1}, {"rows"}), {mh::shard(2)}));
    });
  }
  Times times[3];
  for (int round = -1; round < rounds; ++round) {
    const auto into = [&](int i) { return round < 0 ? nullptr : &times[i]; };
    if (world.rank() == 0) {
      main_thread.run([&] {
        // Some of LibTorch's counts of threads belong to the process, and the ranks set theirs.
        at::set_num_threads(world.size());
        time_into(into(0), c.repeats, plain);
        time_into(into(1), c.repeats, whole);
        at::set_num_threads(1);
      });
    }
    world.barrier();
    time_into(into(2), 1, [&] {
      for (int i = 0; i < c.repeats; ++i) cut();
      world.barrier();
    });
    world.barrier();
  }
  if (world.rank() == 0) {
    main_thread.run([&] { plain = whole = nullptr; });
    for (double& t : times[2].wall) t /= c.repeats;
    for (double& t : times[2].processor) t /= c.repeats;
    const auto &plain_times = times[0], &one = times[1], &ranks = times[2];
    std::printf("%-26s %8.2f %8.2f   %8.2f %8.2f   %8.2f %8.2f     %5.2f %5.2f     %5.2f %5.2f\n", c.name.c_str(),
                mh::bench::median(plain_times.wall), mh::bench::median(plain_times.processor),
                mh::bench::median(one.wall), mh::bench::median(one.processor), mh::bench::median(ranks.wall),
                mh::bench::median(ranks.processor), ratio(one.wall, plain_times.wall),
                ratio(one.processor, plain_times.processor), ratio(ranks.wall, plain_times.wall),
                ratio(ranks.processor, plain_times.processor));
    std::fflush(stdout);
  }
}

double peak_megabytes(const Step& step) {
  step();
  finish_device();
  const auto bytes = [] { return at::accelerator::getDeviceStats(device.index()).allocated_bytes[0]; };
  at::accelerator::resetPeakStats(device.index());
  const int64_t before = bytes().current;
  step();
  finish_device();
  return static_cast<double>(bytes().peak - before) / 1e6;
}

// Prints the peak of the memory that a step adds, on plain tensors and on a mesh of one rank.
void print_memory(mh::Communicator& alone, const std::string& only) {
  std::printf("\nmost memory that a step adds, MB       plain   mesh of 1\n");
  for (const Case& c : cases()) {
    if (c.name.find(only) == std::string::npos) continue;
    const at::Tensor full =
        (at::arange(c10::multiply_integers(c.shape), at::kFloat) * 0.37).sin_().view(c.shape).to(device);
    const auto mesh = mh::init_device_mesh(alone, device.str(), {1}, {"rows"});
    const double plain = peak_megabytes(c.make(full));
    const double whole = peak_megabytes(c.make(mh::from_local(full, mesh, {mh::shard(2)})));
    std::printf("%-34s %9.1f   %9.1f\n", c.name.c_str(), plain, whole);
    std::fflush(stdout);
  }
}

// Microseconds of the host for one call, the median of five rounds of 2000 calls.
double host_microseconds(const std::function<void()>& call) {
  std::vector<double> rounds;
  for (int round = -1; round < 5; ++round) {
    finish_device();
    const auto start = Clock::now();
    for (int i = 0; i < 2000; ++i) call();
    const double time = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / 2000;
    if (round >= 0) rounds.push_back(time);
  }
  finish_device();
  return mh::bench::median(rounds);
}

void print_host_times(mh::Communicator& alone) {
  const auto mesh = mh::init_device_mesh(alone, device.str(), {1}, {"rows"});
  const at::Tensor plain = at::ones({1, 4, 8, 8}, device), whole = mh::from_local(plain, mesh, {mh::shard(2)});
  const at::Tensor weight = at::ones({4, 4, 3, 3}, device);
  const struct {
    const char* name;
    std::function<at::Tensor(const at::Tensor&)> f;
  } calls[] = {{"relu", [](const at::Tensor& x) { return x.relu(); }},
               {"x + x", [](const at::Tensor& x) { return x + x; }},
               {"sum over channels", [](const at::Tensor& x) { return x.sum(1); }},
               {"conv2d", [&](const at::Tensor& x) { return at::conv2d(x, weight, {}, 1, 1); }}};
  const at::NoGradGuard no_grad;
  std::printf("\ntime of the host per call, us           plain   mesh of 1   difference\n");
  for (const auto& [name, f] : calls) {
    const double alone_us = host_microseconds([&] { f(plain); }), whole_us = host_microseconds([&] { f(whole); });
    std::printf("%-34s %9.2f   %9.2f   %9.2f\n", name, alone_us, whole_us, whole_us - alone_us);
  }
}

// Takes "--device NAME" out of the arguments.
std::vector<std::string> read_device(std::vector<std::string> arguments) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] != "--device") continue;
    device = c10::Device(arguments[i + 1]);
    arguments.erase(arguments.begin() + i, arguments.begin() + i + 2);
    break;
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
  }
  const std::vector<std::string> arguments = read_device({argv + 1, argv + argc});
  const int rounds = !arguments.empty() ? std::atoi(arguments[0].c_str()) : 7;
  const std::string only = arguments.size() > 1 ? arguments[1] : "";
  const int cores = device.is_cpu() ? static_cast<int>(std::thread::hardware_concurrency()) : 2;
  std::printf(
      "medians of %d rounds, ms          plain: wall, processor   mesh of 1 rank      %d thread ranks      mesh of 1 / "
      "plain   ranks / plain\n",
      rounds, cores);
  const mh::CommunicatorPtr alone = mh::make_world("", mh::detect_launch());
  mh::bench::MainThread main_thread;
  std::thread others([&] {
    mh::run_ranks(
        cores,
        [&](mh::Communicator& world) {
          for (const Case& c : cases()) {
            if (c.name.find(only) != std::string::npos) run(c, world, *alone, rounds, main_thread);
          }
        },
        1);
    main_thread.end();
  });
  main_thread.serve();
  others.join();
  if (!device.is_cpu()) {
    print_memory(*alone, only);
    print_host_times(*alone);
  }
  return 0;
}
