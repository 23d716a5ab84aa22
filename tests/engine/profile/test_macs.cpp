// SPDX-License-Identifier: Apache-2.0
// The multiplications of operators in profiles, against their formulas.
#include "moonhalo/engine/profile/macs.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_macs {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

int64_t macs_of(const std::function<void()>& work) {
  Recorder recorder(1);
  work();
  const RankRecord record = recorder.stop();
  int64_t macs = 0;
  for (const ProfileEvent& event : record.events)
    macs += event.kind == EventKind::kOperator ? std::max<int64_t>(0, event.value) : 0;
  return macs;
}

TEST(Macs, Y13_ProductsAreCountedOnce) {
  const at::Tensor a = make_tensor({5, 7}, 1), b = make_tensor({7, 3}, 2), bias = make_tensor({3}, 3);
  const at::Tensor batch = make_tensor({2, 5, 7}, 4);
  EXPECT_EQ(macs_of([&] { at::mm(a, b); }), 5 * 7 * 3);
  EXPECT_EQ(macs_of([&] { at::matmul(a, b); }), 5 * 7 * 3);
  EXPECT_EQ(macs_of([&] { at::addmm(bias, a, b); }), 5 * 7 * 3);
  EXPECT_EQ(macs_of([&] { at::linear(batch, b.t().contiguous(), bias); }), 2 * 5 * 7 * 3);
  EXPECT_EQ(macs_of([&] { at::bmm(batch, batch.transpose(1, 2)); }), 2 * 5 * 7 * 5);
  EXPECT_EQ(macs_of([&] { a.add(1).sum().exp(); }), 0);
  const at::Tensor heads = make_tensor({2, 3, 8, 4}, 5);
  EXPECT_EQ(macs_of([&] { at::scaled_dot_product_attention(heads, heads, heads); }), 2 * 3 * 8 * 8 * 4 * 2);
}

// Each weight contributes once to every output element of its channel, and twice in backward.
TEST(Macs, Y13_ConvolutionsOfAllKindsAreCounted) {
  struct Case {
    std::vector<int64_t> stride, padding, dilation;
    int64_t groups;
  };
  const at::Tensor x = make_tensor({2, 4, 9, 12}, 1).requires_grad_();
  for (const Case& one : {Case{{1}, {1}, {1}, 1}, Case{{2, 3}, {0, 1}, {1, 1}, 2}, Case{{1, 2}, {2, 2}, {2, 3}, 4}}) {
    const at::Tensor weight = make_tensor({8, 4 / one.groups, 3, 3}, 2).requires_grad_();
    at::Tensor y;
    const int64_t forward =
        macs_of([&] { y = at::conv2d(x, weight, {}, one.stride, one.padding, one.dilation, one.groups); });
    EXPECT_EQ(forward, weight.numel() * y.numel() / y.size(1)) << y.sizes();
    const int64_t backward = macs_of([&] {
      const BackwardOnThisThread here;
      y.sum().backward();
    });
    EXPECT_EQ(backward, 2 * forward);
    const auto only = [&](std::array<bool, 3> required) {
      return macs_of([&] {
        at::convolution_backward(at::ones_like(y), x.detach(), weight.detach(), at::OptionalIntArrayRef(), one.stride,
                                 one.padding, one.dilation, false, {0, 0}, one.groups, required);
      });
    };
    EXPECT_EQ(only({true, false, false}), forward);
    EXPECT_EQ(only({false, true, true}), forward);
  }
  const at::Tensor weight = make_tensor({4, 6, 3, 2}, 3);
  EXPECT_EQ(macs_of([&] { at::conv_transpose2d(x, weight, {}, {2, 2}); }), weight.numel() * x.numel() / x.size(1));
  const at::Tensor line = make_tensor({3, 10}, 4), kernel = make_tensor({5, 3, 4}, 5);
  EXPECT_EQ(macs_of([&] { at::conv1d(line, kernel); }), kernel.numel() * 7);
}

// The MACs of all blocks are those of the whole field, in each table.
TEST(Macs, Y13_OfBlocksAddUpToThoseOfTheWhole) {
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", {ranks}, {"domain"});
      const at::Tensor x = distribute_tensor(make_tensor({7, 4}, 1), mesh, {shard(0)}), weight = make_tensor({4, 5}, 2);
      Profiler profiler(world.shared_from_this());
      profiler.start();
      at::matmul(x, weight).sum();
      profiler.stop();

      const ProfileSummary& summary = profiler.summary();
      for (size_t by = 0; by < summary.tables.size(); ++by) {
        int64_t macs = 0;
        for (const auto& row : summary.tables[by]) {
          macs += row.macs;
          EXPECT_EQ(row.macs > 0, row.mac_time > 0) << row.name;
        }
        EXPECT_EQ(macs, 7 * 4 * 5) << name(static_cast<ProfileBy>(by));
      }
      EXPECT_EQ(summary.table(ProfileBy::kOperator)[0].name.empty(), false);
    });
  }
}

TEST(Macs, Y13_TablesShowThemWithTheirRate) {
  ProfileSummary summary;
  summary.ranks = 2;
  summary.steps = {1, 2};
  summary.tables[0] = {{.name = "aten::mm", .calls = 4, .self = 8000000, .macs = 6000000, .mac_time = 2000000},
                       {.name = "aten::add", .calls = 4, .self = 9000000}};

  const std::string text = profile_table(summary, ProfileBy::kOperator, parse_profile_sort("macs"));

  EXPECT_THAT(text, ContainsRegex("\noperator +calls .* own ms +MACs +GMAC/s +sent\naten::mm .* 1.5 M +3.00 +-\n"));
  EXPECT_THAT(text, ContainsRegex("\naten::add .* - +- +-\n"));
  EXPECT_EQ(ProfileSummary::from_json(summary.to_json(), "x").to_json(), summary.to_json());
  std::string old = summary.to_json();  // of files from before there were MACs
  for (const char* key : {"\"macs\"", "\"macs_ns\""}) {
    for (size_t at; (at = old.find(key)) != std::string::npos;) old.replace(at, 2, "\"o");
  }
  EXPECT_THAT(profile_table(ProfileSummary::from_json(old, "x"), ProfileBy::kOperator), HasSubstr("aten::mm"));
}

}  // namespace
}  // namespace moonhalo::testing::test_macs
