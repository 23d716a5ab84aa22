// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention, in float32 by default, 8 heads of 32: forward and backward of the operator, of a version
// on unfolded keys and values, and of LibTorch's attention with a dense mask, in one run. Prints times, ratios, the
// share of the measured FMA peak that the operator's useful products reach (2 forward and 5 backward, of window keys
// each), and the peak memory that each adds. Shares of the peak are by processor time, of the peak's too: on a busy
// machine wall times say little. usage: bench_na [rounds] [all | quick] [case] [--device cuda] [--dtype bfloat16]
// quick leaves the dense mask out; case 0 to 3 runs that one alone. On a GPU times are those between events on its
// stream, memory is what LibTorch's allocator gave out at most, and no share of a peak is printed; float16 and
// bfloat16 take its tensor cores.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/ops/neighborhood/kernels/kernels.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/support/dense_neighborhood.h"
#include "tests/support/process_memory.h"

namespace {

namespace mh = moonhalo;
using Sizes = std::vector<int64_t>;
constexpr int64_t kHeads = 8, kHeadDim = 32;

// The case that is measured; set once by main.
at::TensorOptions options = at::dtype(at::kFloat);

bool on_gpu() { return options.device().is_cuda(); }

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The time of all threads of this process.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Floating point operations of multiply-adds on registers per second of one core.
double fma_peak() {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = cpu_seconds();
    std::vector<double> done(at::get_num_threads());
    mh::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) done[i] = mh::neighborhood::kernels_native().multiply_adds(20'000'000);
    });
    double total = 0;
    for (const double operations : done) total += operations;
    best = std::max(best, total / (cpu_seconds() - start));
  }
  return best;
}

// A place in time: on the clock, or on the GPU's stream, where nothing is waited for until two places are compared.
class Moment {
 public:
  Moment() {
    if (!on_gpu()) return;
    event_.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    event_->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(options.device()));
  }
  double seconds_until(const Moment& later) const {
    if (!on_gpu()) return later.seconds_ - seconds_;
    event_->synchronize();
    later.event_->synchronize();
    return 1e-3 * event_->elapsedTime(*later.event_);
  }
  double cpu_seconds_until(const Moment& later) const { return later.cpu_ - cpu_; }

 private:
  double seconds_ = seconds(), cpu_ = cpu_seconds();
  std::optional<c10::Event> event_;
};

// Megabytes that are held now, after `reset` also the most since.
double memory_now(bool reset) {
  if (on_gpu()) {
    if (reset) at::accelerator::resetPeakStats(options.device().index());
    const auto stats = at::accelerator::getDeviceStats(options.device().index());
    return static_cast<double>(stats.allocated_bytes[0].current) / 1e6;
  }
  if (reset) mh::testing::reset_peak_memory();
  return static_cast<double>(mh::testing::process_memory("VmRSS")) / (1 << 20);
}
double memory_peak() {
  if (!on_gpu()) return static_cast<double>(mh::testing::process_memory("VmHWM")) / (1 << 20);
  const auto stats = at::accelerator::getDeviceStats(options.device().index());
  return static_cast<double>(stats.allocated_bytes[0].peak) / 1e6;
}

struct Measured {
  double forward = 1e30, backward = 1e30, megabytes = 0;
  double forward_cpu = 1e30, backward_cpu = 1e30;
  double both() const { return forward + backward; }
};

using Attend = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

// The best of `rounds`, after one that warms up (unless there is but one).
Measured measure(const Attend& attend, const Sizes& dims, int rounds) {
  Sizes shape = {1};
  shape.insert(shape.end(), dims.begin(), dims.end());
  shape.insert(shape.end(), {kHeads, kHeadDim});
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 3; ++i) {
    const int64_t numel = c10::multiply_integers(shape);
    inputs.push_back((at::arange(numel, at::kFloat) * (0.37 + i)).sin().view(shape).to(options).requires_grad_());
  }
  const at::Tensor cotangent = inputs[1].detach().cos();
  Measured best;
  const double before = memory_now(/*reset=*/true);
  for (int round = rounds > 1 ? -1 : 0; round < rounds; ++round) {
    const Moment start;
    const at::Tensor output = attend(inputs[0], inputs[1], inputs[2]);
    const Moment middle;
    torch::autograd::grad({output}, {inputs[0], inputs[1], inputs[2]}, {cotangent});
    const Moment end;
    if (round < 0) continue;
    best.forward = std::min(best.forward, start.seconds_until(middle));
    best.backward = std::min(best.backward, middle.seconds_until(end));
    best.forward_cpu = std::min(best.forward_cpu, start.cpu_seconds_until(middle));
    best.backward_cpu = std::min(best.backward_cpu, middle.cpu_seconds_until(end));
  }
  best.megabytes = memory_peak() - before;
  return best;
}

// Keys and values of every window as copies, by index along each dim; scores as products and sums.
at::Tensor unfolded(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window) {
  const int64_t spatial = q.dim() - 3;
  const auto windows = [&](at::Tensor t) {  // [batch, dims..., heads, c] -> [batch, dims..., heads, keys, c]
    for (int64_t d = 0; d < spatial; ++d) {
      const int64_t extent = t.size(d + 1);
      const at::Tensor first = (at::arange(extent, options.device()) - window / 2).clamp(0, extent - window);
      t = t.unfold(d + 1, window, 1).index_select(d + 1, first);
    }
    return t.flatten(spatial + 3).transpose(-1, -2);
  };
  const at::Tensor scores = windows(k).matmul(q.unsqueeze(-1)).squeeze(-1) / std::sqrt(static_cast<double>(q.size(-1)));
  return scores.softmax(-1).unsqueeze(-2).matmul(windows(v)).squeeze(-2);
}

at::Tensor dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) {
  const auto heads_first = [](const at::Tensor& t) { return t.flatten(1, t.dim() - 3).transpose(1, 2); };
  return at::scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), mask)
      .transpose(1, 2)
      .reshape(q.sizes());
}

struct Case {
  const char* name;
  Sizes dims;
  int64_t window;
};

void run(const Case& c, int rounds, bool with_dense, double peak) {
  const auto ours = [&](const auto& q, const auto& k, const auto& v) {
    return std::get<0>(mh::neighborhood_attention(q, k, v, {{c.window}}));
  };
  const int64_t tokens = c10::multiply_integers(c.dims);
  double keys = 1;
  for (size_t i = 0; i < c.dims.size(); ++i) keys *= static_cast<double>(c.window);
  const double product = 2.0 * static_cast<double>(tokens) * kHeads * keys * kHeadDim;
  const Measured na = measure(ours, c.dims, rounds);
  const auto row = [&](const char* name, const Measured& m) {
    std::printf(
        "  %-22s forward %9.2f ms  backward %9.2f ms  memory %8.1f MB   ratio %7.1f forward %7.1f "
        "both\n",
        name, 1e3 * m.forward, 1e3 * m.backward, m.megabytes, m.forward / na.forward, m.both() / na.both());
  };
  std::printf("%s\n", c.name);
  row("neighborhood_attention", na);
  if (on_gpu()) {
    std::printf("  %-22s forward %8.0f      backward %8.0f\n", "useful GFLOP/s", 2e-9 * product / na.forward,
                5e-9 * product / na.backward);
  } else {
    std::printf("  %-22s forward %8.1f %%   backward %8.1f %%\n", "of the FMA peak",
                100 * 2 * product / na.forward_cpu / peak, 100 * 5 * product / na.backward_cpu / peak);
  }
  std::fflush(stdout);
  // Copies of all windows: keys and values, and as much again for their gradients.
  const double copies =
      4.0 * static_cast<double>(tokens) * kHeads * keys * kHeadDim * static_cast<double>(options.dtype().itemsize());
  if (copies < 8e9) {
    row("unfolded", measure([&](const auto& q, const auto& k, const auto& v) { return unfolded(q, k, v, c.window); },
                            c.dims, std::min(rounds, 3)));
  } else {
    std::printf("  %-22s left out: its copies would take %.0f GB\n", "unfolded", copies / 1e9);
  }
  std::fflush(stdout);
  if (!with_dense) return;
  const at::Tensor mask = mh::testing::dense_neighborhood_mask(c.dims, {{c.window}});
  const at::Tensor added =
      at::zeros(mask.sizes(), options)
          .masked_fill_(mask.logical_not().to(options.device()), -std::numeric_limits<float>::infinity());
  row("dense mask, SDPA",
      measure([&](const auto& q, const auto& k, const auto& v) { return dense(q, k, v, added); }, c.dims, 1));
  std::fflush(stdout);
}

// Takes "--device cuda" and "--dtype NAME" out of the arguments; false where one is unknown.
bool read_options(std::vector<std::string>& arguments) {
  const std::pair<const char*, at::ScalarType> types[] = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  for (size_t i = 0; i + 1 < arguments.size();) {
    const std::string name = arguments[i], value = arguments[i + 1];
    if (name != "--device" && name != "--dtype") {
      ++i;
      continue;
    }
    arguments.erase(arguments.begin() + i, arguments.begin() + i + 2);
    if (name == "--device") {
      if (value != "cpu" && value != "cuda") return false;
      options = options.device(value == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
      continue;
    }
    const auto* found =
        std::find_if(std::begin(types), std::end(types), [&](const auto& type) { return value == type.first; });
    if (found == std::end(types)) return false;
    options = options.dtype(found->second);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!read_options(arguments)) {
    std::fprintf(stderr, "bench_na: --device is cpu or cuda, --dtype float32, float64, bfloat16 or float16\n");
    return 2;
  }
  if (on_gpu() && !at::hasCUDA()) {
    std::fprintf(stderr, "bench_na: no CUDA device was found\n");
    return 1;
  }
  const int rounds = !arguments.empty() ? std::atoi(arguments[0].c_str()) : 5;
  const bool with_dense = arguments.size() < 2 || arguments[1] != "quick";
  at::set_num_threads(2);
  const double peak = on_gpu() ? 0 : fma_peak();
  std::printf("%s on %s, %lld heads of %lld\n", c10::toString(c10::typeMetaToScalarType(options.dtype())),
              options.device().str().c_str(), static_cast<long long>(kHeads), static_cast<long long>(kHeadDim));
  if (!on_gpu())
    std::printf("%d threads, FMA peak %.1f GFLOP/s a core (measured, float32)\n", at::get_num_threads(), peak / 1e9);
  const Case cases[] = {
      {"2-D 128 x 128, window 7 x 7", {128, 128}, 7},
      {"2-D 128 x 128, window 13 x 13", {128, 128}, 13},
      {"1-D 16384, window 49", {16384}, 49},
      {"3-D 24 x 24 x 24, window 7 x 7 x 7", {24, 24, 24}, 7},
  };
  for (int i = 0; i < 4; ++i) {
    if (arguments.size() < 3 || std::atoi(arguments[2].c_str()) == i) run(cases[i], rounds, with_dense, peak);
  }
  return 0;
}
