// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/check_connectivity.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <functional>

namespace moonhalo {
namespace {

constexpr int64_t kSizes[] = {8, 4096, 65536, 1 << 20, 16 << 20};
constexpr int kRepeats = 9, kRepeatsOfLarge = 3;

void finish(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double median_of(int repeats, c10::Device device, Communicator& group, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    group.barrier();
    const auto begin = Clock::now();
    work();
    finish(device);
    if (i > 0) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

// Integers, so that sums of them are the same in every order.
at::Tensor sent_by(int rank, int64_t numel, c10::Device device) {
  return at::arange(numel, at::device(device).dtype(at::kFloat)).remainder_(64).add_(rank);
}

}  // namespace

std::vector<MessageTimes> check_connectivity(Communicator& group, c10::Device device) {
  const int ranks = group.size(), next = (group.rank() + 1) % ranks, before = (group.rank() + ranks - 1) % ranks;
  std::vector<MessageTimes> all;
  double wrong = 0;
  for (const int64_t bytes : kSizes) {
    const int64_t numel = bytes / static_cast<int64_t>(sizeof(float));
    const int repeats = bytes > 1 << 20 ? kRepeatsOfLarge : kRepeats;
    const at::Tensor mine = sent_by(group.rank(), numel, device);
    at::Tensor got = at::zeros_like(mine), sum = mine.clone();
    MessageTimes times{bytes};
    times.ring = median_of(repeats, device, group, [&] {
      got.zero_();
      if (ranks > 1) group.exchange({{next, mine}}, {{before, got}});
    });
    if (ranks > 1) wrong += got.sub(sent_by(before, numel, device)).count_nonzero().item<int64_t>();
    times.all_reduce = median_of(repeats, device, group, [&] {
      sum.copy_(mine);
      group.all_reduce(sum);
    });
    const at::Tensor required = sent_by(0, numel, device).mul_(ranks).add_(ranks * (ranks - 1) / 2);
    wrong += sum.sub(required).count_nonzero().item<int64_t>();
    all.push_back(times);
  }
  at::Tensor slowest = at::empty({static_cast<int64_t>(all.size()) * 2 + 1}, at::kDouble);
  double* const number = slowest.mutable_data_ptr<double>();
  for (size_t i = 0; i < all.size(); ++i) {
    number[2 * i] = all[i].ring;
    number[2 * i + 1] = all[i].all_reduce;
  }
  number[2 * all.size()] = wrong;
  group.all_reduce(slowest, ReduceOp::kMax);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].ring = number[2 * i];
    all[i].all_reduce = number[2 * i + 1];
  }
  if (number[2 * all.size()] > 0) {
    throw CommError("messages arrive changed\n  have  " + std::to_string(static_cast<int64_t>(number[2 * all.size()])) +
                    " wrong numbers on one rank, backend " + group.backend() +
                    "\n  fix   try another --backend; look at the network, its driver and the MPI library");
  }
  return all;
}

}  // namespace moonhalo
