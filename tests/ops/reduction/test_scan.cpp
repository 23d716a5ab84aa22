// SPDX-License-Identifier: Apache-2.0
// Scans, sorting and ranks along cut dims.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_scan {
namespace {

using at::Tensor;

List pair(const std::tuple<Tensor, Tensor>& both) { return {std::get<0>(both), std::get<1>(both)}; }

TEST(Scan, RunningSumsAndProducts) {
  check({{"cumsum_0", [](const Tensor& x) { return List{x.cumsum(0)}; }},
         {"cumsum_1",
          [](const Tensor& x) {
            return List{x.cumsum(-2), x.cumsum(2)};
          }},
         {"cumprod",
          [](const Tensor& x) {
            return List{x.cumprod(0), x.cumprod(1)};
          },
          kForward},
         {"logcumsumexp",
          [](const Tensor& x) {
            return List{(x * 50).logcumsumexp(0), x.logcumsumexp(1)};
          },
          kForward},
         {"integers",
          [](const Tensor& x) {
            return List{(x * 9).to(at::kInt).cumsum(0), x.gt(0).cumsum(1)};
          }}},
        make_tensor({9, 7, 2}, 1) + 0.2);
}

// 2049 is not a number of float16: the second block must be given what the first one comes to before it is rounded.
TEST(Scan, LowPrecisionIsRoundedOnce) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const auto expect = [&](const Tensor& values, const auto& scan) {
      const Tensor given = values.to(at::kHalf), exact = scan(given.to(at::kDouble)).to(at::kHalf);
      EXPECT_EQ(difference(full_tensor(scan(shard_of(given, mesh, {shard(0, {3, 3})}))), exact, 0), "");
    };
    expect(at::tensor({2047., 1., 1., -2048., 0.5, 0.25}), [](const Tensor& x) { return x.cumsum(0); });
    expect(at::tensor({1.5, 1365.75, 1., 0.001, 1000., 1.}), [](const Tensor& x) { return x.cumprod(0); });
    expect(at::tensor({0.1, 0.2, 3.3, -4.4, 0.7, 1.1}), [](const Tensor& x) { return x.logcumsumexp(0); });
  });
}

TEST(Scan, RunningExtremes) {
  const Tensor ties = make_tensor({9, 7, 2}, 2, at::kLong).remainder(4);
  for (const Tensor& full : {ties, ties.to(at::kDouble)}) {
    check({{"cummax", [](const Tensor& x) { return pair(x.round().cummax(0)); }, kForward},
           {"cummin", [](const Tensor& x) { return pair(x.round().cummin(1)); }, kForward}},
          full);
  }
}

TEST(Sort, LinesAlongEveryDim) {
  check({{"sort_0", [](const Tensor& x) { return pair(x.sort(0)); }},
         {"sort_1", [](const Tensor& x) { return pair(x.sort(1, true)); }},
         {"stable", [](const Tensor& x) { return pair((x * 3).round().sort(std::optional<bool>(true), 0)); }, kForward},
         {"argsort", [](const Tensor& x) { return List{x.argsort(int64_t{0}, false)}; }},
         {"kthvalue", [](const Tensor& x) { return pair(x.kthvalue(3, 0)); }},
         {"median", [](const Tensor& x) { return pair(x.median(1, true)); }},
         {"mode", [](const Tensor& x) { return List{std::get<0>((x * 3).round().mode(0))}; }, kForward}},
        make_tensor({9, 7, 2}, 3));
}

TEST(Sort, TopkMovesCandidatesOnly) {
  check({{"topk_0", [](const Tensor& x) { return pair(x.topk(3, 0)); }},
         {"topk_1", [](const Tensor& x) { return pair(x.topk(5, 1, false)); }},
         {"topk_all", [](const Tensor& x) { return pair(x.topk(9, 0)); }},
         {"topk_2", [](const Tensor& x) { return pair(x.topk(1)); }}},
        make_tensor({9, 7, 2}, 4));

  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({1000}, 1), mesh, {shard(0, {300, 700})});
    mesh->group().reset_stats();
    x.topk(4);
    EXPECT_LE(mesh->group().stats().total().bytes, 2 * 4 * 8);
    EXPECT_NE(message_of([&] { x.topk(1001); }).find("topk: k 1001 of a dim of 1000"), std::string::npos);
  });
}

// PyTorch leaves the order free, so it may not depend on the blocks.
TEST(Sort, TopkOfACutDimHasOneOrder) {
  const Tensor full = make_tensor({40, 2}, 4);
  const auto expected = full.topk(9, 0);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{40}, {13, 0, 27}, {1, 38, 1}, {10, 10, 10, 10}}) {
    on_mesh({static_cast<int64_t>(sizes.size())}, [&](const MeshPtr& mesh) {
      const auto found = shard_of(full, mesh, {shard(0, sizes)}).topk(9, 0, /*largest=*/true, /*sorted=*/false);
      Tensor values = full_tensor(std::get<0>(found)), places = full_tensor(std::get<1>(found));
      if (sizes.size() == 1) {  // one device's own order
        places = places.gather(0, values.argsort(0, /*descending=*/true));
        values = std::get<0>(values.sort(0, /*descending=*/true));
      }
      EXPECT_EQ(difference(values, std::get<0>(expected), 0), "");
      EXPECT_TRUE(at::equal(places, std::get<1>(expected)));
    });
  }
}

TEST(Sort, DerivativesOfPickedValuesGatherNothing) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({400, 30}, 1);
    const Tensor x = shard_of(full, mesh, {shard(0, {150, 250})}).requires_grad_();
    mesh->group().reset_stats();

    std::get<0>(x.max(0)).sum().backward();

    EXPECT_LE(mesh->group().stats().total().bytes, 4 * 30 * 8);
    EXPECT_EQ(spec(x.grad())->cut(0), spec(x)->cut(0));
    EXPECT_EQ(difference(full_tensor(x.grad()), full.eq(full.amax(0)).to(at::kDouble), 0), "");
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_scan
