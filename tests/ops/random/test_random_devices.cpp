// SPDX-License-Identifier: Apache-2.0
// Random numbers made by the kernel of a device, which is that of simulated devices here: the same numbers as on the
// CPU, bit by bit, and nothing made by the host (X02).
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_random_devices {
namespace {

using at::Tensor;

struct Kind {
  const char* name;
  std::function<Tensor(const Tensor&)> draw;
};

const std::vector<Kind> kKinds = {
    {"uniform_", [](const Tensor& x) { return at::empty_like(x).uniform_(-2, 3); }},
    {"uniform_float", [](const Tensor& x) { return at::empty_like(x, at::kFloat).uniform_(); }},
    {"uniform_half", [](const Tensor& x) { return at::empty_like(x, at::kHalf).uniform_(0, 7); }},
    {"uniform_bfloat16", [](const Tensor& x) { return at::empty_like(x, at::kBFloat16).uniform_(-1, 1); }},
    {"uniform_complex", [](const Tensor& x) { return at::empty_like(x, at::kComplexFloat).uniform_(1, 2); }},
    {"normal_", [](const Tensor& x) { return at::empty_like(x).normal_(1, 2); }},
    {"normal_float", [](const Tensor& x) { return at::empty_like(x, at::kFloat).normal_(); }},
    {"normal_complex", [](const Tensor& x) { return at::randn_like(x, at::kComplexDouble); }},
    {"log_normal_", [](const Tensor& x) { return at::empty_like(x).log_normal_(0, 0.5); }},
    {"exponential_", [](const Tensor& x) { return at::empty_like(x).exponential_(2); }},
    {"cauchy_", [](const Tensor& x) { return at::empty_like(x).cauchy_(0.5, 2); }},
    {"geometric_of_integers", [](const Tensor& x) { return at::empty_like(x, at::kInt).geometric_(0.3); }},
    {"coins", [](const Tensor& x) { return at::empty_like(x, at::kBool).bernoulli_(0.3); }},
    {"coins_of_chances", [](const Tensor& x) { return at::bernoulli(x); }},
    {"integers", [](const Tensor& x) { return at::empty_like(x, at::kShort).random_(-5, 600); }},
    {"integers_of_float", [](const Tensor& x) { return at::empty_like(x, at::kHalf).random_(); }},
    {"integers_all",
     [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(INT64_MIN, std::optional<int64_t>()); }},
    {"dropout", [](const Tensor& x) { return at::dropout(x, 0.4, true); }},
    {"transposed", [](const Tensor& x) { return at::empty_like(x).transpose(0, 2).uniform_(); }},
};

const Tensor kChances = make_tensor({9, 7, 2}, 1).abs();

Tensor drawn_on(const char* device, const Kind& kind) {
  Tensor result;
  std::mutex mutex;
  on_ranks(3, [&](Communicator& world) {
    manual_seed(7);
    const MeshPtr mesh = init_device_mesh(world, device, {3});
    const Tensor x = distribute_tensor(kChances, mesh, {shard(0, {2, 0, 7})});
    const Tensor whole = full_tensor(kind.draw(x)).cpu();
    const std::lock_guard lock(mutex);
    result = whole;
  });
  return result;
}

TEST(RandomOnDevices, X02_TheNumbersOfTheCpuOnBlocksAndPlainTensors) {
  fake::install();
  const ElementwiseRandom elementwise;
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Tensor expected = drawn_on("cpu", kind);
    EXPECT_EQ(difference(drawn_on("fake", kind), expected, 0), "");
    manual_seed(7);
    EXPECT_EQ(difference(kind.draw(kChances.to(fake::device(1))).cpu(), expected, 0), "");
  }
}

TEST(RandomOnDevices, X02_PermutationsAreThoseOfTheCpu) {
  fake::install();
  const ElementwiseRandom elementwise;
  manual_seed(3);
  const Tensor expected = at::randperm(40);
  manual_seed(3);
  EXPECT_EQ(difference(at::randperm(40, at::device(fake::device(2))).cpu(), expected, 0), "");
}

TEST(RandomOnDevices, X02_OneLaunchAndNothingFromTheHost) {
  fake::install();
  const ElementwiseRandom elementwise;
  Tensor x = at::empty({50, 40}, fake::device(0));
  const fake::Counts before = fake::counts();

  x.uniform_();
  x.normal_(1, 2);

  const fake::Counts made = fake::counts() - before;
  EXPECT_EQ(made.launches, 2);
  EXPECT_EQ(made.host_copies, 0);
  EXPECT_EQ(made.host_waits, 0);
}

}  // namespace
}  // namespace moonhalo::testing::test_random_devices
