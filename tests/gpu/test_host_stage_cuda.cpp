// SPDX-License-Identifier: Apache-2.0
// Tensors of a GPU by way of page-locked memory of the host: what is copied is what was computed before, and nothing
// is computed from what has not arrived.
#include "moonhalo/engine/comm/device/host_stage.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/pollable.h"
#include "tests/gpu/gpu.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"
#include "tests/support/verbs.h"

namespace moonhalo::testing::test_host_stage_cuda {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Counts = std::vector<int64_t>;

// Calls `test` on the default stream and on another.
void on_both_streams(const std::function<void()>& test) {
  for (const bool beside : {false, true}) {
    SCOPED_TRACE(beside ? "another stream" : "the default stream");
    const c10::StreamGuard guard(beside ? another_gpu_stream() : current_gpu_stream());
    test();
  }
}

class HostStageCuda : public OnGpu<> {};

TEST_F(HostStageCuda, S16_TheHostGetsWhatWasComputedBefore) {
  on_both_streams([] {
    const HostStage stage(gpu());
    Tensor x = at::zeros({300, 7}, gpu()), y = at::zeros({5}, at::device(gpu()).dtype(at::kHalf));
    wait_for_gpu();
    keep_gpu_busy();
    x.fill_(3);
    y.fill_(4);
    const c10::Event ready = stage.mark();

    const std::vector<Tensor> places = stage.to_host({x, y, x.narrow(0, 0, 0)}, ready);
    x.fill_(8);  // after the copy, so it may

    ASSERT_EQ(places.size(), 3U);
    for (const Tensor& place : places) EXPECT_TRUE(place.is_cpu());
    EXPECT_TRUE(places[0].is_pinned());
    EXPECT_EQ(difference(places[0], at::full({300, 7}, 3.0), 0), "");
    EXPECT_EQ(difference(places[1], at::full({5}, 4.0, at::kHalf), 0), "");
    EXPECT_EQ(places[2].sizes(), (at::IntArrayRef{0, 7}));
  });
}

TEST_F(HostStageCuda, S16_WhatIsComputedLaterWaitsForWhatArrives) {
  on_both_streams([] {
    const HostStage stage(gpu());
    Tensor x = at::zeros({2000, 500}, gpu());
    const std::vector<Tensor> places = HostStage::places_for({x});
    EXPECT_TRUE(places[0].is_pinned());
    places[0].fill_(5);
    keep_gpu_busy();
    x.fill_(1);  // what arrives comes after it

    stage.to_device(places, {x}, stage.mark());

    EXPECT_EQ(difference(x + 1, at::full({2000, 500}, 6.0), 0), "");
  });
}

// One copy for tensors that are one behind the other, of several dtypes and out of order.
TEST_F(HostStageCuda, S16_TensorsOfOneMemory) {
  const HostStage stage(gpu());
  const Tensor values = at::arange(1000, at::kInt), memory = values.to(gpu()), other = (values * 3).to(gpu());
  const auto parts_of = [](const Tensor& t) {
    return std::vector<Tensor>{t.narrow(0, 10, 20).view({4, 5}), t.narrow(0, 30, 0), t.narrow(0, 30, 7),
                               t.narrow(0, 500, 9), t.narrow(0, 100, 3)};
  };
  std::vector<Tensor> parts = parts_of(memory), expected = parts_of(values);
  parts.push_back(other.narrow(0, 103, 4));
  expected.push_back(values.narrow(0, 103, 4) * 3);

  const std::vector<Tensor> places = stage.to_host(parts, stage.mark());
  ASSERT_EQ(places.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(difference(places[i], expected[i], 0), "") << i;

  for (const Tensor& place : places) place.neg_();
  stage.to_device(places, parts, stage.mark());
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(difference(parts[i], -expected[i], 0), "") << i;
}

// All verbs, as every backend passes them.
class StagedCuda : public OnGpu<::testing::TestWithParam<std::tuple<size_t, int>>> {};

TEST_P(StagedCuda, PassesTheCase) {
  const auto [index, ranks] = GetParam();
  on_ranks(ranks, [index = index](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), gpu());
    EXPECT_STREQ(group->backend(), "staged");
    verb_cases()[index].check(*group);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, StagedCuda, ::testing::Combine(::testing::Range(size_t{0}, verb_cases().size()), ::testing::Values(1, 2, 3)),
    [](const auto& info) {
      return std::string(verb_cases()[std::get<0>(info.param)].name) + "_on_" + std::to_string(std::get<1>(info.param));
    });

class StagedOrderCuda : public OnGpu<> {
 protected:
  // `test(group)` on 2 and 3 ranks, all on the default stream, then each on one of its own.
  static void on_staged_ranks(const std::function<void(Communicator&)>& test) {
    for (const int ranks : {2, 3}) {
      for (const bool beside : {false, true}) {
        on_ranks(ranks, [&](Communicator& world) {
          SCOPED_TRACE(beside ? "streams of their own" : "the default stream");
          const c10::StreamGuard guard(beside ? another_gpu_stream() : current_gpu_stream());
          test(*make_device_communicator(world.shared_from_this(), gpu()));
        });
      }
    }
  }
};

// The values are written behind a kernel that takes long, and read at once by another.
TEST_F(StagedOrderCuda, S16_ReductionsOfWhatWasJustComputed) {
  on_staged_ranks([](Communicator& group) {
    const int size = group.size();
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
      Tensor sum = at::zeros({4000}, at::device(gpu()).dtype(dtype)), most = at::zeros_like(sum);
      keep_gpu_busy();
      sum.fill_(group.rank() + 1);
      most.fill_(group.rank() + 1);
      group.all_reduce(sum);
      group.all_reduce(most, ReduceOp::kMax);
      EXPECT_EQ(difference(sum * 2, at::full({4000}, size * (size + 1), dtype), 0), "") << "sum of " << dtype;
      EXPECT_EQ(difference(most * 2, at::full({4000}, size * 2, dtype), 0), "") << "max of " << dtype;
    }
  });
}

TEST_F(StagedOrderCuda, S16_UnevenPartsOfWhatWasJustComputed) {
  on_staged_ranks([](Communicator& group) {
    const int size = group.size(), rank = group.rank();
    const Counts counts = size == 2 ? Counts{0, 5000} : Counts{3000, 0, 2000};
    std::vector<Tensor> parts;
    for (int r = 0; r < size; ++r) parts.push_back(at::full({counts[r]}, r + 1.0));
    const Tensor whole = at::cat(parts);
    Tensor mine = at::zeros({counts[rank]}, gpu()), all = at::zeros({5000}, gpu()), share = at::zeros_like(mine);
    keep_gpu_busy();
    mine.fill_(rank + 1);
    group.all_gather(mine, counts, all);
    mine.fill_(-1);
    EXPECT_EQ(difference(all + 1, whole + 1, 0), "") << "all_gather";
    keep_gpu_busy();
    all.mul_(2);
    group.reduce_scatter(all, counts, share);
    all.fill_(-1);
    EXPECT_EQ(difference(share + 1, parts[rank] * (2 * size) + 1, 0), "") << "reduce_scatter";
    Tensor rooted = at::zeros({3000}, gpu());
    keep_gpu_busy();
    rooted.fill_(rank);
    group.broadcast(rooted, size - 1);
    EXPECT_EQ(difference(rooted + 1, at::full({3000}, 1.0 * size), 0), "") << "broadcast";
  });
}

// To both neighbours of a line, uneven, the last rank with an empty message; buffers are dropped and used again.
TEST_F(StagedOrderCuda, S16_ExchangesOfWhatWasJustComputed) {
  on_staged_ranks([](Communicator& group) {
    const int size = group.size(), rank = group.rank();
    const auto elements = [&](int from, int to) { return from == size - 1 && to < from ? 0 : 1000 + 700 * from + to; };
    std::vector<Message> sends, receives;
    keep_gpu_busy();
    for (const int peer : {rank - 1, rank + 1}) {
      if (peer < 0 || peer >= size) continue;
      sends.push_back({peer, at::full({elements(rank, peer)}, 10.0 + rank, gpu())});
      receives.push_back({peer, at::zeros({elements(peer, rank)}, gpu())});
    }
    const WorkPtr work = group.exchange_async(sends, receives);
    for (const Message& message : sends) message.data.fill_(-1);
    sends.clear();
    for (int i = 0; i < 4; ++i) at::full({2000}, -2.0, gpu());
    work->wait();
    EXPECT_TRUE(is_ready(*work));
    for (const Message& message : receives) {
      EXPECT_EQ(difference(message.data + 1, at::full({elements(message.peer, rank)}, 11.0 + message.peer), 0), "")
          << "from rank " << message.peer;
    }
    group.exchange({}, {});
  });
}

// A rank may have its part of a message on the host.
TEST_F(StagedOrderCuda, S16_OneEndOfAMessageMayLieOnTheHost) {
  on_staged_ranks([](Communicator& group) {
    const int next = (group.rank() + 1) % group.size(), last = (group.rank() + group.size() - 1) % group.size();
    Tensor got = at::zeros({4000}, group.rank() == 0 ? c10::Device(at::kCPU) : gpu());
    Tensor mine = at::zeros({4000}, gpu());
    keep_gpu_busy();
    mine.fill_(1 + group.rank());
    group.exchange({{next, mine}}, {{last, got}});
    EXPECT_EQ(difference(got + 1, at::full({4000}, 2.0 + last), 0), "");
  });
}

TEST_F(StagedOrderCuda, X16_ARankThatFailsEndsThoseThatWait) {
  std::atomic<int> told{0};
  const std::string first = message_of([&] {
    on_ranks(3, [&](Communicator& world) {
      const auto group = make_device_communicator(world.shared_from_this(), gpu());
      if (world.rank() == 2) TORCH_CHECK_VALUE(false, "the valve is stuck");
      Tensor data = at::ones({20000}, gpu());
      const std::string text = message_of([&] { group->all_reduce(data); });
      told += text.find("the valve is stuck") != std::string::npos;
      EXPECT_EQ(difference(data, at::ones({20000}), 0), "");
    });
  });
  EXPECT_EQ(first, "rank 2: the valve is stuck");
  EXPECT_EQ(told, 2);
}

TEST_F(StagedOrderCuda, S16_TensorsOfAnotherDeviceAreRefused) {
  on_ranks(2, [](Communicator& world) {
    const auto group = make_device_communicator(world.shared_from_this(), gpu());
    Tensor meta = at::empty({3}, at::kMeta);
    EXPECT_THAT(message_of([&] { group->all_reduce(meta); }), AllOf(HasSubstr("meta"), HasSubstr("\n  fix   ")));
    world.barrier();
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_host_stage_cuda
