// SPDX-License-Identifier: Apache-2.0
// NCCL as it is, as far as one GPU goes: its table of functions, communicators that do not block, the order of streams,
// and ends. It takes one rank per GPU, so all groups here are of one rank.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/comm/device/nccl_api.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "tests/gpu/gpu.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_nccl_cuda {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// The verbs behind the public ones, which are the identity in a group of one rank and ask no backend.
struct Inside : Communicator {
  using Communicator::do_all_gather;
  using Communicator::do_all_reduce;
  using Communicator::do_all_to_all;
  using Communicator::do_barrier;
  using Communicator::do_broadcast;
  using Communicator::do_exchange;
  using Communicator::do_reduce_scatter;
};
void all_reduce(Communicator& group, Tensor& data, ReduceOp op = ReduceOp::kSum) {
  (group.*&Inside::do_all_reduce)(data, op);
}
WorkPtr exchange(Communicator& group, std::vector<Message> sends, std::vector<Message> receives) {
  return (group.*&Inside::do_exchange)(std::move(sends), std::move(receives));
}

class OneRankNcclCuda : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (!IsSkipped()) ASSERT_NE(find_nccl().api, nullptr) << find_nccl().text;
  }
  // `body(group)` with a group of one rank whose messages go by NCCL. A hang ends it.
  static void on_nccl(const std::function<void(Communicator&)>& body) {
    on_ranks(
        1,
        [&](Communicator& world) {
          world.set_timeout(seconds(15));
          const CommunicatorPtr group = make_device_communicator(world.shared_from_this(), gpu(), DeviceLink::kNccl);
          EXPECT_STREQ(group->backend(), "nccl");
          body(*group);
        },
        seconds(30));
  }
};

TEST_F(OneRankNcclCuda, S16_TheTableIsThatOfTheLibrary) {
  const NcclFound& found = find_nccl();
  std::printf("%s\n", found.text.c_str());
  EXPECT_STREQ(found.api->get_error_string(NcclApi::kSuccess), "no error");
  NcclApi::UniqueId one{}, other{};
  EXPECT_EQ(found.api->get_unique_id(&one), NcclApi::kSuccess);
  EXPECT_EQ(found.api->get_unique_id(&other), NcclApi::kSuccess);
  EXPECT_NE(std::string(one.bytes, sizeof(one.bytes)), std::string(other.bytes, sizeof(other.bytes)));
}

TEST_F(OneRankNcclCuda, S16_ReductionsOfEveryType) {
  on_nccl([](Communicator& group) {
    const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,        at::kChar,
                                    at::kInt,   at::kLong,   at::kBool, at::kShort,    at::kComplexFloat};
    for (const bool ordered : {false, true}) {
      set_ordered_reductions(ordered);
      for (const at::ScalarType type : types) {
        const Tensor values = make_tensor({1001}, 1, type);
        const auto expect_kept = [&](ReduceOp op) {
          Tensor data = values.to(gpu()), share = at::zeros_like(data);
          all_reduce(group, data, op);
          EXPECT_EQ(difference(data, values, 0), "") << "all_reduce " << name(op) << " of " << type;
          (group.*&Inside::do_reduce_scatter)(data, {1001}, share, op);
          EXPECT_EQ(difference(share, values, 0), "") << "reduce_scatter " << name(op) << " of " << type;
        };
        expect_kept(ReduceOp::kSum);
        if (at::isFloatingType(type)) expect_kept(ReduceOp::kAvg);
        if (!at::isComplexType(type)) expect_kept(ReduceOp::kMax);
        expect_kept(ReduceOp::kProduct);
      }
    }
    set_ordered_reductions(false);
    Tensor none = at::zeros({0}, gpu()), of_host = at::ones({3});
    all_reduce(group, none);
    all_reduce(group, of_host);
    EXPECT_EQ(difference(of_host, at::ones({3}), 0), "");
  });
}

TEST_F(OneRankNcclCuda, S16_GatherScatterBroadcastAndTurn) {
  on_nccl([](Communicator& group) {
    for (const at::ScalarType type : {at::kFloat, at::kBool, at::kComplexDouble, at::kBFloat16}) {
      const Tensor values = make_tensor({777}, 2, type);
      Tensor in = values.to(gpu()), gathered = at::zeros_like(in), turned = at::zeros_like(in);
      Tensor on_host = at::zeros({777}, type);
      (group.*&Inside::do_all_gather)(in, {777}, gathered);
      (group.*&Inside::do_all_gather)(in, {777}, on_host);
      (group.*&Inside::do_all_to_all)(in, {777}, turned, {777}, 777);
      (group.*&Inside::do_broadcast)(in, 0);
      EXPECT_EQ(difference(gathered, values, 0), "") << "all_gather of " << type;
      EXPECT_EQ(difference(on_host, values, 0), "") << "all_gather to the host of " << type;
      EXPECT_EQ(difference(turned, values, 0), "") << "all_to_all of " << type;
      EXPECT_EQ(difference(in, values, 0), "") << "broadcast of " << type;
    }
    (group.*&Inside::do_barrier)();
  });
}

// The rank is its own neighbour: several messages, an empty one, one from the host and one to it.
TEST_F(OneRankNcclCuda, S16_ExchangesWithItself) {
  on_nccl([](Communicator& group) {
    for (int round = 0; round < 3; ++round) {
      std::vector<Message> sends, receives;
      std::vector<Tensor> expected;
      for (const int64_t n : {1, 0, 30000, 7, 2000000}) {
        expected.push_back(at::arange(n, at::kFloat) + static_cast<double>(n + round));
        sends.push_back({0, expected.back().to(gpu())});
        receives.push_back({0, at::zeros({n}, gpu())});
      }
      expected.push_back(make_tensor({50}, 3, at::kHalf));
      sends.push_back({0, expected.back()});
      receives.push_back({0, at::zeros({50}, at::device(gpu()).dtype(at::kHalf))});
      expected.push_back(make_tensor({60}, 4));
      sends.push_back({0, expected.back().to(gpu())});
      receives.push_back({0, at::zeros({60}, at::kDouble)});
      exchange(group, sends, receives)->wait();
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(difference(receives[i].data, expected[i], 0), "") << i;
    }
    exchange(group, {}, {})->wait();
  });
}

// Sent is what was computed before, what is computed later sees what has arrived, on any stream, and buffers may be
// dropped while messages are sent.
TEST_F(OneRankNcclCuda, S16_StreamsAreInOrder) {
  on_nccl([](Communicator& group) {
    for (const bool beside : {false, true}) {
      const c10::StreamGuard guard(beside ? another_gpu_stream() : current_gpu_stream());
      Tensor got = at::zeros({30000}, gpu());
      {
        Tensor mine = at::zeros({30000}, gpu());
        keep_gpu_busy();
        mine.fill_(3);
        const WorkPtr work = exchange(group, {{0, mine}}, {{0, got}});
        mine = Tensor();
        for (int i = 0; i < 4; ++i) at::full({30000}, -1.0, gpu());  // may be given the memory of what is sent
        work->wait();
        EXPECT_TRUE(is_ready(*work));
      }
      EXPECT_EQ(difference(got + 1, at::full({30000}, 4.0), 0), "")
          << (beside ? "another stream" : "the default stream");
      Tensor all = at::zeros({30000}, gpu());
      keep_gpu_busy();
      got.fill_(7);
      (group.*&Inside::do_all_gather)(got, {30000}, all);
      got.fill_(-1);
      EXPECT_EQ(difference(all * 2, at::full({30000}, 14.0), 0), "")
          << (beside ? "another stream" : "the default stream");
    }
  });
}

TEST_F(OneRankNcclCuda, S16_TheHostDoesNotWait) {
  on_nccl([](Communicator& group) {
    Tensor mine = at::ones({3000}, gpu()), got = at::zeros({3000}, gpu());
    exchange(group, {{0, mine}}, {{0, got}})->wait();  // makes the communicator
    wait_for_gpu();
    for (int i = 0; i < 20; ++i) keep_gpu_busy();  // a second
    c10::Event busy(gpu().type());
    busy.record(current_gpu_stream());
    const WorkPtr work = exchange(group, {{0, mine}}, {{0, got}});
    EXPECT_FALSE(busy.query()) << "the host has waited for the GPU, or takes a second to post one message";
    EXPECT_FALSE(is_ready(*work));
    work->wait();
    EXPECT_EQ(difference(got, at::ones({3000}), 0), "");
  });
}

// The time that the GPU computes before its messages does not count.
TEST_F(OneRankNcclCuda, X16_TimeLimitsCountFromWhereMessagesBegin) {
  on_nccl([](Communicator& group) {
    Tensor mine = at::ones({3000}, gpu()), got = at::zeros({3000}, gpu());
    exchange(group, {{0, mine}}, {{0, got}})->wait();
    group.set_timeout(milliseconds(500));
    for (int i = 0; i < 30; ++i) keep_gpu_busy();
    exchange(group, {{0, mine}}, {{0, got}})->wait();
    EXPECT_EQ(difference(got, at::ones({3000}), 0), "");
    check_arrived(group);
  });
}

TEST_F(OneRankNcclCuda, S16_GroupsOfOneWorldAndAnEndOfEach) {
  for (int round = 0; round < 2; ++round) {
    on_nccl([](Communicator& group) {
      const CommunicatorPtr part = group.split(0, 0), unused = group.split(1, 0);
      EXPECT_STREQ(part->backend(), "nccl");
      Tensor got = at::zeros({500}, gpu());
      for (int i = 0; i < 5; ++i) {
        Tensor a = at::full({500}, 1.0 + i, gpu()), b = at::full({500}, 10.0 * i, gpu());
        exchange(group, {{0, a}}, {{0, got}})->wait();
        EXPECT_EQ(difference(got, a.cpu(), 0), "");
        exchange(*part, {{0, b}}, {{0, got}})->wait();
        EXPECT_EQ(difference(got, b.cpu(), 0), "");
      }
      keep_gpu_busy();
      all_reduce(*part, got);  // under way when the rank ends
    });
  }
}

TEST_F(OneRankNcclCuda, X16_AfterAnAbortVerbsSayWhyAndANewWorldWorks) {
  std::string text, arrived;
  on_nccl([&](Communicator& group) {
    Tensor data = at::ones({2000}, gpu());
    all_reduce(group, data);
    keep_gpu_busy();
    exchange(group, {{0, data}}, {{0, at::zeros({2000}, gpu())}})->wait();
    group.abort("the valve is stuck");
    text = message_of([&] { all_reduce(group, data); });
    arrived = message_of([&] { check_arrived(group); });
    EXPECT_EQ(difference(data, at::ones({2000}), 0), "");
  });
  EXPECT_THAT(text, HasSubstr("the valve is stuck"));
  EXPECT_THAT(arrived, HasSubstr("the valve is stuck"));
  on_nccl([](Communicator& group) {
    Tensor data = at::ones({2000}, gpu());
    all_reduce(group, data);
    EXPECT_EQ(difference(data, at::ones({2000}), 0), "");
  });
}

// NCCL takes no two ranks on one GPU: an error on both, and no hang.
TEST_F(OneRankNcclCuda, A5_TwoRanksOnOneGpuAreAnErrorOnBoth) {
  std::vector<std::string> texts(2);
  on_ranks(2, [&](Communicator& world) {
    world.set_timeout(seconds(15));
    const auto group = make_device_communicator(world.shared_from_this(), gpu(), DeviceLink::kNccl);
    Tensor one = at::ones({3}, gpu());
    texts[world.rank()] = message_of([&] { group->all_reduce(one); });
  });
  std::printf("%s\n", texts[0].c_str());
  EXPECT_THAT(texts, Each(AllOf(HasSubstr("the communicator of 2 ranks could not be made"), HasSubstr("NCCL reports: "),
                                HasSubstr("--backend staged"))));
}

TEST_F(OneRankNcclCuda, A5_MeshesOfOneGpuAreStagedOrRefused) {
  for (const char* const expected : {"", "nccl", "staged"}) {
    std::vector<std::string> texts(2);
    on_ranks(2, [&](Communicator& world) {
      set_device_link(expected);
      std::string& text = texts[world.rank()];
      const std::string error =
          message_of([&] { text = describe_transport(init_device_mesh(world, gpu().str(), {2})->group()); });
      text += error;
      set_device_link("");
    });
    EXPECT_THAT(texts, Each(HasSubstr(expected == std::string("staged") ? "staged: it was asked for"
                                                                        : "ranks 0 and 1 share a device")));
  }
}

// The rank waits for a message of its own that it does not send.
TEST_F(OneRankNcclCuda, X16_ACallThatNcclRefusesIsItsError) {
  std::string text;
  on_nccl([&](Communicator& group) {
    Tensor data = at::ones({2000}, gpu());
    all_reduce(group, data);
    group.set_timeout(seconds(5));
    text = message_of([&] {
      exchange(group, {}, {{0, data}})->wait();
      wait_for_gpu();
      check_arrived(group);
    });
  });
  std::printf("%s\n", text.c_str());
  EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("NCCL reports: "), HasSubstr("timed out after 5 s")));
}

}  // namespace
}  // namespace moonhalo::testing::test_nccl_cuda
