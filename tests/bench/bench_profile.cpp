// SPDX-License-Identifier: Apache-2.0
// The price of a profile while it records, and of its hooks while nothing records.
//   bench_profile            instructions of an event, for one call of add, on plain tensors and on a mesh of one rank:
//                            all that are added, and those of Moonhalo's library among them; time of an event; then
//                            training steps of a small U-Net on two thread ranks with a profile and without, in turns:
//                            the median of the ratios of processor time, and the quartiles. Required: an event below
//                            1.0 us where the machine is quiet, a step of the U-Net below 1.05.
//   bench_profile --check    the instructions of Moonhalo's library alone, against kMost...: the same at any load. For
//                            CTest.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/scripting/embed/moonhalo_c.h"
#include "tests/bench/instructions.h"
#include "tests/bench/models.h"
#include "tests/bench/taking_turns.h"

namespace {

namespace mh = moonhalo;
using Work = std::function<void()>;

// Limits of --check: what was counted, and a quarter for other compilers.
constexpr int64_t kMostOfEvent = 400, kMostOfRange = 410, kMostOff = 50;

// The fewest of several: a list that grows, or a page that is new, is not the price of an event.
mh::bench::Instructions fewest_of(const Work& work) {
  for (int i = 0; i < 20; ++i) work();
  mh::bench::Instructions fewest{INT64_MAX, INT64_MAX};
  for (int i = 0; i < 5; ++i) {
    const auto counted = mh::bench::instructions_of(work);
    fewest.all = std::min(fewest.all, counted.all);
    fewest.own = std::min(fewest.own, counted.own);
  }
  return fewest;
}

struct Price {
  double all = 0, own = 0, events = 0;  // of a call
};

Price price_of(const Work& work) {
  const auto off = fewest_of(work);
  mh::Recorder recorder(1);
  const auto on = fewest_of(work);
  const auto events = static_cast<double>(recorder.stop().events.size() - 1) / 25;
  return {static_cast<double>(on.all - off.all) / events, static_cast<double>(on.own - off.own) / events, events};
}

struct Named {
  const char* name;
  Price price;
};

std::vector<Named> prices(mh::Communicator& world) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({4, 4}), image = at::ones({1, 1, 4, 4}), kernel = at::ones({1, 1, 3, 3});
  const auto mesh = mh::init_device_mesh(world, "cpu", {1});
  const at::Tensor field = mh::distribute_tensor(x, mesh, {mh::shard(0)});
  return {{"add, plain", price_of([&] { at::add(x, x); })},
          {"mm, plain, with MACs", price_of([&] { at::mm(x, x); })},
          {"conv2d, plain, with MACs", price_of([&] { at::conv2d(image, kernel); })},
          {"add, mesh of one rank", price_of([&] { at::add(field, field); })},
          {"a range", price_of([] { const mh::RecordRange range("range"); })},
          {"a module", price_of([] { const mh::InModule module("blocks.0.fc"); })}};
}

// Begin and end of a range of C and of C++ while nothing records.
int64_t instructions_when_off() {
  const Work ranges = [] {
    mh_range_begin("sweep");
    mh_range_end();
    const mh::RecordRange range("sweep");
  };
  return fewest_of(ranges).own - fewest_of([] {}).own;
}

int print_instructions(mh::Communicator& world, bool check) {
  mh::bench::own_code(reinterpret_cast<const void*>(&mh::watch_steps));
  int over = 0;
  std::printf("%-26s %8s %14s %8s\n", "an event of", "events", "instructions", "own");
  for (const Named& one : prices(world)) {
    const bool is_range = std::strncmp(one.name, "a ", 2) == 0;
    const bool too_dear = one.price.own > static_cast<double>(is_range ? kMostOfRange : kMostOfEvent);
    over += too_dear ? 1 : 0;
    std::printf("%-26s %8.1f %14.0f %8.0f%s\n", one.name, one.price.events, one.price.all, one.price.own,
                too_dear ? "  *" : "");
  }
  const int64_t off = instructions_when_off();
  over += off > kMostOff ? 1 : 0;
  std::printf("%-26s %8s %14s %8ld%s\n", "ranges, nothing records", "-", "-", off, off > kMostOff ? "  *" : "");
  if (over > 0 && check)
    std::printf("bench_profile: %d rows (*) cost more than in tests/bench/bench_profile.cpp\n", over);
  return check ? over : 0;
}

void print_time_of_event() {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({4, 4});
  constexpr int kCalls = 2000, kRounds = 61;
  const auto time = [&] {
    const double begin = mh::bench::thread_time();
    for (int i = 0; i < kCalls; ++i) at::add(x, x);
    return 1e3 * (mh::bench::thread_time() - begin) / kCalls;
  };
  std::vector<double> above;
  for (int round = 0; round < kRounds; ++round) {
    const double off = time();
    std::optional<mh::Recorder> recorder(std::in_place, 1);
    const double on = time();
    recorder.reset();
    above.push_back(on - off);
  }
  std::printf("time of an event           %.2f us (quartiles %.2f, %.2f)\n", mh::bench::median(above),
              mh::bench::quartile(above, 1), mh::bench::quartile(above, 3));
}

// Both ranks step together; rank 0 takes the times.
void print_unet(mh::Communicator& world, int64_t side) {
  constexpr int kPairs = 16, kBatch = 2, kSteps = 3;  // as many as a profile records
  const auto mesh = mh::init_device_mesh(world, "cpu", {world.size()});
  mh::bench::UNet net;
  mh::bench::same_weights(*net);
  torch::optim::SGD optimizer(net->parameters(), 1e-3);
  const at::Tensor whole = (at::arange(kBatch * mh::bench::kFieldChannels * side * side, at::kFloat) * 0.7).sin();
  const at::Tensor x =
      mh::distribute_tensor(whole.view({kBatch, mh::bench::kFieldChannels, side, side}), mesh, {mh::shard(2)});
  const auto step = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = net->forward(x).square().mean();
    {
      const mh::BackwardOnThisThread here;
      loss.backward();
    }
    optimizer.step();
  };
  const auto time = [&] {
    world.barrier();
    const double begin = mh::bench::processor_time();
    for (int i = 0; i < kSteps; ++i) step();
    world.barrier();
    return mh::bench::processor_time() - begin;
  };
  for (int i = 0; i < 60; ++i) step();  // until plain tensors are compared rarely
  std::vector<double> ratios, off_ms;
  double events = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    const bool first = pair % 2 == 0;
    double on = 0;
    const double before = first ? time() : 0;
    {
      mh::Recorder recorder(1);
      on = time();
      events = static_cast<double>(recorder.stop().events.size()) / kSteps;
    }
    off_ms.push_back(first ? before : time());
    ratios.push_back(on / off_ms.back());
  }
  if (world.rank() != 0) return;
  const double ms = mh::bench::median(off_ms) / kSteps;
  std::printf(
      "U-Net %3ld x %-3ld 2 ranks     %.1f ms, %.0f events a rank: with a profile x %.3f (quartiles %.3f, %.3f)\n",
      side, side, ms, events, mh::bench::median(ratios), mh::bench::quartile(ratios, 1),
      mh::bench::quartile(ratios, 3));
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::strcmp(argv[1], "--check") == 0;
  at::set_num_threads(1);
  int over = 0;
  if (mh::bench::kCountsInstructions)
    mh::run_ranks(
        1, [&](mh::Communicator& world) { over = print_instructions(world, check); }, 1);
  if (check) return over > 0 ? 1 : 0;
  print_time_of_event();
  for (const int64_t side : {64, 128, 256})
    mh::run_ranks(
        2, [&](mh::Communicator& world) { print_unet(world, side); }, 1);
  return 0;
}
