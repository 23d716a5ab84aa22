// SPDX-License-Identifier: Apache-2.0
// Training a transformer on thread ranks: copies and fully sharded parameters against data parallelism written by hand
// in plain LibTorch (every rank its own module, one flat all-reduce of the gradients), which is 1.00.
//   bench_train [ROUNDS [WIDTH [WAY]]]      0 rounds: counts alone; a way alone, as "true, true"
// "processor": time of all ranks / that of the way by hand, run next to it: the median of all steps and the quartiles;
// other work on the machine does not count in it. "wall" does, and "fastest" are the fastest tenths of both. "by hand"
// against itself says how much of all that is noise: where steps of one way take from 0.8 to 1.5 of each other, ask for
// ten rounds of a way. Each round is a process, since a model's place in memory matters too. The rest are counts: they
// are the same in every run.
//   bytes      that a rank sends in a step / the fewest: 3 or 2 times (P-1)/P of the parameters
//   messages   of a step / one for every pair of ranks, unit, gather and sum
//   peak       bytes of a rank in a step / (parameters, gradients and Adam's states, over P) + the two largest units,
//              gradients of one, and the activations of its samples, as a plain module keeps them
//   own        the same / what the way itself says that it keeps, which a line of its own spells out
//   state      bytes of parameters, gradients and Adam's states on the rank that has most / mean; blocks as torch.chunk
//              makes them beside it
//   clip       messages of the joint norm / those of one all-reduce; processor time / that of the norm of the blocks
//              that this rank has, each after a barrier, so that both find the caches as other ranks have left them;
//              the floor: that norm and one all-reduce of a number
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "tests/bench/taking_turns.h"
#include "tests/support/live_bytes.h"

namespace mh = moonhalo;
namespace nn = torch::nn;
namespace {

constexpr int64_t kBlocks = 8, kHeads = 8;
constexpr int kNorms = 15, kPairs = 6;

// C++'s own Linear calls addmm, whose bias is summed apart.
at::Tensor linear(const nn::Linear& layer, const at::Tensor& x) { return at::linear(x, layer->weight, layer->bias); }

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : norm1(nn::LayerNormOptions({width})),
        norm2(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        proj(width, width),
        fc1(width, 4 * width),
        fc2(4 * width, width) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("proj", proj);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t n = x.size(0), tokens = x.size(1), width = x.size(2);
    const auto parts = linear(qkv, norm1(x)).chunk(3, -1);
    const auto heads = [&](const at::Tensor& part) {
      return part.reshape({n, tokens, kHeads, width / kHeads}).transpose(1, 2);
    };
    const at::Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
    const at::Tensor h = x + linear(proj, mixed.transpose(1, 2).reshape({n, tokens, width}));
    return h + linear(fc2, at::gelu(linear(fc1, norm2(h))));
  }
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, proj, fc1, fc2;
};
TORCH_MODULE(Block);

struct TransformerImpl : nn::Module {
  explicit TransformerImpl(int64_t width) : head(width, width) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(width)));
    register_module("head", head);
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : parameters()) {
      if (p.dim() == 2) p.copy_((at::arange(p.numel(), at::kFloat) * 0.7).sin().view(p.sizes()) / std::sqrt(p.size(1)));
    }
  }
  std::vector<Block> blocks;
  nn::Linear head;
};
TORCH_MODULE(Transformer);

// A model on one rank, however it is divided.
struct Trainee {
  explicit Trainee(int64_t width) : net(width) {}
  Transformer net;
  std::vector<mh::ParameterUnitPtr> units;  // of the blocks, then of the whole
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::function<void()> sum = [] {};

  void divide(const mh::MeshPtr& mesh, const mh::FullyShardOptions* options) {
    const auto place = [&](nn::Module& module) {
      if (options != nullptr) units.push_back(mh::fully_shard(module, mesh, *options));
    };
    for (Block& block : net->blocks) place(*block);
    place(*net);
    if (options == nullptr) mh::replicate(*net, mesh);
    sum = [this] { mh::finish_grad_sync(net->parameters()); };
    make_optimizer();
  }
  void make_optimizer() {
    optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
  }
  // By hand: the mean of the ranks' gradients in one message.
  void by_hand(mh::Communicator& world) {
    sum = [this, &world] {
      const at::NoGradGuard no_grad;
      std::vector<at::Tensor> parts;
      for (const at::Tensor& p : net->parameters()) parts.push_back(p.grad().view({-1}));
      at::Tensor flat = at::cat(parts);
      world.all_reduce(flat, mh::ReduceOp::kAvg);
      int64_t start = 0;
      for (const at::Tensor& p : net->parameters()) {
        p.grad().copy_(flat.narrow(0, start, p.numel()).view(p.sizes()));
        start += p.numel();
      }
    };
    make_optimizer();
  }

  at::Tensor forward(at::Tensor x) {
    const auto all = [&] {
      at::Tensor h = x;
      for (int64_t i = 0; i < kBlocks; ++i) {
        const auto block = [&] { return net->blocks[i]->forward(h); };
        h = units.empty() ? block() : units[i]->call(block);
      }
      return linear(net->head, h);
    };
    return units.empty() ? all() : units.back()->call(all);
  }
  void pass(const at::Tensor& x) { forward(x).square().mean().backward(); }
  void step(const at::Tensor& x, int micros = 1) {
    optimizer->zero_grad();
    for (int micro = 0; micro < micros; ++micro) pass(x);
    sum();
    optimizer->step();
  }
  int64_t numel() const {
    int64_t count = 0;
    for (const at::Tensor& p : net->parameters()) count += p.numel();
    return count;
  }
};

struct Way {
  const char* name;
  bool by_hand = false, sharded = true;
  mh::FullyShardOptions options = {};
};
std::vector<Way> ways() {
  return {{"by hand", true, false},
          {"replicate", false, false},
          {"true, true", false, true, {.reshard_after_forward = true, .reshard_after_backward = true}},
          {"false, true", false, true, {.reshard_after_forward = false, .reshard_after_backward = true}},
          {"false, false", false, true, {.reshard_after_forward = false, .reshard_after_backward = false}}};
}

std::unique_ptr<Trainee> trainee(mh::Communicator& world, const mh::MeshPtr& mesh, const Way& way, int64_t width) {
  auto made = std::make_unique<Trainee>(width);
  if (way.by_hand) {
    made->by_hand(world);
  } else {
    made->divide(mesh, way.sharded ? &way.options : nullptr);
  }
  return made;
}

at::Tensor samples(const mh::MeshPtr& mesh, const Way& way, int64_t tokens, int64_t width) {
  const int64_t length = std::min<int64_t>(tokens, 128);
  const at::Tensor x = (at::arange(tokens * width, at::kFloat) * 0.37).sin().view({tokens / length, length, width});
  return way.by_hand ? x : mh::local_batch(x, mesh);
}

// ---- Times ---------------------------------------------------------------------------------------------------------

struct Step {
  double processor, wall;
};
// Holds steps of a way and of the way by hand, next to each other.
struct Pair {
  Step way, hand;
};

// By turns, whichever first: what the machine does slowly (its clock, its neighbours) is in both. So is what a model
// gains that was made before the other.
std::vector<Pair> pairs_of(mh::Communicator& world, const Way& way, int64_t tokens, int64_t width, int round) {
  const mh::MeshPtr mesh = mh::init_device_mesh(world, "cpu", {world.size()}, {"dp"});
  const Way hand = ways()[0];
  const std::array<const Way*, 2> order = round % 2 == 0 ? std::array{&way, &hand} : std::array{&hand, &way};
  std::array<std::unique_ptr<Trainee>, 2> models;
  std::array<at::Tensor, 2> inputs;
  for (size_t i = 0; i < 2; ++i) {
    models[i] = trainee(world, mesh, *order[i], width);
    inputs[i] = samples(mesh, *order[i], tokens, width);
  }
  const auto measured = [&](size_t i) {
    world.barrier();
    const double begun = mh::bench::processor_time();
    const auto clock = std::chrono::steady_clock::now();
    models[i]->step(inputs[i]);
    world.barrier();
    return Step{mh::bench::processor_time() - begun,
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - clock).count()};
  };
  std::vector<Pair> pairs;
  const size_t hands = order[0] == &way ? 1 : 0;
  for (int i = -1; i < kPairs; ++i) {
    const size_t first = static_cast<size_t>(i & 1);
    std::array<Step, 2> steps{};
    for (const size_t m : {first, 1 - first}) steps[m] = measured(m);
    if (i >= 0) pairs.push_back({steps[1 - hands], steps[hands]});  // the first makes plans and states
  }
  return pairs;
}

// Returns what rank 0 sees in a child process. This program may fork as long as it has no threads.
std::vector<Pair> in_process(const Way& way, int64_t tokens, int64_t width, int round) {
  std::array<int, 2> ends{};
  const bool piped = pipe(ends.data()) == 0;
  const pid_t child = piped ? fork() : -1;
  std::vector<Pair> pairs(kPairs);
  const auto bytes = static_cast<ssize_t>(pairs.size() * sizeof(Pair));
  if (child == 0) {
    mh::run_ranks(
        2,
        [&](mh::Communicator& world) {
          const std::vector<Pair> seen = pairs_of(world, way, tokens, width, round);
          if (world.rank() == 0) pairs = seen;
        },
        1);
    std::_Exit(write(ends[1], pairs.data(), static_cast<size_t>(bytes)) == bytes ? 0 : 1);
  }
  close(ends[1]);
  int status = 0;
  const bool all = child > 0 && read(ends[0], pairs.data(), static_cast<size_t>(bytes)) == bytes;
  close(ends[0]);
  if (!all || waitpid(child, &status, 0) != child || status != 0) {
    std::fprintf(stderr, "bench_train: a child process failed\n");
    std::exit(1);
  }
  return pairs;
}

void print_ratios(const char* what, const std::vector<Pair>& pairs, double Step::*of) {
  std::vector<double> ratios;
  for (const Pair& pair : pairs) ratios.push_back(pair.way.*of / (pair.hand.*of));
  std::printf("  %s %.3f (%.2f to %.2f)", what, mh::bench::median(ratios), mh::bench::quartile(ratios, 1),
              mh::bench::quartile(ratios, 3));
}

double fastest_tenth(const std::vector<Pair>& pairs, Step Pair::*whose) {
  std::vector<double> times;
  for (const Pair& pair : pairs) times.push_back((pair.*whose).wall);
  std::sort(times.begin(), times.end());
  return times[times.size() / 10];
}

void times(int64_t width, int rounds, const std::string& expected) {
  for (const int64_t tokens : {1024, 64}) {
    std::printf("%lld tokens a rank, width %lld, 2 thread ranks, %d pairs of steps\n", static_cast<long long>(tokens),
                static_cast<long long>(width), rounds * kPairs);
    for (const Way& way : ways()) {
      if (!expected.empty() && expected != way.name) continue;
      std::vector<Pair> pairs;
      for (int round = 0; round < rounds; ++round) {
        const std::vector<Pair> more = in_process(way, tokens, width, round);
        pairs.insert(pairs.end(), more.begin(), more.end());
      }
      const double fastest = fastest_tenth(pairs, &Pair::way);
      std::printf("  %-13s", way.name);
      print_ratios("processor", pairs, &Step::processor);
      print_ratios("wall", pairs, &Step::wall);
      std::printf("  fastest %.3f of %.0f ms\n", fastest / fastest_tenth(pairs, &Pair::hand), fastest);
      std::fflush(stdout);
    }
  }
}

// ---- Counts --------------------------------------------------------------------------------------------------------

struct Traffic {
  int64_t bytes, messages;
};
Traffic traffic_of(mh::Communicator& world, const std::function<void()>& work) {
  const mh::CommStats::Count before = world.stats().total();
  work();
  const mh::CommStats::Count after = world.stats().total();
  return {after.bytes - before.bytes, after.messages - before.messages};
}

// At most, on this thread, beside what was there before.
int64_t peak_of(const std::function<void()>& work) {
  const auto live = std::make_shared<mh::testing::LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  work();
  return live->peak;
}

// Returns what a plain module keeps of its samples, and needs on the way.
int64_t activation_bytes(int64_t width, const at::Tensor& x) {
  Trainee plain(width);
  for (const at::Tensor& p : plain.net->parameters()) p.mutable_grad() = at::zeros_like(p);
  return peak_of([&] { plain.pass(x); });
}

double most(mh::Communicator& world, double mine) {
  at::Tensor value = at::scalar_tensor(mine, at::kDouble);
  world.all_reduce(value, mh::ReduceOp::kMax);
  return value.item<double>();
}

void counts(mh::Communicator& world, int64_t width) {
  const mh::MeshPtr mesh = mh::init_device_mesh(world, "cpu", {world.size()}, {"dp"});
  const double others = world.size() - 1, share = others / world.size();
  const int64_t tokens = 256;
  for (const Way& way : ways()) {
    if (way.by_hand) continue;
    const at::Tensor x = samples(mesh, way, tokens, width);
    std::unique_ptr<Trainee> model;
    const int64_t peak = peak_of([&] {
      model = trainee(world, mesh, way, width);
      for (int i = 0; i < 2; ++i) model->step(x);
    });
    const Traffic one = traffic_of(world, [&] { model->step(x); }),
                  four = traffic_of(world, [&] { model->step(x, 4); });
    const double all = static_cast<double>(model->numel()) * sizeof(float), unit = all / kBlocks;
    const double passes = way.sharded && way.options.reshard_after_forward ? 3 : 2;
    const auto activations = static_cast<double>(activation_bytes(width, samples(mesh, {"", true}, tokens, width)));
    const double ideal = 4 * all / (way.sharded ? world.size() : 1) + 3 * unit + activations;
    const bool keeps = way.sharded && !way.options.reshard_after_forward;
    const double gathered = keeps ? all - 2 * unit : 0,
                 unsummed = keeps && !way.options.reshard_after_backward ? share * all - unit : 0;
    const double bytes = most(world, static_cast<double>(one.bytes) / (passes * share * all)),
                 worst = most(world, static_cast<double>(peak) / ideal),
                 own = most(world, static_cast<double>(peak) / (ideal + gathered + unsummed));
    if (world.rank() != 0) continue;
    std::printf("  %-13s own ideal: 4 N%s%s + activations\n", way.name, way.sharded ? " / P" : "",
                !keeps         ? " + 3 units"
                : unsummed > 0 ? " + N + (P - 1) / P N"
                               : " + N + 1 unit");
    std::printf(
        "  %-13s P = %d  bytes %.3f  messages %5.3f  4 micro-batches %.2f of one  peak %.2f, own %.2f (%.1f MB)\n",
        way.name, world.size(), bytes, static_cast<double>(one.messages) / (passes * others * (kBlocks + 1)),
        static_cast<double>(four.bytes) / static_cast<double>(one.bytes), worst, own, static_cast<double>(peak) / 1e6);
  }
}

// ---- States and norms ----------------------------------------------------------------------------------------------

double least_time(mh::Communicator& world, int rounds, const std::function<void()>& work) {
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < rounds; ++round) {
    world.barrier();
    const double begun = mh::bench::thread_time();
    work();
    least = std::min(least, mh::bench::thread_time() - begun);
  }
  return least;
}

void states(mh::Communicator& world, int64_t width) {
  const mh::MeshPtr mesh = mh::init_device_mesh(world, "cpu", {world.size()}, {"dp"});
  const Way way{"true, true"};
  const auto model = trainee(world, mesh, way, width);
  double mine = 0, chunked = 0, all = 0;
  for (const at::Tensor& p : model->net->parameters()) {
    const int64_t rows = p.size(0), block = (rows + world.size() - 1) / world.size();
    mine += static_cast<double>(mh::to_local(p.detach()).numel());
    all += static_cast<double>(p.numel());
    chunked += static_cast<double>(std::min(rows, block) * (p.numel() / rows));
  }
  at::Tensor total = at::scalar_tensor(mine, at::kDouble);
  world.all_reduce(total, mh::ReduceOp::kSum);
  const double worst = most(world, mine) * world.size() / total.item<double>();
  model->pass(samples(mesh, way, 64, width));
  model->sum();
  const std::vector<at::Tensor> parameters = model->net->parameters();
  const auto blocks = [&] {
    std::vector<at::Tensor> all_blocks;
    for (const at::Tensor& p : parameters) all_blocks.push_back(mh::to_local(p.grad()));
    return all_blocks;
  }();
  const Traffic clip = traffic_of(world, [&] { mh::grad_norm(parameters); });
  at::Tensor one = at::zeros({1});
  const Traffic reduce = traffic_of(world, [&] { world.all_reduce(one, mh::ReduceOp::kSum); });
  const auto norm_of_blocks = [&] {
    double sum = 0;
    for (const at::Tensor& norm : at::_foreach_norm(blocks)) sum += norm.item<double>() * norm.item<double>();
    one.fill_(sum);
  };
  const auto norm_and_reduce = [&] {
    norm_of_blocks();
    world.all_reduce(one, mh::ReduceOp::kSum);
  };
  const double local = most(world, least_time(world, kNorms, norm_of_blocks)),
               floor = most(world, least_time(world, kNorms, norm_and_reduce)),
               joint = most(world, least_time(world, kNorms, [&] { mh::grad_norm(parameters); }));
  if (world.rank() != 0) return;
  std::printf(
      "  P = %d  state %.4f (torch.chunk %.4f)  clip: messages %.2f, processor time %.2f of %.0f us, floor %.2f\n",
      world.size(), worst, chunked * world.size() / all,
      static_cast<double>(clip.messages) / static_cast<double>(reduce.messages), joint / local, local * 1e3,
      floor / local);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t width = argc > 2 ? std::atoll(argv[2]) : 512;
  if (rounds > 0) times(width, rounds, argc > 3 ? argv[3] : "");
  std::printf("counts, %lld tokens a rank, width %lld\n", 256LL, static_cast<long long>(width / 2));
  for (const int ranks : {2, 3, 4})
    mh::run_ranks(
        ranks, [&](mh::Communicator& world) { counts(world, width / 2); }, 1);
  std::printf("states and norms, width %lld\n", static_cast<long long>(width / 2 + 8));
  for (const int ranks : {2, 3, 5, 7})
    mh::run_ranks(
        ranks, [&](mh::Communicator& world) { states(world, width / 2 + 8); }, 1);
}
