// SPDX-License-Identifier: Apache-2.0
// Counts what one rank of 8 to 4,096 sends in a training step (forward, backward, SGD), by a communicator that counts
// and moves nothing. The rank computes its own block, so the work of a rank is the same in all rows:
//   U-Net          a field on a grid of ranks, each with a block of SIDE x SIDE; edges with up to 8 neighbours
//   transformer    tokens cut over groups of 8 ranks, whose keys and values go round a ring, copies over the rest
// Times are estimates: every call costs a latency, and every byte its share of the link's bandwidth. An exchange costs
// the latency once, a sum once for each of its messages.
//     within a host of 8     10 us, 300 GB/s
//     between hosts          20 us,  50 GB/s
//   latency    the part of the communication's time that smaller tensors would not shorten
// usage: bench_clusters [SIDE]            prints the table of docs/clusters.md
//        bench_clusters [SIDE] plans      processor time of the U-Net's first step, in which the plans are made
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "moonhalo/engine/moonhalo.h"
#include "tests/bench/models.h"

namespace {

namespace mh = moonhalo;
namespace nn = torch::nn;
using mh::CommStats;

constexpr int kHost = 8;
constexpr int64_t kTokens = 256, kWidth = 256, kHeads = 8;
constexpr int kBlocks = 4;

struct Link {
  double latency, bandwidth;
};
Link link_of(int ranks) { return ranks <= kHost ? Link{10e-6, 300e9} : Link{20e-6, 50e9}; }

CommStats operator-(const CommStats& after, const CommStats& before) {
  CommStats difference = after;
  for (size_t kind = 0; kind < difference.by_kind.size(); ++kind) {
    difference.by_kind[kind].calls -= before.by_kind[kind].calls;
    difference.by_kind[kind].messages -= before.by_kind[kind].messages;
    difference.by_kind[kind].bytes -= before.by_kind[kind].bytes;
  }
  return difference;
}

// This is the time of all threads of this process.
double cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

struct Steps {
  CommStats second;  // what is sent in the second step, when plans are made
  double first_ms = 0, second_ms = 0;
};

Steps two_steps(mh::Communicator& group, nn::Module& net, const std::function<at::Tensor()>& loss) {
  torch::optim::SGD optimizer(net.parameters(), 1e-3);
  const auto step = [&] {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  };
  const double begin = cpu_ms();
  step();
  const double middle = cpu_ms();
  const CommStats before = group.stats();
  step();
  return {group.stats() - before, middle - begin, cpu_ms() - middle};
}

// On a rank in the middle of the grid.
Steps u_net(int ranks, int64_t side) {
  int64_t rows = 1;
  while (rows * rows * 4 <= ranks) rows *= 2;
  const int64_t columns = ranks / rows;
  const auto world = mh::make_fake_communicator(static_cast<int>(rows / 2 * columns + columns / 2), ranks);
  const mh::MeshPtr mesh = mh::init_device_mesh(*world, "cpu", {rows, columns}, {"rows", "columns"});
  mh::bench::UNet net;
  mh::parallelize_module(net.ptr(), mesh, {}, {.src_data_rank = std::nullopt});
  const mh::SpecPtr spec =
      mh::make_spec(mesh, {1, mh::bench::kFieldChannels, rows * side, columns * side}, {mh::shard(2), mh::shard(3)});
  const at::Tensor x = mh::from_local(at::ones(spec->local_shape()), spec);
  return two_steps(mesh->group(), *net, [&] { return net->forward(x).square().mean(); });
}

struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv->forward(first->forward(x)).chunk(3, -1);
    const auto heads = [](const at::Tensor& t) { return t.unflatten(-1, {kHeads, kWidth / kHeads}).transpose(1, 2); };
    const at::Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
    const at::Tensor y = x + out->forward(mixed.transpose(1, 2).flatten(2));
    return y + down->forward(at::gelu(up->forward(second->forward(y))));
  }
  nn::LayerNorm first{nn::LayerNormOptions({kWidth})}, second{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
};
TORCH_MODULE(Block);

Steps transformer(int ranks, int ring) {
  const auto world = mh::make_fake_communicator(ranks / 2, ranks);
  const mh::MeshPtr mesh = mh::init_device_mesh(*world, "cpu", {ranks / ring, ring}, {"data", "tokens"});
  nn::Sequential net;
  for (int i = 0; i < kBlocks; ++i) net->push_back(Block());
  mh::parallelize_module(net.ptr(), mesh, {}, {.src_data_rank = std::nullopt});
  const mh::SpecPtr spec = mh::make_spec(mesh, {ranks / ring, ring * kTokens, kWidth}, {mh::shard(0), mh::shard(1)});
  const at::Tensor x = mh::from_local(at::ones(spec->local_shape()), spec);
  return two_steps(mesh->group(), *net, [&] { return net->forward(x).square().mean(); });
}

void print(const char* model, int ranks, const Steps& steps) {
  const CommStats& stats = steps.second;
  const auto& exchanges = stats.by_kind[CommStats::kExchange];
  CommStats::Count sums{};
  for (const auto kind : {CommStats::kAllReduce, CommStats::kAllGather, CommStats::kReduceScatter}) {
    sums.calls += stats.by_kind[kind].calls;
    sums.messages += stats.by_kind[kind].messages;
    sums.bytes += stats.by_kind[kind].bytes;
  }
  const Link link = link_of(ranks);
  const double latency = static_cast<double>(exchanges.calls + sums.messages) * link.latency;
  const double bytes = static_cast<double>(stats.total().bytes) / link.bandwidth;
  std::printf("| %s | %d | %ld | %ld | %.2f | %ld | %ld | %.2f | %.2f | %.0f %% |\n", model, ranks, exchanges.calls,
              exchanges.messages, static_cast<double>(exchanges.bytes) * 1e-6, sums.calls, sums.messages,
              static_cast<double>(sums.bytes) * 1e-6, (latency + bytes) * 1e3, 100 * latency / (latency + bytes));
  std::fflush(stdout);
}

void print_plans(int64_t side) {
  u_net(4, side);  // LibTorch's own first calls
  std::printf("| ranks | first step, ms | second step | difference |\n|---|---|---|---|\n");
  for (const int ranks : {4, 64, 512, 4096, 16384}) {
    const Steps steps = u_net(ranks, side);
    std::printf("| %d | %.0f | %.0f | %.0f |\n", ranks, steps.first_ms, steps.second_ms,
                steps.first_ms - steps.second_ms);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t side = argc > 1 ? std::atoll(argv[1]) : 256;
  if (argc > 2 && std::strcmp(argv[2], "plans") == 0) {
    print_plans(side);
    return 0;
  }
  std::printf(
      "| model | ranks | exchanges | messages | MB | sums | messages | MB | estimated ms | latency "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const int ranks : {8, 64, 512, 4096}) print("U-Net", ranks, u_net(ranks, side));
  for (const int ranks : {8, 64, 512, 4096}) print("transformer, ring of 8", ranks, transformer(ranks, kHost));
  print("transformer, ring of 64", 64, transformer(64, 64));
}
