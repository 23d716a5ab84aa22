// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/device_constant.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "tests/support/fake_device.h"

namespace moonhalo::test_device_constant {
namespace {

namespace fake = testing::fake;

TEST(DeviceConstant, F3_IsCopiedOnceForEachStream) {
  fake::install();
  const auto options = at::dtype(at::kFloat).device(fake::device(0));
  const std::vector<double> values = {0.25, 0.5, 3};
  const auto copies = [&](const std::vector<double>& numbers) {
    const int64_t before = fake::counts().host_copies;
    EXPECT_TRUE(at::equal(constant_on(options, numbers).cpu(), at::tensor(numbers, at::kFloat)));
    return fake::counts().host_copies - before - 1;  // equal() needs one
  };

  EXPECT_EQ(copies(values), 1);
  EXPECT_EQ(copies(values), 0);
  EXPECT_EQ(copies({0.25, 0.5, 4}), 1);
  EXPECT_EQ(constant_on(options.dtype(at::kDouble), values).scalar_type(), at::kDouble);
  const c10::StreamGuard beside(fake::stream_of_pool(0));
  EXPECT_EQ(copies(values), 1);
}

TEST(DeviceConstant, MayBeSavedForADerivativeThoughItWasMadeForInference) {
  fake::install();
  for (const char* name : {"cpu", "fake:1"}) {
    const auto options = at::dtype(at::kDouble).device(name);
    const std::vector<int64_t> values = {2, 3};
    {
      const c10::InferenceMode inference;
      constant_on(options, values);
    }
    at::Tensor x = at::ones({2}, options).requires_grad_();
    (x * constant_on(options, values)).sum().backward();
    EXPECT_TRUE(at::equal(x.grad().cpu(), at::tensor({2.0, 3.0}, at::kDouble)));
  }
}

}  // namespace
}  // namespace moonhalo::test_device_constant
