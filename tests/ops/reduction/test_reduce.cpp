// SPDX-License-Identifier: Apache-2.0
// Sums, means, extremes, norms and variances over cut dims: features S01, S12, S13.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_reduce {
namespace {

using at::Tensor;

const std::vector<int64_t> kRows{0, 1};

TEST(Reduce, S01_S12_SumsAndMeansAreThoseOfOneDevice) {
  check({{"sum", [](const Tensor& x) { return List{x.sum()}; }, {.double_backward = true}},
         {"sum_0", [](const Tensor& x) { return List{x.sum(0)}; }},
         {"sum_keep",
          [](const Tensor& x) {
            return List{x.sum({-1, 0}, true)};
          }},
         {"sum_to_float", [](const Tensor& x) { return List{x.sum(1, false, at::kFloat)}; }, {.tolerance = 1e-5}},
         {"sum_of_empty_list", [](const Tensor& x) { return List{x.sum(at::IntArrayRef{})}; }},
         {"mean", [](const Tensor& x) { return List{x.mean()}; }},
         {"mean_0", [](const Tensor& x) { return List{x.mean(0, true)}; }},
         {"mean_of_squares", [](const Tensor& x) { return List{(x * x).mean(kRows)}; }, {.double_backward = true}},
         {"nansum", [](const Tensor& x) { return List{at::nansum(at::sqrt(x), 0)}; }, kForward},
         {"nanmean",
          [](const Tensor& x) {
            return List{at::nanmean(at::sqrt(x), at::IntArrayRef{0, 2})};
          },
          kForward},
         {"sum_to_size",
          [](const Tensor& x) {
            return List{x.sum_to_size({1, 7, 1})};
          }}},
        make_tensor({9, 7, 2}, 1));
}

TEST(Reduce, TheGradientOfAMeanIsNotWrittenOut) {
  const Tensor full = make_tensor({9, 7, 2}, 1);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(full, mesh, {shard(0, {8, 1})}).requires_grad_();
    const Tensor y = x.sin();
    std::vector<int64_t> strides;
    y.register_hook([&](const Tensor& grad) { strides = to_local(grad).strides().vec(); });

    y.mean(at::IntArrayRef{0, 1}).sum().backward();

    EXPECT_EQ(strides[0], 0);
    EXPECT_EQ(strides[1], 0);
    EXPECT_EQ(difference(full_tensor(x.grad()), full.cos() / 63, 1e-12), "");
    const Tensor divided = to_local(shard_of(full[0].contiguous(), mesh, {replicate()}).expand({9, 7, 2}).div(2));
    EXPECT_TRUE(divided.is_contiguous()) << "elsewhere a quotient is written out, so that it can be written to";
  });
}

TEST(Reduce, ProductsAndTruths) {
  check({{"prod", [](const Tensor& x) { return List{x.prod()}; }},
         {"prod_0", [](const Tensor& x) { return List{x.prod(0)}; }},
         {"any",
          [](const Tensor& x) {
            return List{x.gt(0.9).any(), x.gt(0.5).any(1), x.gt(2).any()};
          }},
         {"all",
          [](const Tensor& x) {
            return List{x.gt(-2).all(), x.gt(-0.9).all(0, true)};
          }},
         {"any_dims",
          [](const Tensor& x) {
            return List{at::any(x.gt(0.8), at::IntArrayRef{0, 1}), at::all(x.gt(0.8), at::OptionalIntArrayRef{})};
          }},
         {"is_any_true",
          [](const Tensor& x) {
            return List{at::_is_any_true(x.gt(0.9)), at::_is_any_true(x.gt(9)), at::_is_all_true(x.gt(-9))};
          }},
         {"count_nonzero",
          [](const Tensor& x) {
            return List{x.gt(0).count_nonzero(), x.gt(0).count_nonzero(at::IntArrayRef{0, 1}),
                        x.count_nonzero(std::optional<int64_t>(1))};
          }}},
        make_tensor({9, 7, 2}, 2) + 0.1);
}

TEST(Reduce, ExtremesAndWhereTheyStand) {
  check({{"amax",
          [](const Tensor& x) {
            return List{x.amax(), x.amax(0), x.amax({1, 2}, true)};
          }},
         {"amin",
          [](const Tensor& x) {
            return List{x.amin(), x.amin(-3), x.amin({0, 2})};
          }},
         {"max_of_all",
          [](const Tensor& x) {
            return List{x.max(), x.min()};
          },
          kForward},
         {"max_dim",
          [](const Tensor& x) {
            auto [v, i] = x.max(0);
            return List{v, i};
          },
          kForward},
         {"min_dim",
          [](const Tensor& x) {
            auto [v, i] = x.min(1, true);
            return List{v, i};
          },
          kForward},
         {"max_dim_2",
          [](const Tensor& x) {
            auto [v, i] = x.max(2);
            return List{v, i};
          },
          kForward},
         {"arg",
          [](const Tensor& x) {
            return List{x.argmax(), x.argmin(), x.argmax(0), x.argmin(1, true), x.argmax({}, true)};
          },
          kForward},
         {"aminmax",
          [](const Tensor& x) {
            auto [a, b] = at::aminmax(x);
            auto [c, d] = at::aminmax(x, 0, true);
            return List{a, b, c, d};
          },
          kForward},
         {"max_backward",
          [](const Tensor& x) {
            return List{x.max(), std::get<0>(x.min(0))};
          }},
         {"max_of_two", [](const Tensor& x) { return List{at::max(x, x * x)}; }}},
        make_tensor({9, 7, 2}, 3));
}

TEST(Reduce, TiesGoToTheFirstAndNaNWins) {
  const Tensor ties = make_tensor({9, 7, 2}, 4, at::kLong).remainder(3);
  Tensor nan = make_tensor({9, 7, 2}, 5);
  nan.index_put_({at::tensor({7, 3}), at::tensor({2, 5}), at::tensor({1, 0})}, at::tensor(NAN, at::kDouble));
  for (const Tensor& full : {ties, ties.to(at::kBool), nan, -nan}) {
    check({{"indices",
            [](const Tensor& x) {
              auto [v, i] = x.max(0);
              auto [w, j] = x.min(1);
              return List{v, i, w, j, x.max(), x.min(), x.amax(0)};
            },
            kForward}},
          full);
    if (full.scalar_type() == at::kBool) continue;
    check({{"arg", [](const Tensor& x) { return List{x.argmax(), x.argmin(0), x.argmin()}; }, kForward}}, full);
  }
}

TEST(Reduce, OtherDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kInt, at::kBool, at::kByte, at::kComplexDouble}) {
    SCOPED_TRACE(at::toString(dtype));
    const Tensor full = make_tensor({9, 7, 2}, 6, dtype);
    for (const PlacementCase& held : kPlacements972) {
      if (!can_hold(held, dtype)) continue;
      SCOPED_TRACE(held.name);
      expect_same_as_plain(
          held.mesh, {{full, held.placements}},
          [](const std::vector<Tensor>& x) {
            return List{x[0].sum(), x[0].sum(0), x[0].sum(1, true), x[0].count_nonzero(std::optional<int64_t>(0))};
          },
          {.tolerance = dtype == at::kFloat ? 1e-5 : 1e-10});
    }
  }
}

// A block adds up to more than half precision holds; the mean of the whole is 2.
TEST(Reduce, S12_MeansInHalfPrecisionStayInRange) {
  const Tensor full = at::full({3, 40000}, 2, at::kHalf);
  for (const std::vector<Placement>& placements : {std::vector<Placement>{shard(0, {3, 0})}, {shard(1)}}) {
    // Half has 11 bits: neighbours differ by 1e-3.
    expect_same_as_plain({2}, {{full, placements}},
                         [](const List& x) {
                           return List{x[0].mean(), x[0].mean(1), x[0].mean(kRows, true), at::mse_loss(x[0], x[0] - 2),
                                       at::huber_loss(x[0], x[0] - 2, at::Reduction::Mean, 0.5)};
                         },
                         {.tolerance = 1e-3, .backward = false});
  }
}

TEST(Reduce, Norms) {
  for (const double p : {0.0, 1.0, 2.0, 3.0, -1.0, double(INFINITY), -double(INFINITY)}) {
    for (const PlacementCase& held : kPlacements972) {
      SCOPED_TRACE(std::to_string(p) + " " + held.name);
      expect_same_as_plain(
          held.mesh, {{make_tensor({9, 7, 2}, 7), held.placements}}, [&](const std::vector<Tensor>& x) {
            return List{at::linalg_vector_norm(x[0], p), at::linalg_vector_norm(x[0], p, at::IntArrayRef{0, 2}),
                        x[0].norm(p), x[0].norm(p, 1, true), x[0].norm(p, at::IntArrayRef{0}, false, at::kDouble)};
          });
    }
  }
  check({{"logsumexp",
          [](const Tensor& x) {
            return List{x.logsumexp(0), (x * 900).logsumexp(kRows, true), x.logsumexp(2)};
          }},
         {"infinite",
          [](const Tensor& x) {
            return List{x.relu().reciprocal().logsumexp(0), x.relu().log().logsumexp(1),
                        (x - INFINITY).exp().log().logsumexp(0)};
          },
          kForward}},
        make_tensor({9, 7, 2}, 8));
  check({{"complex",
          [](const Tensor& x) {
            return List{x.norm(), at::linalg_vector_norm(x, 3, 0), at::linalg_vector_norm(x, 1)};
          }}},
        make_tensor({9, 7, 2}, 9, at::kComplexDouble));
}

TEST(Reduce, S12_VariancesUseTrueCounts) {
  check({{"var",
          [](const Tensor& x) {
            return List{x.var(), x.var(at::IntArrayRef{0}, false),
                        x.var(at::OptionalIntArrayRef(kRows), at::Scalar(2), true)};
          },
          {.double_backward = true}},
         {"std",
          [](const Tensor& x) {
            return List{x.std(), x.std(0), x.std(at::IntArrayRef{1, 2}, true, true)};
          }},
         {"with_mean",
          [](const Tensor& x) {
            auto [v, m] = at::var_mean(x, 0);
            auto [s, n] = at::std_mean(x, at::IntArrayRef{0, 2}, 0, true);
            return List{v, m, s, n};
          }},
         {"far_from_zero",
          [](const Tensor& x) {
            return List{(x + 1e6).var(0), (x + 1e6).std()};
          },
          {.tolerance = 1e-10, .backward = false}},
         {"correction_of_the_count_and_above",
          [](const Tensor& x) {
            // As a Scalar: an int would be taken for the flag `unbiased`.
            return List{x.var(at::OptionalIntArrayRef(kRows), at::Scalar(9), true),
                        x.var(at::OptionalIntArrayRef(kRows), at::Scalar(12)),
                        x.std(at::OptionalIntArrayRef(), at::Scalar(200))};
          },
          kForward}},
        make_tensor({9, 7, 2}, 10));
  check({{"complex",
          [](const Tensor& x) {
            auto [v, m] = at::var_mean(x, 0);
            return List{v, m, x.std()};
          }}},
        make_tensor({9, 7, 2}, 11, at::kComplexDouble));
  check({{"single_precision",
          [](const Tensor& x) {
            return List{(x + 100).var(0), x.std()};
          },
          {.tolerance = 1e-5}}},
        make_tensor({9, 7, 2}, 12, at::kFloat));
}

struct HeardOfVariances final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

TEST(Reduce, VariancesWarnOfTheWholeAndNotOfEmptyBlocks) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    HeardOfVariances heard;
    const c10::WarningUtils::WarningHandlerGuard guard(&heard);
    const Tensor full = make_tensor({5, 4, 2}, 1), x = shard_of(full, mesh, {shard(1, {3, 0, 1})});
    const auto [var, mean] = at::var_mean(x, at::OptionalIntArrayRef{0});
    EXPECT_EQ(difference(full_tensor(var), full.var(0), 1e-12), "");
    EXPECT_EQ(difference(full_tensor(mean), full.mean(0), 1e-12), "");
    EXPECT_EQ(difference(full_tensor(x.to(at::kComplexDouble).std(0)), full.std(0), 1e-12), "");
    EXPECT_TRUE(heard.texts.empty()) << heard.texts[0];
    x.narrow(0, 0, 1).std(0);
    EXPECT_EQ(heard.texts.size(), mesh->rank() == 1 ? 0 : 1);
  });
}

TEST(Reduce, S01_SumOverCutRowsStaysPartialAndMovesNothing) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({10, 4}, 1), mesh, {shard(0, {5, 1, 4})});
    mesh->group().reset_stats();

    const Tensor rows = x.sum(0), mean = x.mean();

    EXPECT_TRUE(spec(rows)->partial(0) == ReduceOp::kSum);
    EXPECT_TRUE(spec(mean)->partial(0) == ReduceOp::kSum);
    EXPECT_EQ(mesh->group().stats().total().calls, 0);
    EXPECT_EQ(difference(full_tensor(rows), make_tensor({10, 4}, 1).sum(0), 1e-12), "");
  });
}

TEST(Reduce, S13_LinearAfterPoolingNeedsOneAllReduce) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({3, 4, 7, 5}, 1), weight = make_tensor({6, 4}, 2), bias = make_tensor({6}, 3);
    const Tensor x = shard_of(full, mesh, {shard(2, {3, 4})});
    mesh->group().reset_stats();

    const Tensor y = at::linear(x.mean({2, 3}), weight, bias).relu();

    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kAllReduce].calls, 1);
    EXPECT_EQ(mesh->group().stats().total().calls, 1);
    EXPECT_EQ(difference(full_tensor(y), at::linear(full.mean({2, 3}), weight, bias).relu(), 1e-12), "");
  });
}

TEST(Reduce, S13_ACutConsumerOfAPartialSumNeedsOneReduceScatter) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({8, 4, 9}, 1), other = make_tensor({8, 4}, 2);
    const Tensor x = shard_of(full, mesh, {shard(2, {3, 6})}), cut = shard_of(other, mesh, {shard(0, {3, 5})});
    mesh->group().reset_stats();

    const Tensor y = at::maximum(x.mean(2), cut);

    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kReduceScatter].calls, 1);
    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kAllReduce].calls, 0);
    EXPECT_EQ(spec(y), spec(cut));
    EXPECT_EQ(difference(full_tensor(y), at::maximum(full.mean(2), other), 1e-12), "");
  });
}

TEST(Reduce, WrongArgumentsAreRefusedOnEveryRank) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({9, 4}, 1), mesh, {shard(0)});
    const Tensor integers = shard_of(make_tensor({9, 4}, 1, at::kLong), mesh, {shard(0, {9, 0})});

    EXPECT_NE(message_of([&] { x.sum(2); }).find("Dimension out of range"), std::string::npos);
    EXPECT_NE(message_of([&] { x.to(at::kLong).mean(0); }).find("mean()"), std::string::npos);
    EXPECT_NE(message_of([&] { x.to(at::kLong).var(0); }).find("floating point"), std::string::npos);
    EXPECT_NE(message_of([&] { x.slice(0, 0, 0).amax(0); }).find("amax"), std::string::npos);
    EXPECT_NE(message_of([&] { at::linalg_vector_norm(integers, 3); }).find("floating point"), std::string::npos);
    EXPECT_NE(message_of([&] { integers.softmax(0); }).find("not implemented for"), std::string::npos);
    EXPECT_EQ(full_tensor(integers.sum()).item<int64_t>(), make_tensor({9, 4}, 1, at::kLong).sum().item<int64_t>());
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_reduce
