// SPDX-License-Identifier: Apache-2.0
// Communicators, the gathering fallback and deferred tensors refuse these, on every rank, before anything moves.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <thread>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/deferred/factory_capture.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "tests/support/oracle.h"
#include "tests/support/placements.h"

namespace moonhalo::testing::test_refusals {
namespace {

using Counts = std::vector<int64_t>;
using ::testing::HasSubstr;

TEST(CommunicatorRefusals, TypesAndCountsThatDoNotFit) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Communicator& group = mesh->group();
    at::Tensor in = at::ones({2}, at::kDouble), narrow = at::ones({1}, at::kFloat), out = at::ones({2}, at::kDouble);

    EXPECT_THAT(message_of([&] {
                  group.reduce_scatter(in, Counts{1, 1}, narrow, ReduceOp::kSum);
                }),
                HasSubstr("reduce_scatter: `in` is Double"));
    EXPECT_THAT(message_of([&] {
                  group.all_gather(in.narrow(0, 0, 1), Counts{1, 1}, narrow);
                }),
                HasSubstr("all_gather"));
    EXPECT_THAT(message_of([&] {
                  group.all_to_all(in, Counts{3, -1}, out, Counts{1, 1});
                }),
                HasSubstr("all_to_all: a negative count"));
    EXPECT_THAT(message_of([&] {
                  group.all_to_all(in, Counts{1, 1}, out, mesh->rank() == 0 ? Counts{2, 0} : Counts{0, 2});
                }),
                HasSubstr("expects"));
    // The group still works.
    group.all_reduce(out);
    EXPECT_EQ(out[0].item<double>(), 2);
  });
}

// The judge of the sweeps and of the fuzzer: a clear error is a fault too where one rank alone has it.
TEST(JudgedCalls, ARefusalOfOneRankAloneIsWrong) {
  const auto refused_by = [](int64_t ranks) {
    const Program program = [ranks](const List& x) {
      const bool refuses = is_shard_tensor(x[0]) && spec(x[0])->mesh()->rank() < ranks;
      TORCH_CHECK_VALUE(!refuses, "no\n  have  this\n  fix   that");
      return List{x[0].sum()};
    };
    return judge({{3}, {{make_tensor({5, 2}, 1), {shard(0)}}}}, program, {});
  };

  EXPECT_EQ(refused_by(0).kind(), Verdict::Kind::kRight);
  EXPECT_EQ(refused_by(3).kind(), Verdict::Kind::kRefused);
  EXPECT_THAT(refused_by(1).wrong, HasSubstr("of 3 ranks these refuse alone: 0\nrank 0: no"));
}

// A tiny tensor takes a way of its own through the messages: sums of maxima are not maxima of sums.
TEST(Redistribution, D04_TinySumsOfMaxima) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const double values[] = {1, 5, 7, 2};
    for (const int64_t elements : {1, 2, 3}) {
      const at::Tensor mine = at::full({elements}, values[mesh->rank()], at::kDouble);
      const auto whole = [&](ReduceOp rows, ReduceOp columns) {
        return full_tensor(from_local(mine, make_spec(mesh, {elements}, {partial(rows), partial(columns)})))[0]
            .item<double>();
      };
      EXPECT_EQ(whole(ReduceOp::kSum, ReduceOp::kMax), 12);  // max(1, 5) + max(7, 2)
      EXPECT_EQ(whole(ReduceOp::kMax, ReduceOp::kSum), 9);   // max(1 + 5, 7 + 2)
      EXPECT_EQ(whole(ReduceOp::kMin, ReduceOp::kSum), 6);
      EXPECT_EQ(whole(ReduceOp::kAvg, ReduceOp::kProduct), 9.5);
    }
  });
}

// One of two reductions may not be made without the other where their order counts.
TEST(Redistribution, D04_OneOfTwoReductionsThatDoNotCommute) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const double values[] = {1, 5, 7, 2};
    const at::Tensor mine = at::full({8}, values[mesh->rank()], at::kDouble);
    const auto reduced = [&](std::vector<Placement> from, std::vector<Placement> to) {
      return full_tensor(redistribute(from_local(mine, make_spec(mesh, {8}, from)), to))[0].item<double>();
    };
    const Placement sum = partial(), max = partial(ReduceOp::kMax), none = replicate();
    for (const auto& [rows, columns] :
         {std::pair{sum, none}, {none, max}, {none, none}, {shard(0), max}, {sum, shard(0)}})
      EXPECT_EQ(reduced({sum, max}, {rows, columns}), 12) << rows.to_string() << ", " << columns.to_string();
    for (const auto& [rows, columns] :
         {std::pair{max, none}, {none, sum}, {none, none}, {shard(0), sum}, {max, shard(0)}})
      EXPECT_EQ(reduced({max, sum}, {rows, columns}), 9) << rows.to_string() << ", " << columns.to_string();
  });
}

TEST(Redistribution, D04_NeutralElementsOfShortIntegers) {
  const at::Tensor full = at::tensor({-300, -5, 200, -30000, 30000, 7}, at::kShort);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(full, mesh, {shard(0)});
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin})
      EXPECT_EQ(difference(full_tensor(redistribute(x, {partial(op)})), full, 0), "") << name(op);
  });
}

// Another library: an operator that no rule covers and that gives its argument another shape.
at::Tensor& grow(at::Tensor& x) {
  x.resize_({x.size(0) + 1, x.size(1)});
  return x;
}

TORCH_LIBRARY(moonhalo_test_refusals, library) { library.def("grow(Tensor(a!) x) -> Tensor(a!)"); }
TORCH_LIBRARY_IMPL(moonhalo_test_refusals, CPU, library) { library.impl("grow", &grow); }

TEST(GatherFallback, RefusesOperatorsThatResizeTheirArgument) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("moonhalo_test_refusals::grow", "")
                      .typed<at::Tensor&(at::Tensor&)>();
  on_mesh(
      {2},
      [&](const MeshPtr& mesh) {
        at::Tensor x = shard_of(make_tensor({4, 3}, 1), mesh, {shard(0)});
        EXPECT_THAT(message_of([&] { op.call(x); }), HasSubstr("cannot be resized in place"));
        EXPECT_EQ(x.sizes(), at::IntArrayRef({4, 3}));
      },
      Fallback::kReplicate);
}

TEST(DeferredTensors, OfTwoThreadsDoNotMeet) {
  at::Tensor theirs;
  std::thread other([&] { theirs = deferred_init([] { return at::randn({3, 2}); }, 0); });
  other.join();
  const std::string message = message_of([&] { deferred_init([&] { return at::randn({3, 2}) + theirs; }, 0); });
  EXPECT_THAT(message, HasSubstr("deferred tensors of two threads are combined"));
}

TEST(CapturedFactories, GiveThePlainCallsDtype) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const CaptureFactories capture(mesh,
                                   FactoryPlan{{"randint", {shard(0)}}, {"rand", {shard(0)}}, {"zeros", {shard(0)}}});
    EXPECT_EQ(at::randint(0, 9, {4}).scalar_type(), at::kLong);
    EXPECT_EQ(at::randint(0, 9, {4}, at::kDouble).scalar_type(), at::kDouble);
    EXPECT_EQ(at::rand({4}).scalar_type(), at::kFloat);
    EXPECT_EQ(at::zeros({4}).scalar_type(), at::kFloat);
  });
}

TEST(CapturedFactories, OfAnOuterScopeGoOnWhereAnInnerPlanIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const CaptureFactories outer(mesh, FactoryPlan{{"zeros", {shard(0)}}});
    EXPECT_THROW(CaptureFactories(mesh, FactoryPlan{{"zeroes", {shard(0)}}}), c10::ValueError);
    EXPECT_TRUE(is_shard_tensor(at::zeros({4})));
    EXPECT_FALSE(is_shard_tensor(at::ones({4})));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_refusals
