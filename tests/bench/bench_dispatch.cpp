// SPDX-License-Identifier: Apache-2.0
// Host time of a sharded operator above the plain one, cached, on tensors so small that nothing else counts. One rank:
// what is measured is the dispatcher, not communication. Prints medians of interleaved rounds.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "engine/moonhalo.h"

namespace {

using Op = std::function<void(const std::vector<at::Tensor>&)>;

struct Row {
  std::string name;
  double target_ns;
  Op op;
  std::vector<at::Tensor> inputs;  // the first is sharded along dim 0, the others are replicated
  bool plain_weights = false;      // the others stay plain
};

double nanoseconds(const Op& op, const std::vector<at::Tensor>& inputs, int calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) op(inputs);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  namespace mh = moonhalo;
  mh::run_ranks(1, [](mh::Communicator& world) {
    const at::NoGradGuard no_grad;
    const auto mesh = mh::init_device_mesh(world, "cpu", {1});
    const std::vector<Row> rows = {
        {"add_", 500, [](const auto& t) { t[0].add_(t[1]); }, {at::zeros({4, 4}), at::zeros({4, 4})}},
        {"mul_", 500, [](const auto& t) { t[0].mul_(t[1]); }, {at::ones({4, 4}), at::ones({4, 4})}},
        {"add", 1000, [](const auto& t) { auto y = t[0] + t[1]; }, {at::zeros({4, 4}), at::zeros({4, 4})}},
        {"relu", 1000, [](const auto& t) { auto y = t[0].relu(); }, {at::zeros({4, 4})}},
        {"view", 1000, [](const auto& t) { auto y = t[0].view({4, 2, 2}); }, {at::zeros({4, 4})}},
        {"transpose", 1000, [](const auto& t) { auto y = t[0].transpose(0, 1); }, {at::zeros({4, 4})}},
        {"sum", 1000, [](const auto& t) { auto y = t[0].sum(); }, {at::zeros({4, 4})}},
        {"linear", 1000, [](const auto& t) { auto y = at::linear(t[0], t[1], t[2]); }, {at::zeros({4, 4}), at::zeros({4, 4}), at::zeros({4})}},
        {"linear, plain w", 1000, [](const auto& t) { auto y = at::linear(t[0], t[1], t[2]); }, {at::zeros({4, 4}), at::zeros({4, 4}), at::zeros({4})}, true},
        {"conv2d", 3000, [](const auto& t) { auto y = at::conv2d(t[0], t[1], t[2], 1, 1); }, {at::zeros({1, 1, 4, 4}), at::zeros({1, 1, 3, 3}), at::zeros({1})}},
    };
    std::printf("%-16s %10s %10s %10s %8s\n", "operator", "plain ns", "shard ns", "above ns", "target");
    for (const Row& row : rows) {
      std::vector<at::Tensor> sharded;
      for (const at::Tensor& input : row.inputs) {
        // Only the first is cut; images are cut along their rows.
        const int64_t dim = input.dim() == 4 ? 2 : 0;
        if (row.plain_weights && !sharded.empty()) {
          sharded.push_back(input);
          continue;
        }
        sharded.push_back(mh::distribute_tensor(input, mesh, {sharded.empty() ? mh::shard(dim) : mh::replicate()}));
      }
      constexpr int kCalls = 5000, kRounds = 15;
      nanoseconds(row.op, row.inputs, kCalls);
      nanoseconds(row.op, sharded, kCalls);
      std::vector<double> plain, shard, above;
      for (int round = 0; round < kRounds; ++round) {
        plain.push_back(nanoseconds(row.op, row.inputs, kCalls));
        shard.push_back(nanoseconds(row.op, sharded, kCalls));
        above.push_back(shard.back() - plain.back());
      }
      std::printf("%-16s %10.0f %10.0f %10.0f %8.0f\n", row.name.c_str(), median(plain), median(shard), median(above), row.target_ns);
    }
  }, 1);
}
