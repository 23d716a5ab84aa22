// SPDX-License-Identifier: Apache-2.0
// Indexing by tensors, over and off the cut dim: feature S26.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/sweep.h"

namespace moonhalo::testing::test_index {
namespace {

using at::Tensor;
using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;

Tensor indices(at::IntArrayRef values) { return at::tensor(values, at::kLong); }

TEST(Index, S26_ReadsEqualThoseOfOneDevice) {
  check(
      {
          {"rows",
           [](const Tensor& x) {
             return List{cubed(x.index({indices({8, 0, 3, 3, -1})}))};
           },
           kTwice},
          {"columns",
           [](const Tensor& x) {
             return List{cubed(cubed(x).index({Slice(), indices({6, 0, 2})}))};
           },
           kTwice},
          {"neighbours",
           [](const Tensor& x) {
             return List{cubed(x.index({indices({8, 0, 3}), indices({6, 0, 2})}))};
           }},
          {"apart",
           [](const Tensor& x) {
             return List{cubed(x.index({indices({8, 0, 3}), Slice(), indices({1, 0, 1})}))};
           },
           kTwice},
          {"table",
           [](const Tensor& x) {
             return List{cubed(x.index({Slice(), indices({1, 6, 0, 2}).view({2, 2}), Ellipsis}))};
           }},
          {"broadcast",
           [](const Tensor& x) {
             return List{cubed(x.index({indices({8, 0, 3}).view({3, 1}), indices({6, 0})}))};
           }},
          {"by_cut_index",
           [](const Tensor& x) {
             return List{cubed(x.index({(x.detach().select(1, 0) * 9).abs().floor().to(at::kLong)}))};
           }},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(Index, S26_SelectionsEqualThoseOfOneDevice) {
  check(
      {
          {"index_select",
           [](const Tensor& x) {
             return List{cubed(x.index_select(0, indices({8, 0, 3, 3}))), x.index_select(1, indices({6, 1}))};
           },
           kTwice},
          {"gather_0",
           [](const Tensor& x) { return List{cubed(x.gather(0, (x.detach() * 9).abs().floor().to(at::kLong)))}; },
           kTwice},
          {"gather_1",
           [](const Tensor& x) {
             return List{cubed(x.gather(1, indices({1, 0, 6, 5}).view({2, 2, 1})))};
           }},
          {"take_along_dim",
           [](const Tensor& x) {
             return List{cubed(at::take_along_dim(x, (x.detach() * 7).abs().floor().to(at::kLong), 1))};
           }},
          {"mask",
           [](const Tensor& x) {
             return List{cubed(x.index({x.detach().gt(0.2)})), x.index({x.detach().select(2, 0).gt(0)})};
           }},
          {"masked_select",
           [](const Tensor& x) {
             return List{x.masked_select(x.gt(0.2)), x.gt(0.4).nonzero()};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(Index, IntegersAndBoolsToo) {
  const std::vector<Case> cases{
      {"rows",
       [](const Tensor& x) {
         return List{x.index({indices({8, 0, 3})}), x.index_select(1, indices({5}))};
       },
       kForward},
      {"gather",
       [](const Tensor& x) {
         return List{x.gather(0, indices({8, 0}).view({2, 1, 1}))};
       },
       kForward},
  };
  check(cases, make_tensor({9, 7, 2}, 2, at::kLong));
  check(cases, make_tensor({9, 7, 2}, 2, at::kBool));
}

TEST(Index, S26_WritesEqualThoseOfOneDevice) {
  check(
      {
          {"rows",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({indices({8, 0, -5})}, x.narrow(0, 2, 3) * 2);
             return List{y * y};
           },
           kTwice},
          {"add",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({indices({8, 0, 0, 8})}, x.narrow(0, 2, 4), true);
             return List{y * y};
           }},
          {"functional",
           [](const Tensor& x) {
             return List{cubed(x.index_put({None, indices({6, 0})}, x.narrow(1, 2, 2) * 2)),
                         cubed(x.index_put({indices({6, 0})}, at::scalar_tensor(2.0, at::kDouble)))};
           }},
          {"apart",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({indices({8, 0}), Slice(), indices({1, 0})}, x.select(2, 0).narrow(0, 3, 2));
             return List{y};
           }},
          {"mask",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({x.detach().gt(0.2)}, at::scalar_tensor(2.0, at::kDouble));
             y.index_put_({x.detach().select(2, 0).lt(-0.5)}, at::scalar_tensor(-1.0, at::kDouble));
             return List{y};
           }},
      },
      make_tensor({9, 7, 2}, 3));
}

TEST(Index, S26_AddsCopiesAndScattersEqualThoseOfOneDevice) {
  check(
      {
          {"index_add",
           [](const Tensor& x) {
             return List{cubed(x.index_add(0, indices({8, 0, 8}), x.narrow(0, 1, 3), 2)),
                         cubed(x.index_add(1, indices({3}), x.narrow(1, 0, 1)))};
           },
           kTwice},
          {"index_copy",
           [](const Tensor& x) {
             return List{cubed(x.index_copy(0, indices({8, 1}), x.narrow(0, 1, 2) * 2))};
           }},
          {"index_fill",
           [](const Tensor& x) {
             return List{cubed(x.index_fill(0, indices({8, -9}), 2)), x.index_fill(1, indices({2}), 0)};
           }},
          {"index_add_",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_add_(0, indices({2, 7}), x.narrow(0, 3, 2)).index_fill_(0, indices({3}), 1);
             return List{y * y};
           }},
          {"scatter",
           [](const Tensor& x) {
             return List{cubed(x.scatter(0, indices({8, 1}).view({2, 1, 1}).expand({2, 7, 2}), x.narrow(0, 3, 2)))};
           },
           kTwice},
          {"scatter_value",
           [](const Tensor& x) {
             return List{cubed(x.scatter(0, indices({8, 1}).view({2, 1, 1}).expand({2, 7, 2}), 2.0))};
           }},
          {"scatter_add",
           [](const Tensor& x) {
             return List{
                 cubed(x.scatter_add(1, indices({2, 2, 6}).view({1, 3, 1}).expand({9, 3, 2}), x.narrow(1, 1, 3)))};
           },
           kTwice},
          {"scatter_add_0",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.scatter_add_(0, (x.detach() * 9).abs().floor().to(at::kLong), x);
             return List{y * y};
           }},
          {"scatter_reduce",
           [](const Tensor& x) {
             return List{at::scatter_reduce(x, 0, indices({8, 8}).view({2, 1, 1}).expand({2, 7, 2}), x.narrow(0, 3, 2),
                                            "amax")};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 3));
}

const Oracle kGathered{.fallback = Fallback::kReplicate},
    kGatheredTwice{.double_backward = true, .fallback = Fallback::kReplicate};

// A mask of the rows of `x` along `dim` whose number is a multiple of `n`. It is cut as `x` is.
Tensor every_nth(const Tensor& x, int64_t dim, int64_t n) {
  Tensor row = x.detach();
  for (int64_t d = x.dim(); d-- > 0;) row = d == dim ? row : row.select(d, 0);
  return (row * 0 + at::arange(x.size(dim), row.options())).remainder(n).eq(0);
}

// Masks beside others and beside indices are gathered, whatever is written and however the mask is held.
TEST(Index, S26_WritesByMasksBesideOthers) {
  check(
      {
          {"beside_an_index",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({every_nth(x, 0, 2), indices({1})}, x.narrow(0, 0, 5).select(1, 3));
             y.index_put_({indices({4}), Slice(), every_nth(x, 2, 2)}, x.select(0, 2).narrow(1, 0, 1).t());
             return List{y * y};
           },
           kGatheredTwice},
          {"two",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({every_nth(x, 0, 3), every_nth(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3));
             return List{y * y};
           },
           kGatheredTwice},
          {"two_added",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({every_nth(x, 0, 3), every_nth(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3), true);
             return List{y * y};
           },
           kGathered},
          {"two_functional",
           [](const Tensor& x) {
             return List{cubed(x.index_put({every_nth(x, 0, 3), every_nth(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3)))};
           },
           kGatheredTwice},
          {"read_two",
           [](const Tensor& x) {
             return List{cubed(x.index({every_nth(x, 0, 3), every_nth(x, 1, 3)})),
                         cubed(x.index({every_nth(x, 0, 2), indices({1})}))};
           },
           kGatheredTwice},
          {"bytes",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({every_nth(x, 0, 3).to(at::kByte), every_nth(x, 1, 3)}, x.select(0, 0).narrow(0, 2, 3));
             return List{y * y};
           },
           kGathered},
      },
      make_tensor({9, 7, 2}, 5));
}

TEST(Index, S26_WritesByMasksIntoSumsAndViews) {
  check(
      {
          {"of_sums",
           [](const Tensor& x) {
             Tensor y = x.sum(0), z = x.sum(1);
             y.index_put_({every_nth(x, 1, 3), every_nth(x, 2, 2)}, x.select(0, 1).select(1, 1).narrow(0, 0, 3));
             y.index_put_({every_nth(x, 1, 2)}, x.select(0, 1).narrow(0, 0, 4));
             z.index_put_({every_nth(x, 0, 3), indices({1})}, x.select(1, 1).select(1, 1).narrow(0, 0, 3));
             return List{y * y, z * z};
           },
           kGathered},
          {"through_views",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.transpose(0, 1).index_put_({every_nth(x, 1, 3), every_nth(x, 0, 3)}, x.select(0, 0).narrow(0, 2, 3));
             y.select(0, 3).index_put_({every_nth(x, 1, 2), indices({1})}, x.select(0, 1).narrow(0, 0, 4).select(1, 0));
             y.narrow(0, 1, 4).index_put_({Slice(), every_nth(x, 1, 2), indices({0})},
                                          x.narrow(0, 0, 4).narrow(1, 0, 4).select(2, 1));
             return List{y * y};
           },
           kGathered},
          {"of_no_dims",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.index_put_({Tensor(x.detach().sum().lt(1e9))}, x.narrow(0, 2, 1) * 2);
             y.index_put_({Slice(), x.detach().sum().gt(1e9)}, at::scalar_tensor(5.0, at::kDouble));
             return List{y * y, x.index({x.detach().sum().lt(1e9)})};
           },
           kGathered},
          {"values_of_the_mask",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             const Tensor mask = x.detach().gt(0.2), rows = every_nth(x, 0, 2), columns = every_nth(x, 1, 2);
             y.index_put_({mask}, x.index({mask}) * 2);
             y.index_put_({rows}, x.index({rows}) * 3);
             y.index_put_({Slice(), columns}, x.index({Slice(), columns}) * 2);
             y.index_put_({Slice(), Slice(), every_nth(x, 2, 2)}, x.sum(2, true));
             return List{y * y};
           },
           kGatheredTwice},
      },
      make_tensor({9, 7, 2}, 5));
}

TEST(Index, S26_MaskedScatterAndFill) {
  check(
      {
          {"masked_scatter",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.masked_scatter_(every_nth(x, 0, 2).view({9, 1, 1}), x.narrow(0, 0, 6));
             y.select(0, 3).masked_scatter_(every_nth(x, 1, 2).view({7, 1}), x.select(2, 0));
             return List{y * y, y.masked_scatter(x.detach().gt(0), x * 2)};
           },
           kGathered},
          {"masked_fill",
           [](const Tensor& x) {
             Tensor y = cubed(x);
             y.masked_fill_(every_nth(x, 1, 2).view({7, 1}), x.sum());
             y.select(1, 3).masked_fill_(every_nth(x, 0, 2).view({9, 1}), 2);
             return List{y * y};
           },
           kGathered},
      },
      make_tensor({9, 7, 2}, 5));
}

TEST(Index, RowsThatDoNotExistAreRefusedOnEveryRank) {
  struct Wrong {
    const char* name;
    std::function<void(const Tensor&)> run;
  };
  const Wrong cases[] = {
      {"index",
       [](const Tensor& x) {
         x.index({indices({0, 9})});
       }},
      {"index_put_",
       [](const Tensor& x) {
         Tensor(x).index_put_({indices({-10})}, at::ones({1, 2}, at::kDouble));
       }},
      {"index_select", [](const Tensor& x) { x.index_select(0, indices({-1})); }},
      {"gather",
       [](const Tensor& x) {
         x.gather(0, indices({9, 0}).view({1, 2}));
       }},
      {"embedding", [](const Tensor& x) { at::embedding(x, indices({12})); }},
  };
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({9, 2}, 7), mesh, {shard(0)});
    for (const Wrong& c : cases) {
      const std::string text = message_of([&] { c.run(x); });
      EXPECT_NE(text.find("is out of bounds for dimension 0 with size 9"), std::string::npos) << c.name << ": " << text;
    }
  });
}

TEST(SweepIndex, S26_Take) {
  const Tensor m = make_tensor({5, 7}, 1), places = indices({3, 34, 0, 12, 7, -1}).view({2, 3});
  sweep({
      row("take_places", {m, places}, [](X x, X i) { return x.take(i); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_index
