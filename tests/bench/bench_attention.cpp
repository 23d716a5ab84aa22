// SPDX-License-Identifier: Apache-2.0
// Attention over a cut sequence on thread ranks, forward and backward, float32, batch 1, 8 heads of 64: blocks that go
// round against keys and values gathered by every rank. For each: the time of a step; the processor time of the most
// loaded rank, of which 1.00 is an equal share of what one thread needs for the whole on plain tensors (on a busy
// machine wall times say little); bytes sent by all ranks; and the most memory that a rank's tensors took at once
// during a step.
//   bench_attention [TOKENS] [ROUNDS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "tests/support/live_bytes.h"
#include "tests/support/oracle.h"

namespace mh = moonhalo;
namespace {

constexpr int64_t kHeads = 8, kHeadDim = 64;
using Attend = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The time of this thread.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Measured {
  double seconds = 1e30, busiest = 1e30, megabytes = 0;
  int64_t bytes = 0;
};

// The most bytes that the tensors made on the way took at once.
int64_t step(const Attend& attend, const std::vector<at::Tensor>& t) {
  const auto live = std::make_shared<mh::testing::LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  const at::Tensor output = attend(t[0], t[1], t[2]);
  torch::autograd::grad({output}, {t[0], t[1], t[2]}, {output.detach()});
  return live->peak;
}

std::vector<at::Tensor> inputs(int64_t tokens) {
  std::vector<at::Tensor> result;
  for (int i = 0; i < 3; ++i)
    result.push_back(mh::testing::make_tensor({1, kHeads, tokens, kHeadDim}, i + 1, at::kFloat));
  return result;
}

Measured on_ranks(int ranks, int64_t tokens, int rounds, const Attend& attend) {
  const auto full = inputs(tokens);
  Measured best;
  mh::run_ranks(ranks, [&](mh::Communicator& world) {
    at::set_num_threads(1);
    const auto mesh = mh::init_device_mesh(world, "cpu", {ranks});
    std::vector<at::Tensor> t;
    for (const at::Tensor& x : full)
      t.push_back(mh::testing::shard_of(x, mesh, {mh::shard(2)}).detach().requires_grad_());
    step(attend, t);
    for (int round = 0; round < rounds; ++round) {
      world.barrier();
      const int64_t sent_before = world.stats().total().bytes;
      const double start = seconds(), start_cpu = cpu_seconds();
      at::Tensor peak = at::full({1}, step(attend, t), at::kLong);
      at::Tensor busiest = at::full({1}, cpu_seconds() - start_cpu, at::kDouble);
      const int64_t sent = world.stats().total().bytes - sent_before;
      world.barrier();
      const double end = seconds();
      at::Tensor sum = at::full({1}, sent, at::kLong);
      world.all_reduce(sum);
      world.all_reduce(busiest, mh::ReduceOp::kMax);
      world.all_reduce(peak, mh::ReduceOp::kMax);
      if (world.rank() != 0) continue;
      best.seconds = std::min(best.seconds, end - start);
      best.busiest = std::min(best.busiest, busiest.item<double>());
      best.megabytes = static_cast<double>(peak.item<int64_t>()) / 1048576;
      best.bytes = sum.item<int64_t>();
    }
  });
  return best;
}

Measured alone(int64_t tokens, int rounds, const Attend& attend) {
  at::set_num_threads(1);
  auto t = inputs(tokens);
  for (at::Tensor& x : t) x.requires_grad_();
  Measured best;
  step(attend, t);
  for (int round = 0; round < rounds; ++round) {
    const double start = seconds(), start_cpu = cpu_seconds();
    best.megabytes = static_cast<double>(step(attend, t)) / 1048576;
    best.seconds = std::min(best.seconds, seconds() - start);
    best.busiest = std::min(best.busiest, cpu_seconds() - start_cpu);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::max(8, std::atoi(argv[1])) : 4096;
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
  std::printf("%lld tokens, 8 heads of 64, float32, forward and backward\n", static_cast<long long>(tokens));
  std::printf("%-28s %10s %10s %10s %10s\n", "", "ms", "x share", "MiB sent", "MiB live");
  for (const bool causal : {false, true}) {
    const auto ring = [causal](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return at::scaled_dot_product_attention(q, k, v, {}, 0, causal);
    };
    // Queries stay cut; every rank holds all keys, and their gradients are summed to the blocks.
    const auto gathered = [causal](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      const auto whole = [](const at::Tensor& t) { return mh::redistribute(t, {mh::replicate()}); };
      return at::scaled_dot_product_attention(q, whole(k), whole(v), {}, 0, causal);
    };
    const Measured one = alone(tokens, rounds, ring);
    std::printf("%-28s %10.1f %10.2f %10.2f %10.1f\n", causal ? "causal: one thread, plain" : "one thread, plain",
                one.seconds * 1e3, 1.0, 0.0, one.megabytes);
    for (const int ranks : {2, 4}) {
      for (const bool gathers : {false, true}) {
        const Measured m = on_ranks(ranks, tokens, rounds, gathers ? Attend(gathered) : Attend(ring));
        const std::string name =
            std::string(gathers ? "  gathered" : "  round") + ", " + std::to_string(ranks) + " ranks";
        std::printf("%-28s %10.1f %10.2f %10.2f %10.1f\n", name.c_str(), m.seconds * 1e3,
                    m.busiest / (one.busiest / ranks), static_cast<double>(m.bytes) / 1048576, m.megabytes);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
