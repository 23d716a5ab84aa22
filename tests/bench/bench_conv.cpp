// SPDX-License-Identifier: Apache-2.0
// A convolution of 3 x 3, 32 channels, on 4 x 32 x 512 x 512 float32, forward and backward: two
// thread ranks of one core, each with half the rows, against one plain tensor with two threads.
// Prints medians and their ratio.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace {

namespace mh = moonhalo;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Times {
  double forward = 0, backward = 0;
};

// `steps` timed steps after one that warms up.
std::vector<Times> run(at::Tensor x, int steps, const std::function<void()>& barrier) {
  x.requires_grad_();
  at::Tensor w = at::full({32, 32, 3, 3}, 0.01f).requires_grad_(), b = at::zeros({32}).requires_grad_();
  std::vector<Times> times;
  for (int step = 0; step <= steps; ++step) {
    barrier();
    const double start = seconds();
    const at::Tensor y = at::conv2d(x, w, b, 1, 1);
    const double middle = seconds();
    torch::autograd::grad({y}, {x, w, b}, {x.detach()});
    barrier();
    if (step > 0) times.push_back({middle - start, seconds() - middle});
  }
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5, steps = argc > 2 ? std::atoi(argv[2]) : 3;
  const at::Tensor full = at::linspace(-1, 1, 4 * 32 * 512 * 512).view({4, 32, 512, 512});
  std::vector<double> plain[3], sharded[3];
  const auto add = [](std::vector<double>(&to)[3], const std::vector<Times>& times) {
    for (const Times& t : times) {
      to[0].push_back(t.forward);
      to[1].push_back(t.backward);
      to[2].push_back(t.forward + t.backward);
    }
  };
  for (int round = 0; round < rounds; ++round) {
    at::set_num_threads(2);
    add(plain, run(full.clone(), steps, [] {}));
    mh::run_ranks(
        2,
        [&](mh::Communicator& world) {
          const auto mesh = mh::init_device_mesh(world, "cpu", {2}, {"domain"});
          const at::Tensor x =
              mh::from_local(full.narrow(2, 256 * world.rank(), 256).contiguous(), mesh, {mh::shard(2)});
          const auto times = run(x, steps, [&] { world.barrier(); });
          if (world.rank() == 0) add(sharded, times);
        },
        1);
  }
  const char* names[] = {"forward", "backward", "both"};
  for (int i = 0; i < 3; ++i) {
    std::printf("%-9s one tensor, 2 threads %7.1f ms   2 ranks, 1 thread %7.1f ms   ratio %.3f\n", names[i],
                1e3 * median(plain[i]), 1e3 * median(sharded[i]), median(plain[i]) / median(sharded[i]));
  }
  return 0;
}
