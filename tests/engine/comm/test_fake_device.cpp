// SPDX-License-Identifier: Apache-2.0
// The simulated accelerator finds what it is for: each mistake that is planted here gives wrong numbers or ends the
// program, and the same program without it is right.
#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <mutex>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/oracle.h"

namespace moonhalo::test_fake_device {
namespace {

using testing::difference;
using testing::make_tensor;
using testing::message_of;
using testing::shard_of;
namespace fake = testing::fake;

// Streams are so late here that nothing runs before it is waited for.
class FakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::install();
    before_ = fake::set_lateness(std::chrono::seconds(20));
  }
  void TearDown() override {
    fake::lose({});
    fake::set_lateness(before_);
    fake::finish_all_devices();  // what programs without waits left behind writes into memory that others are given
                                 // next
  }

 private:
  std::chrono::microseconds before_{};
};

at::Tensor on_fake(const at::Tensor& tensor, int device = 0) { return tensor.to(fake::device(device)); }

TEST_F(FakeDevice, ComputesAsTheCpu) {
  const at::Tensor x = make_tensor({3, 4, 5}, 1), w = make_tensor({2, 4, 3}, 2);
  const auto program = [&](const at::Tensor& a, const at::Tensor& b) {
    at::Tensor y = at::conv1d(a, b, {}, 1, 1).relu().sum({2}) + 1;
    y.select(1, 0).mul_(3);
    return y;
  };

  EXPECT_EQ(difference(program(on_fake(x, 3), on_fake(w, 3)), program(x, w), 1e-12), "");
  EXPECT_EQ(on_fake(x).sum().item<double>(), x.sum().item<double>());
  const at::Tensor z = at::complex(x, x + 1);
  EXPECT_EQ(difference(on_fake(z).conj() * 2, z.conj() * 2, 1e-12), "");
  EXPECT_EQ(difference(at::view_as_real(on_fake(z)).select(-1, 1) * 2, (x + 1) * 2, 1e-12), "");
}

TEST_F(FakeDevice, RefusesTensorsOfTheHost) {
  const at::Tensor x = make_tensor({3, 4}, 1);
  const char* const same_device = "Expected all tensors to be on the same device";

  EXPECT_THAT(message_of([&] { on_fake(x) + x; }), ::testing::HasSubstr(same_device));
  EXPECT_THAT(message_of([&] {
                on_fake(x).gather(1, at::zeros({3, 1}, at::kLong));
              }),
              ::testing::HasSubstr(same_device));
  EXPECT_EQ(difference(on_fake(x) + at::scalar_tensor(2.0, at::kDouble), x + 2, 0), "");
}

TEST_F(FakeDevice, EndsAProgramThatReadsItsMemoryOnTheHost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor x = on_fake(make_tensor({3}, 1));

  EXPECT_DEATH(std::printf("%g", *x.const_data_ptr<double>()), "");
}

TEST_F(FakeDevice, CountsLaunchesHostWaitsAndEvents) {
  const at::Tensor x = on_fake(make_tensor({3, 4}, 1));
  const fake::Counts before = fake::counts();

  const at::Tensor y = x.exp();
  c10::Event event(c10::kPrivateUse1);
  event.record(fake::current_stream(0));
  y.select(0, 0).select(0, 0).item();

  EXPECT_EQ(fake::counts().launches - before.launches, 1);
  EXPECT_EQ(fake::counts().host_waits - before.host_waits, 1);
  EXPECT_EQ(fake::counts().events - before.events, 1);
}

// Plain tensors ask a device for what LibTorch alone asks for, also while blocks are about.
TEST_F(FakeDevice, S08_PlainTensorsAskForNothingMoreBesideAMesh) {
  const at::Tensor x = make_tensor({2, 3, 9, 9}, 1), w = make_tensor({4, 3, 3, 3}, 2);
  const auto cost = [&](int device) {
    const at::Tensor a = on_fake(x, device), b = on_fake(w, device);
    const fake::Counts before = fake::counts();
    const at::Tensor y = at::conv2d(a, b, {}, 1, 1).softmax(1).transpose(2, 3).contiguous();
    const double sum = at::cat({y, y}, 2).sum().item<double>();
    const fake::Counts after = fake::counts();
    EXPECT_NEAR(sum, 2 * 2 * 9 * 9, 1e-9);
    return std::vector<int64_t>{after.launches - before.launches, after.host_waits - before.host_waits,
                                after.events - before.events};
  };
  const std::vector<int64_t> alone = cost(0);
  std::vector<int64_t> beside;

  run_ranks(2, [&](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {2});
    const at::Tensor blocks = shard_of(x, mesh, {shard(2, {4, 5})});
    world.barrier();
    if (world.rank() == 0) beside = cost(0);
    world.barrier();
  });

  EXPECT_EQ(beside, alone);
}

// y = factor x on one stream, a copy of y on another; what the host gets of it. Another factor in every call, since
// memory may hold what the last one left there.
struct Steps {
  double factor;
  bool waits_for_compute = true;
  bool keeps_buffer = true;
  bool waited_for = true;
};
at::Tensor copied_beside(const at::Tensor& x, const Steps& steps) {
  const c10::Stream beside = fake::stream_of_pool(0);
  at::Tensor copy = at::empty_like(x);
  at::Tensor y = x * steps.factor;
  c10::Event computed(c10::kPrivateUse1), copied(c10::kPrivateUse1);
  computed.record(fake::current_stream(0));
  if (steps.waits_for_compute) computed.block(beside);
  {
    const c10::StreamGuard guard(beside);
    copy.copy_(y);
    copied.record(beside);
  }
  if (!steps.waits_for_compute) copied.synchronize();
  if (!steps.keeps_buffer) {
    y.reset();
    fake::finish(fake::current_stream(0));
  }
  if (steps.waited_for) copied.block(fake::current_stream(0));
  return copy.cpu();
}

TEST_F(FakeDevice, FindsMissingEventsAndBuffersThatWereDropped) {
  const at::Tensor x = make_tensor({40}, 1), there = on_fake(x);

  EXPECT_EQ(difference(copied_beside(there, {.factor = 2}), 2 * x, 0), "");
  EXPECT_NE(difference(copied_beside(there, {.factor = 3, .waits_for_compute = false}), 3 * x, 0), "");
  EXPECT_NE(difference(copied_beside(there, {.factor = 4, .keeps_buffer = false}), 4 * x, 0), "");
  EXPECT_NE(difference(copied_beside(there, {.factor = 5, .waited_for = false}), 5 * x, 0), "");
}

using Program = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)>;

// A program of a field that is cut in three uneven blocks, its gradients and what comes of them; "" if all are those of
// one device. The plain program runs on the host.
std::string program_on_blocks(const at::Tensor& x, const Placement& cut, const at::Tensor& w, const Program& program) {
  const auto run = [&](const at::Tensor& a, const at::Tensor& b) {
    at::Tensor input = a.detach().requires_grad_(true);
    const at::Tensor y = program(input, b);
    (y * y).sum().backward();
    return std::make_pair(y.detach(), input.grad());
  };
  const auto [y, grad] = run(x, w);
  std::mutex mutex;
  std::string found;
  run_ranks(3, [&, y = y, grad = grad](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {3});
    const auto [mine, my_grad] = run(shard_of(x, mesh, {cut}), shard_of(w, mesh, {}));
    const std::string text = difference(full_tensor(mine), y, 1e-10) + difference(full_tensor(my_grad), grad, 1e-10);
    const std::lock_guard lock(mutex);
    found += text;
  });
  return found;
}

std::string convolution_on_blocks() {
  return program_on_blocks(make_tensor({2, 3, 13, 9}, 1), shard(2, {4, 2, 7}), make_tensor({4, 3, 5, 3}, 2),
                           [](const at::Tensor& a, const at::Tensor& b) {
                             return at::conv2d(a, b, {}, 1, {2, 1});
                           });
}

// Queries, keys and values are one tensor and multiples of it.
std::string attention_on_blocks() {
  return program_on_blocks(make_tensor({1, 13, 4, 2, 4}, 1), shard(1, {4, 2, 7}), make_tensor({4}, 2),
                           [](const at::Tensor& a, const at::Tensor& b) {
                             return std::get<0>(neighborhood_attention(a, a * b, a * 0.5, {.window = {5, 3}}));
                           });
}

TEST_F(FakeDevice, S16_X06_BlocksOfAConvolutionAreRight) { EXPECT_EQ(convolution_on_blocks(), ""); }

std::string found_without(const fake::Lost& waits, std::string (*on_blocks)()) {
  fake::lose(waits);
  const std::string found = on_blocks();
  fake::lose({});
  return found;
}
std::string convolution_without(const fake::Lost& waits) { return found_without(waits, convolution_on_blocks); }

// Here CUDA's device code runs on fibers, on keys and values that came from other ranks (fake_neighborhood.cpp).
TEST_F(FakeDevice, X04_BlocksOfNeighborhoodAttentionAreRight) {
  EXPECT_EQ(attention_on_blocks(), "");
  EXPECT_NE(found_without({.of_pool_streams = true}, attention_on_blocks), "");
  EXPECT_NE(found_without({.of_default_streams = true}, attention_on_blocks), "");
  EXPECT_EQ(attention_on_blocks(), "");
}

TEST_F(FakeDevice, FindsWhatTheStagedLinkMayNotLeaveOut) {
  EXPECT_NE(convolution_without({.of_pool_streams = true}), "") << "messages do not wait for what is computed";
  EXPECT_NE(convolution_without({.of_default_streams = true}), "") << "what is computed does not wait for messages";
  EXPECT_NE(convolution_without({.of_the_host = true}), "") << "messages leave before they are on the host";
  EXPECT_EQ(convolution_on_blocks(), "");
}

// No rank's host waits for messages by NCCL, so only streams keep them in order.
TEST_F(FakeDevice, S16_X06_FindsWhatTheNcclLinkMayNotLeaveOut) {
  const fake::WithNccl here;
  fake::plant({});
  fake::set_lateness(std::chrono::milliseconds(300));  // that long a rank that ends waits for its device

  EXPECT_EQ(convolution_on_blocks(), "");
  EXPECT_GT(fake::nccl_counts().groups, 0);
  EXPECT_NE(convolution_without({.of_default_streams = true}), "") << "what is computed does not wait for messages";
  fake::read_at_once(true);
  EXPECT_EQ(convolution_on_blocks(), "");
  EXPECT_NE(convolution_without({.of_pool_streams = true}), "") << "messages do not wait for what is computed";
  fake::read_at_once(false);
}

}  // namespace
}  // namespace moonhalo::test_fake_device
