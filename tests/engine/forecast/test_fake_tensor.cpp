// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/fake_tensor.h"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/live_bytes.h"
#include "tests/support/placements.h"

namespace moonhalo::testing::test_fake_tensor {
namespace {

constexpr int64_t kLarge = kSmallFakeBytes;  // elements; more bytes than a small tensor has

TEST(FakeTensor, X14_HasSizesAndAnAddressButNoMemory) {
  auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  {
    const at::Tensor x = make_fake({1 << 20, 1 << 16}, at::kFloat), y = make_fake({1 << 20}, at::kFloat);

    EXPECT_EQ(live->now, (int64_t{4} << 36) + (4 << 20));
    EXPECT_TRUE(is_fake(x));
    EXPECT_NE(x.const_data_ptr(), y.const_data_ptr());
    EXPECT_EQ(x.strides(), at::IntArrayRef({1 << 16, 1}));
    // Every page can be written.
    char* last = static_cast<char*>(x.mutable_data_ptr()) + x.nbytes() - 1;
    *last = 1;
    EXPECT_EQ(*last, 1);
  }
  EXPECT_EQ(live->now, 0);
}

TEST(FakeTensor, X14_OperatorsAllocateWhatTheyWouldAllocate) {
  const auto peak_of = [](const at::Tensor& x) {
    auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    at::Tensor y = at::gelu(at::cat({x, x.sin()}, 1).narrow(1, 3, 500).contiguous());
    y.mul_(2).add_(y.softmax(1));
    return live->peak;
  };

  EXPECT_EQ(peak_of(make_fake({300, 400}, at::kDouble)), peak_of(at::ones({300, 400}, at::kDouble)));
}

TEST(FakeTensor, ViewsShareAndGradientsFlow) {
  const at::Tensor x = make_fake({kLarge, 4}, at::kFloat).requires_grad_();

  at::Tensor part = x.t().narrow(0, 1, 2);
  const at::Tensor loss = (part * part).sum();
  loss.backward();

  EXPECT_TRUE(part.is_alias_of(x));
  EXPECT_TRUE(is_fake(part) && is_fake(loss) && is_fake(x.grad()));
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(FakeTensor, ItemsAreOne) {
  const at::Tensor x = make_fake({kLarge}, at::kFloat);

  EXPECT_EQ(x.sum().item<float>(), 1);
  EXPECT_EQ(x[5].item<double>(), 1);
  EXPECT_TRUE((x > 3).any().item<bool>());
  EXPECT_EQ(x.argmax().item<int64_t>(), 1);
  EXPECT_TRUE(at::equal(x, x + 1));
  EXPECT_THROW(x.item(), c10::Error);
}

TEST(FakeTensor, WhatIsWrittenWithoutValuesIsFake) {
  const at::Tensor x = make_fake({3}, at::kFloat), weight = at::zeros({3}), out = at::empty({0}),
                   copied = at::zeros({3});
  const at::Tensor before = weight;

  weight.add_(x);
  copied.copy_(x);
  at::mul_out(const_cast<at::Tensor&>(out), x, 2);

  EXPECT_TRUE(is_fake(weight) && is_fake(before));
  EXPECT_TRUE(is_fake(out));
  EXPECT_TRUE(is_fake(copied));
  EXPECT_EQ(copied.data_ptr<float>()[0], 0);
  EXPECT_EQ(out.sizes(), x.sizes());
  EXPECT_FALSE(is_fake(at::zeros({3}).add_(1)));
  EXPECT_THAT(
      message_of([&] { check_computed(weight, "save: the tensor 'weight'"); }),
      ::testing::AllOf(::testing::HasSubstr("save: the tensor 'weight' has no values"), ::testing::HasSubstr("fix")));
}

TEST(FakeTensor, FactoriesGiveFakesWhileFakeResultsExists) {
  const at::Tensor real = at::ones({kLarge});
  {
    const FakeResults fakes;

    EXPECT_TRUE(is_fake(at::zeros({kLarge})) && is_fake(at::rand({kLarge})) && is_fake(at::arange(kLarge)));
    EXPECT_TRUE(is_fake(real * 2));
    const at::Tensor order = at::arange(5).flip(0);
    EXPECT_FALSE(is_fake(order));
    EXPECT_EQ(order[0].item<int64_t>(), 4);
    EXPECT_EQ(real.sum().item<float>(), static_cast<float>(kLarge));
    EXPECT_TRUE((at::empty({kLarge}, at::kMeta) * 2).is_meta());
    const ComputedValues computed;
    EXPECT_FALSE(is_fake(at::zeros({kLarge})));
  }
  EXPECT_FALSE(is_fake(at::zeros({kLarge})));
}

// A rank may have none of the rows that are added, or of the table.
TEST(FakeTensor, X14_NoRowsAreAdded) {
  const at::Tensor none = at::empty({0}, at::kLong);
  at::Tensor table = make_fake({64, 512}, at::kFloat);

  EXPECT_EQ(table.index_add(0, none, make_fake({0, 512}, at::kFloat)).sizes(), table.sizes());
  EXPECT_EQ(table.index_add_(0, none, make_fake({0, 512}, at::kFloat)).sizes(), table.sizes());
  EXPECT_EQ(table.index_reduce(0, none, make_fake({0, 512}, at::kFloat), "amax").sizes(), table.sizes());
  const at::Tensor empty = make_fake({0, 512}, at::kFloat);
  EXPECT_EQ(empty.index_add(0, none, empty).sizes(), empty.sizes());
  EXPECT_ANY_THROW(table.index_add(0, at::zeros({3}, at::kLong), make_fake({2, 512}, at::kFloat)));
}

TEST(FakeTensor, ShapesThatDependOnValuesAreErrorsOrAssumed) {
  const at::Tensor x = make_fake({kLarge, 3}, at::kFloat);

  for (const auto& call :
       {std::function<void()>([&] { x.nonzero(); }), std::function<void()>([&] { x.masked_select(x > 0); }),
        std::function<void()>([&] { x.index({x > 0}); }), std::function<void()>([&] { at::_unique2(x); }),
        std::function<void()>([&] { at::bincount(make_fake({kLarge}, at::kLong)); }),
        std::function<void()>([&] { at::repeat_interleave(make_fake({kLarge}, at::kLong)); })})
    EXPECT_THAT(message_of(call), ::testing::HasSubstr("depends on values that are not computed"));
  const AssumedCount count(7);
  EXPECT_EQ(x.nonzero().sizes(), at::IntArrayRef({7, 2}));
  EXPECT_EQ(x.masked_select(x > 0).sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(x.index({x.select(1, 0) > 0}).sizes(), at::IntArrayRef({7, 3}));
  const auto [values, places, counts] = at::_unique2(x, true, true, true);
  EXPECT_EQ(values.sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(places.sizes(), x.sizes());
  EXPECT_EQ(counts.sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(std::get<1>(at::unique_consecutive(x)).sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(std::get<0>(at::unique_dim(x, 0)).sizes(), at::IntArrayRef({7, 3}));
  EXPECT_EQ(std::get<1>(at::unique_consecutive(x, true, false, 0)).sizes(), at::IntArrayRef({kLarge}));
  const at::Tensor labels = make_fake({kLarge}, at::kLong);
  EXPECT_EQ(at::bincount(labels).sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(at::bincount(labels, x.select(1, 0), 9).sizes(), at::IntArrayRef({9}));
  EXPECT_EQ(at::repeat_interleave(labels).sizes(), at::IntArrayRef({7}));
  EXPECT_EQ(at::repeat_interleave(labels, std::optional<int64_t>(5)).sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(make_fake({5}, at::kFloat).index({at::arange(5) > 2}).sizes(), at::IntArrayRef({2}));
}

TEST(FakeTensor, OperatorsWithoutAShapeRuleAreRefused) {
  EXPECT_THAT(message_of([] {
                make_fake({5, 5}, at::kFloat).to_sparse();
              }),
              ::testing::AllOf(::testing::HasSubstr("aten::_to_sparse"), ::testing::HasSubstr("fake"),
                               ::testing::HasSubstr("moonhalo run --backend fake")));
}

}  // namespace
}  // namespace moonhalo::testing::test_fake_tensor
