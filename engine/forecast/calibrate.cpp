// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/calibrate.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>
#include <string_view>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/least_time.h"
#include "moonhalo/engine/forecast/process_memory.h"
#include "moonhalo/engine/forecast/tape.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes of the tensors of collectives, and of all tensors of an operator together.
constexpr int64_t kVerbBytes[] = {4, 4096, 65536, 1 << 20, 16 << 20};
constexpr int64_t kWorkingSets[] = {96 << 10, 768 << 10, 6 << 20, 48 << 20, 192 << 20};

/// Work of one kind, and how much of it one call is: operations, or bytes.
struct Probe {
  std::string name;
  double amount = 0;
  int calls = 1;
  std::function<void()> work;
};

// Forward, and backward to both arguments: kernels of the backward are slower, and a training step has all three.
Probe convolution_probe() {
  const at::Tensor x = at::ones({4, 32, 64, 64}), weight = at::ones({32, 32, 3, 3}), grad = at::ones({4, 32, 62, 62});
  const auto work = [=] {
    at::conv2d(x, weight);
    at::convolution_backward(grad, x, weight, at::OptionalIntArrayRef(), {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1,
                             {true, true, false});
  };
  return {"convolution", 3 * 2.0 * 4 * 32 * 62 * 62 * 32 * 9, 1, work};
}

Probe product_probe() {
  const at::Tensor a = at::ones({512, 512}), b = at::ones({512, 512});
  return {"product", 2.0 * 512 * 512 * 512, 1, [=] { at::mm(a, b); }};
}

Probe attention_probe() {
  const at::Tensor x = at::ones({1, 4, 512, 64});
  return {"attention", 4.0 * 4 * 512 * 512 * 64, 1, [=] { at::scaled_dot_product_attention(x, x, x); }};
}

Probe stream_probe(int64_t working_set) {
  const int64_t numel = working_set / 3 / static_cast<int64_t>(sizeof(float));
  const at::Tensor a = at::ones({numel}), b = at::ones({numel});
  at::Tensor out = at::empty({numel});
  const int calls = static_cast<int>(std::clamp<int64_t>((1 << 22) / working_set, 1, 32));
  return {"stream", static_cast<double>(numel * 3) * sizeof(float), calls, [=]() mutable { at::add_out(out, a, b); }};
}

// Operators on blocks of one number, forward and backward: LibTorch's dispatcher and autograd, and the engine's. One
// call is kLaunches operators.
constexpr int kLaunches = 40;
Probe launch_probe(Communicator& world) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", {world.size()}, {"ranks"});
  const at::Tensor x = from_local(at::ones({1}), mesh, {replicate()}).requires_grad_();
  const at::Tensor factor = from_local(at::ones({1}), mesh, {replicate()});
  const auto work = [=] {
    at::Tensor y = x;
    for (int i = 0; i < kLaunches / 2; ++i) y = at::mul(y, factor);
    y.backward();
    x.mutable_grad() = at::Tensor();
  };
  return {"launch", 1, 4, work};
}

// One by LibTorch's dispatcher alone, without a graph.
Probe plain_launch_probe() {
  const at::Tensor x = at::ones({1});
  return {"plain launch", 1, 100, [=] { at::mul(x, x); }};
}

std::vector<Probe> arithmetic_probes() { return {convolution_probe(), product_probe(), attention_probe()}; }

double jitter_of(const std::function<void()>& work, int samples) {
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    const double begin = seconds_of(ClockOf::kThread);
    work();
    times.push_back(seconds_of(ClockOf::kThread) - begin);
  }
  // From the median of the distances to the median, which rare interrupts do not change.
  const double middle = median_of(times);
  for (double& time : times) time = std::abs(time - middle);
  return std::min(1.0, 1.4826 * median_of(times) / middle);
}

/// Divides the time among the measurements that are left.
class Budget {
 public:
  Budget(double seconds, int measurements) : end_(seconds), left_(measurements) {}
  /// For the next `measurements`.
  double next(int measurements = 1) {
    const double share = std::max(0.0, end_ - seconds_since(start_)) * measurements / std::max(left_, measurements);
    left_ -= measurements;
    return share;
  }

 private:
  Clock::time_point start_ = Clock::now();
  double end_;
  int left_;
};

/// A collective with tensors of `bytes` in all. Before it is called, `write` writes what it sends, as a step does: then
/// the data is in a cache of the sender's core.
struct VerbCall {
  std::function<void()> write, call;
};
VerbCall verb_call(Communicator& group, Verb verb, int64_t bytes) {
  const int size = group.size(), next = (group.rank() + 1) % size, before = (group.rank() + size - 1) % size;
  const int64_t part = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)) / size);
  const int64_t numel = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)));
  const std::vector<int64_t> counts(size, part);
  Communicator* const to = &group;
  at::Tensor all = at::zeros({part * size}), mine = at::zeros({part}), data = at::zeros({numel});
  switch (verb) {
    case Verb::kAllReduce:
      return {[=]() mutable { data.fill_(1); }, [=]() mutable { to->all_reduce(data); }};
    case Verb::kAllGather:
      return {[=]() mutable { mine.fill_(1); }, [=]() mutable { to->all_gather(mine, counts, all); }};
    case Verb::kReduceScatter:
      return {[=]() mutable { all.fill_(1); }, [=]() mutable { to->reduce_scatter(all, counts, mine); }};
    case Verb::kAllToAll: {
      at::Tensor out = at::zeros_like(all);
      return {[=]() mutable { all.fill_(1); }, [=]() mutable { to->all_to_all(all, counts, out, counts, part); }};
    }
    case Verb::kBroadcast:
      return {[=]() mutable { data.fill_(1); }, [=]() mutable { to->broadcast(data, 0); }};
    case Verb::kBarrier:
      return {[] {}, [=] { to->barrier(); }};
    case Verb::kExchange: {
      at::Tensor got = at::zeros_like(data);
      return {[=]() mutable { data.fill_(1); }, [=] { to->exchange({{next, data}}, {{before, got}}); }};
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

constexpr Verb kVerbs[] = {Verb::kExchange, Verb::kAllReduce, Verb::kAllGather, Verb::kReduceScatter,
                           Verb::kAllToAll, Verb::kBroadcast, Verb::kBarrier};
// A step uses other memory between two messages: this many bytes.
constexpr int64_t kOtherBytes = 16 << 20;
constexpr int kVerbMeasurements = std::size(kVerbs) * std::size(kVerbBytes);

// Times that grow with the size; a shorter time of a longer message is noise.
SizeTable growing(SizeTable table) {
  for (size_t i = table.size() - 1; i > 0; --i) table[i - 1].second = std::min(table[i - 1].second, table[i].second);
  return table;
}

// True of ranks on one host that wait for cores, too. Their times vary from call to call, so that the median counts.
bool take_turns(const Communicator& group, int64_t cores) {
  return std::string_view(group.backend()) == "threads" && group.size() > cores;
}

Machine::Verbs measure_verbs(Communicator& group, double seconds, int64_t cores, bool& stable) {
  Machine::Verbs verbs;
  const double share = seconds / kVerbMeasurements;
  const at::Tensor other_from = at::zeros({kOtherBytes / 2}, at::kByte);
  at::Tensor other_to = at::zeros_like(other_from);
  for (const Verb verb : kVerbs) {
    SizeTable table;
    for (const int64_t bytes : kVerbBytes) {
      if (verb == Verb::kBarrier && bytes > kVerbBytes[0]) break;
      const int calls = bytes <= 4096 ? 50 : bytes <= 65536 ? 10 : 1;
      std::vector<VerbCall> turns;  // each with memory of its own, and data that is not sent twice
      for (int i = 0; i < calls; ++i) turns.push_back(verb_call(group, verb, bytes));
      size_t next = 0;
      const auto write = [&] {
        other_to.copy_(other_from);
        for (const VerbCall& turn : turns) turn.write();
      };
      const MeasuredTime time = least_time(
          group, share, calls, [&] { turns[next++ % turns.size()].call(); }, ClockOf::kWall, write);
      const bool varies = take_turns(group, cores);
      stable = stable && (varies || time.stable);
      table.emplace_back(bytes, time.median);
    }
    verbs[name(verb)] = growing(std::move(table));
  }
  return verbs;
}

// Seconds from one message to the next, where several short ones leave together.
double measure_gap(Communicator& group, double seconds) {
  constexpr int kMessages = 8;
  const int size = group.size(), next = (group.rank() + 1) % size, before = (group.rank() + size - 1) % size;
  const at::Tensor data = at::zeros({16});
  std::vector<at::Tensor> got;
  for (int i = 0; i < kMessages; ++i) got.push_back(at::zeros({16}));
  const auto several = [&](int count) {
    std::vector<Message> sends(count, {next, data}), receives;
    for (int i = 0; i < count; ++i) receives.push_back({before, got[i]});
    group.exchange(std::move(sends), std::move(receives));
  };
  const double one = least_time(group, seconds / 2, 20, [&] { several(1); }).seconds;
  const double all = least_time(group, seconds / 2, 20, [&] { several(kMessages); }).seconds;
  return std::max(0.0, (all - one) / (kMessages - 1));
}

// The gaps in the clocks of busy threads, two a core: one of them waits while the core keeps the other.
std::vector<double> measure_gaps(int64_t cores) {
  constexpr double kSeconds = 0.1, kLeastGap = 2e-4;
  std::vector<std::vector<double>> gaps(2 * cores);
  run_ranks(
      static_cast<int>(gaps.size()),
      [&](Communicator& world) {
        world.barrier();
        const Clock::time_point begin = Clock::now();
        for (double before = 0, now = 0; now < kSeconds; before = now) {
          now = seconds_since(begin);
          if (now - before > kLeastGap) gaps[world.rank()].push_back(now - before);
        }
      },
      1);
  std::vector<double> all;
  for (const std::vector<double>& some : gaps) all.insert(all.end(), some.begin(), some.end());
  return all;
}

// 2, 4, 8, ..., and all.
std::vector<int64_t> busy_core_counts(int64_t cores) {
  std::vector<int64_t> counts;
  for (int64_t count = 2; count < cores; count *= 2) counts.push_back(count);
  if (cores > 1) counts.push_back(cores);
  return counts;
}

class HostCalibration {
 public:
  HostCalibration(double seconds, const CalibrateProgress& progress)
      : progress_(progress),
        cores_(usable_core_count()),
        counts_(busy_core_counts(cores_)),
        budget_(seconds, kAlone + static_cast<int>(counts_.size()) * (kBeside + kVerbShare) + kVerbShare) {}

  Machine run() {
    describe();
    run_ranks(
        1, [&](Communicator& world) { alone(world); }, 1);
    for (const int64_t count : counts_) beside(count);
    if (!neighbours_are_plausible(machine_)) note_noise("work took less time beside neighbours than alone");
    slice();
    verbs();
    return machine_;
  }

 private:
  // Numbers of measurements; a collective takes less time than an operator.
  static constexpr int kAlone = 11, kBeside = 4, kVerbShare = kVerbMeasurements / 3;

  void describe() {
    char date[16];
    const std::time_t now = std::time(nullptr);
    std::tm day;
    std::strftime(date, sizeof date, "%Y-%m-%d", localtime_r(&now, &day));
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    machine_.name = host[0] != '\0' ? host : "this machine";
    machine_.made = date;
    machine_.measured = true;
    machine_.host = {cores_, static_cast<double>(host_memory()), static_cast<double>(measure_process_memory().base),
                     processor_model()};
    machine_.device.kind = "cpu";
  }

  // Says it as soon as it is known, so that calibration can be begun again.
  void note_noise(const std::string& what) {
    if (machine_.quiet) progress_("not quiet: " + what + "; stop other programs and begin again, or times are rough");
    machine_.quiet = false;
  }

  double take(const MeasuredTime& time) {
    if (!time.stable) note_noise("times of the same work differ by more than 3 %");
    return time.seconds;
  }

  void alone(Communicator& world) {
    progress_("rates of one core: convolution, product, attention, memory");
    for (const Probe& probe : arithmetic_probes()) {
      const double seconds = take(least_time(world, budget_.next(), probe.calls, probe.work, ClockOf::kThread));
      alone_[probe.name] = seconds;
      machine_.device.flops[probe.name][""] = probe.amount / seconds;
    }
    for (const int64_t bytes : kWorkingSets) {
      if (static_cast<double>(bytes) > machine_.host.memory / 8) break;
      const Probe probe = stream_probe(bytes);
      const double seconds = take(least_time(world, budget_.next(), probe.calls, probe.work, ClockOf::kThread));
      machine_.device.bandwidth.emplace_back(bytes, probe.amount / seconds);
      if (bytes == kNeighbourBytes) alone_["stream"] = seconds;
    }
    const Probe launch = launch_probe(world);
    machine_.device.launch =
        take(least_time(world, budget_.next(), launch.calls, launch.work, ClockOf::kThread)) / kLaunches;
    const Probe plain = plain_launch_probe();
    const double alone = take(least_time(world, budget_.next(), plain.calls, plain.work, ClockOf::kThread));
    machine_.device.dispatch = std::max(0.0, machine_.device.launch - alone);
    const Probe product = product_probe();
    const double time = std::max(alone_["product"], 1e-6);
    machine_.device.jitter = jitter_of(product.work, static_cast<int>(std::clamp(budget_.next() / time, 20.0, 400.0)));
  }

  // The same work on several cores at the same time.
  void beside(int64_t count) {
    progress_("the same work on " + plural(count, "core") + " at the same time");
    const double share = budget_.next(kBeside) / kBeside;
    run_ranks(
        static_cast<int>(count),
        [&](Communicator& world) {
          std::vector<Probe> probes = arithmetic_probes();
          probes.push_back(stream_probe(kNeighbourBytes));
          for (const Probe& probe : probes) {
            const MeasuredTime time = least_time(world, share, probe.calls, probe.work, ClockOf::kThread);
            if (world.rank() != 0) continue;
            machine_.neighbours[count][probe.name] = std::clamp(take(time) / alone_.at(probe.name), 0.5, 1000.0);
          }
        },
        1);
  }

  void slice() {
    progress_("time slice of a core");
    const MeasuredSlice slice = slice_of_gaps(measure_gaps(cores_));
    if (slice.seconds > 0) machine_.host.slice = slice.seconds;
    if (!slice.stable) note_noise("time slices of the cores differ");
  }

  // Ranks that take turns on cores wait longer for each other: one rank more than there are cores is measured, too.
  void verbs() {
    std::vector<int64_t> ranks = counts_;
    ranks.push_back(cores_ + 1);
    for (const int64_t count : ranks) {
      progress_("collectives of " + plural(count, "rank thread"));
      const double share = budget_.next(kVerbShare);
      run_ranks(
          static_cast<int>(count),
          [&](Communicator& world) {
            bool stable = true;
            const Machine::Verbs verbs = measure_verbs(world, share, cores_, stable);
            const double gap = count == ranks.front() ? measure_gap(world, share / 10) : 0;
            if (world.rank() != 0) return;
            if (!stable) note_noise("times of the same collective differ by more than 3 %");
            machine_.verbs["threads"][count] = verbs;
            if (count == ranks.front()) machine_.levels = {host_level(verbs.at("exchange"), count, gap)};
          },
          1);
    }
  }

  // All ranks copy at the same time, through one memory.
  static Machine::Level host_level(const SizeTable& exchange, int64_t ranks, double gap) {
    const double latency = exchange.front().second;
    const auto& [bytes, seconds] = exchange.back();
    const double bandwidth = static_cast<double>(ranks) * bytes / std::max(seconds - latency, 1e-9);
    return {.name = "host", .latency = latency, .gap = gap, .bandwidth = bandwidth, .shared = true};
  }

  static constexpr int64_t kNeighbourBytes = kWorkingSets[2];

  const CalibrateProgress& progress_;
  int64_t cores_;
  std::vector<int64_t> counts_;
  Budget budget_;
  Machine machine_;
  std::map<std::string, double> alone_;
};

}  // namespace

bool neighbours_are_plausible(const Machine& machine) {
  constexpr double kLeast = 0.9;
  for (const auto& [cores, factors] : machine.neighbours) {
    for (const auto& [work, factor] : factors) {
      if (factor <= kLeast) return false;
    }
  }
  return true;
}

MeasuredSlice slice_of_gaps(std::vector<double> gaps) {
  constexpr size_t kLeastGaps = 3;
  constexpr double kMost = 1, kStable = 2;
  if (gaps.size() < kLeastGaps) return {};
  std::sort(gaps.begin(), gaps.end());
  const double total = std::accumulate(gaps.begin(), gaps.end(), 0.0);
  // Gaps up to this one have that share of the time of all.
  const auto quantile = [&](double share) {
    double sum = 0;
    for (const double gap : gaps) {
      if ((sum += gap) >= share * total) return gap;
    }
    return gaps.back();
  };
  return {std::min(quantile(0.5), kMost), quantile(0.75) <= kStable * quantile(0.25)};
}

Machine calibrate_host(double seconds, const CalibrateProgress& progress) {
  TORCH_CHECK_VALUE(seconds > 0, "calibrate: ", seconds, " seconds\n  have  ", seconds,
                    "\n  fix   give a positive number of seconds");
  return HostCalibration(seconds, progress).run();
}

void calibrate_verbs(Communicator& world, double seconds, Machine& machine) {
  TORCH_CHECK_VALUE(world.size() > 1, "calibrate: one rank has no collectives\n  have  ", world.size(), " rank",
                    "\n  fix   start several ranks: `mpirun -n 2 moonhalo calibrate FILE --verbs`");
  TORCH_CHECK_VALUE(!world.is_fake(), "calibrate: the backend fake sends nothing\n  have  backend fake",
                    "\n  fix   start real ranks: `mpirun -n 2 moonhalo calibrate FILE --verbs`");
  bool stable = true;
  machine.verbs[world.backend()][world.size()] = measure_verbs(world, seconds, machine.host.cores, stable);
  machine.quiet = machine.quiet && stable;
}

}  // namespace moonhalo
