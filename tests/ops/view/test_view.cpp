// SPDX-License-Identifier: Apache-2.0
// Views over and off the cut dim, and writing through them: features S26, D08.
// Views of dual tensors (_make_dual) are in tests/ops/elementwise/test_forward_mode.cpp.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_view {
namespace {

using at::Tensor;

TEST(View, S26_ViewsEqualThoseOfOneDevice) {
  check(
      {
          {"flat", [](const Tensor& x) { return List{cubed(x.view(-1))}; }, kTwice},
          {"of_a_result", [](const Tensor& x) { return List{cubed(cubed(x).view({-1}))}; }},
          {"merge_front",
           [](const Tensor& x) {
             return List{cubed(x).view({63, 2})};
           }},
          {"merge_back", [](const Tensor& x) { return List{cubed(x).flatten(1)}; }},
          {"split_rows",
           [](const Tensor& x) {
             return List{cubed(x).view({3, 3, 7, 2})};
           },
           kTwice},
          {"split_last",
           [](const Tensor& x) {
             return List{cubed(x).view({9, 7, 1, 2, 1})};
           }},
          {"regroup",
           [](const Tensor& x) {
             return List{cubed(x).reshape({7, 9, 2})};
           }},
          {"ones",
           [](const Tensor& x) {
             return List{cubed(x).view({1, 9, 1, 7, 2, 1})};
           }},
          {"and_back",
           [](const Tensor& x) {
             return List{cubed(x.view({3, 42}).view({9, 7, 2}))};
           }},
          {"same",
           [](const Tensor& x) {
             return List{cubed(x.view({9, 7, 2}))};
           }},
          {"view_as",
           [](const Tensor& x) {
             return List{cubed(x.view_as(at::empty({63, 2})))};
           }},
          {"unflatten",
           [](const Tensor& x) {
             return List{cubed(x).unflatten(0, {3, 3}).sum(1)};
           }},
          {"of_a_slice", [](const Tensor& x) { return List{cubed(x.narrow(1, 1, 4).reshape({-1}))}; }},
          {"of_a_transpose", [](const Tensor& x) { return List{cubed(x.transpose(0, 1).reshape({-1}))}; }},
          {"contiguous",
           [](const Tensor& x) {
             return List{cubed(x.permute({2, 0, 1}).contiguous().view({-1, 7}))};
           }},
          {"dtype",
           [](const Tensor& x) {
             return List{x.detach().view(at::kLong), x.detach().view(at::kFloat)};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 1));
}

TEST(View, S26_DimsAreRearranged) {
  check(
      {
          {"permute",
           [](const Tensor& x) {
             return List{cubed(x.permute({2, 0, -2}))};
           },
           kTwice},
          {"transpose", [](const Tensor& x) { return List{cubed(x).transpose(0, -1) * 2}; }},
          {"t", [](const Tensor& x) { return List{cubed(x).select(2, 0).t() * 2}; }},
          {"movedim", [](const Tensor& x) { return List{cubed(x).movedim(0, 2)}; }},
          {"mT",
           [](const Tensor& x) {
             return List{cubed(x).mT(), cubed(x).swapaxes(0, 1)};
           }},
          {"unsqueeze",
           [](const Tensor& x) {
             return List{cubed(x).unsqueeze(0), cubed(x).unsqueeze(-1)};
           },
           kTwice},
          {"squeeze",
           [](const Tensor& x) {
             return List{cubed(x).unsqueeze(1).squeeze(), cubed(x).squeeze(0)};
           }},
          {"squeeze_sum", [](const Tensor& x) { return List{cubed(x).sum(0, true).squeeze(0)}; }},
          {"squeeze_dims",
           [](const Tensor& x) {
             return List{cubed(x).sum(1, true).unsqueeze(0).squeeze({0, 2})};
           }},
          {"squeeze_cut_one", [](const Tensor& x) { return List{cubed(x).narrow(0, 4, 1).squeeze(0)}; }},
          {"diagonal", [](const Tensor& x) { return List{cubed(x).diagonal(1, 0, 1)}; }, kTwice},
          {"diagonal_back", [](const Tensor& x) { return List{cubed(x).diagonal(0, 1, 2)}; }},
          {"alias",
           [](const Tensor& x) {
             return List{cubed(x.alias()), x.detach()};
           }},
          {"copies",
           [](const Tensor& x) {
             return List{at::view_copy(x, {63, 2}), at::permute_copy(x, {1, 0, 2}),   at::unsqueeze_copy(x, 1),
                         at::squeeze_copy(x),       at::expand_copy(x, {2, 9, 7, 2}), at::t_copy(x.select(2, 1))};
           }},
      },
      make_tensor({9, 7, 2}, 2));
}

TEST(View, WindowsOffTheCutAndShuffledPixels) {
  const std::vector<PlacementCase> columns{{"columns", {2}, {shard(1, {2, 5})}}, {"empty", {3}, {shard(1, {4, 0, 3})}}};
  check({{"unfold", [](const Tensor& x) { return List{cubed(x.unfold(0, 3, 2))}; }, kTwice}}, make_tensor({9, 7, 2}, 3),
        columns);
  std::vector<PlacementCase> pictures{{"channels", {2}, {shard(0, {3, 5})}},
                                      {"rows", {2}, {shard(1, {1, 3})}},
                                      {"empty", {3}, {shard(1, {2, 0, 2})}},
                                      {"grid", {2, 2}, {shard(1), shard(2, {1, 5})}},
                                      {"partial", {2}, {partial()}}};
  check({{"shuffle", [](const Tensor& x) { return List{cubed(at::pixel_shuffle(x, 2))}; }, kTwice},
         {"unshuffle", [](const Tensor& x) { return List{cubed(at::pixel_unshuffle(x, 2))}; }, kTwice}},
        make_tensor({8, 4, 6}, 3), pictures);
}

TEST(View, S26_ExpandIsSummedBack) {
  check(
      {
          {"new_dim",
           [](const Tensor& x) {
             return List{cubed(x.expand({3, 9, 7, 2}))};
           },
           kTwice},
          {"keeps",
           [](const Tensor& x) {
             return List{cubed(x.unsqueeze(1).expand({-1, 4, -1, 2}))};
           }},
          {"cut_one",
           [](const Tensor& x) {
             return List{cubed(x.narrow(0, 4, 1).expand({9, 7, 2})) + x};
           }},
          {"of_a_sum",
           [](const Tensor& x) {
             return List{cubed(cubed(x).sum(0, true).expand({9, 7, 2})) * x};
           },
           kTwice},
          {"expand_as", [](const Tensor& x) { return List{x.sum().expand_as(x) * x}; }},
          {"broadcast",
           [](const Tensor& x) {
             return List{at::broadcast_to(x.mean(at::IntArrayRef{0, 1}), {9, 7, 2}) * x};
           }},
      },
      make_tensor({9, 7, 2}, 3));
}

TEST(View, ComplexAndItsParts) {
  check(
      {
          {"real_imag",
           [](const Tensor& x) {
             return List{cubed(at::real(x)), cubed(at::imag(x))};
           }},
          {"conj",
           [](const Tensor& x) {
             return List{x * x.conj(), x.conj().sum(0)};
           }},
          {"view_as_real", [](const Tensor& x) { return List{cubed(at::view_as_real(x))}; }},
      },
      make_tensor({9, 7, 2}, 4, at::kComplexDouble));
  check({{"view_as_complex", [](const Tensor& x) { return List{at::view_as_complex(x) * at::view_as_complex(x)}; }}},
        make_tensor({9, 7, 2}, 5));
}

TEST(View, AsStridedStepsAlongDims) {
  check(
      {
          {"whole",
           [](const Tensor& x) {
             return List{cubed(cubed(x).as_strided({9, 7, 2}, {14, 2, 1}))};
           }},
          {"transposed",
           [](const Tensor& x) {
             return List{cubed(cubed(x).as_strided({7, 9, 2}, {2, 14, 1}))};
           },
           kTwice},
          {"window",
           [](const Tensor& x) {
             return List{cubed(cubed(x).as_strided({3, 2}, {28, 4}, 14 + 2))};
           }},
          {"expanded",
           [](const Tensor& x) {
             return List{cubed(cubed(x).as_strided({4, 9, 1}, {0, 14, 1}, 5))};
           }},
          {"of_a_transposed",
           [](const Tensor& x) {
             return List{cubed(cubed(x).transpose(0, 1).as_strided({2, 5}, {1, 14}))};
           }},
          {"copy",
           [](const Tensor& x) {
             return List{at::as_strided_copy(cubed(x), {7, 4}, {2, 28}, 1)};
           },
           kForward},
      },
      make_tensor({9, 7, 2}, 6));
}

TEST(View, AsStridedMakesWindowsThatOverlap) {
  const std::vector<Case> cases = {
      {"rows",
       [](const Tensor& x) {
         return List{cubed(cubed(x).as_strided({4, 3, 7, 2}, {28, 14, 2, 1}))};
       },
       kTwice},
      {"columns_in_front",
       [](const Tensor& x) {
         return List{cubed(cubed(x).as_strided({3, 5, 9, 2}, {2, 2, 14, 1}))};
       }},
      {"every_other_row",
       [](const Tensor& x) {
         return List{cubed(cubed(x).as_strided({3, 2, 5}, {14, 28, 2}, 14 + 3))};
       }},
      // Longformer: rows in chunks, of which those of two neighbours are one window.
      {"chunks",
       [](const Tensor& x) {
         return List{cubed(cubed(x).view({3, 3, 14}).as_strided({7, 3, 14}, {14, 14, 1}))};
       }},
      {"chunks_of_a_transposed",
       [](const Tensor& x) {
         return List{cubed(cubed(x).transpose(0, 1).view({7, 3, 3, 2}).as_strided({7, 4, 3, 2}, {2, 28, 14, 1}))};
       }},
      {"elements",
       [](const Tensor& x) {
         return List{cubed(cubed(x).as_strided({9, 5, 3}, {14, 2, 1}))};
       }},
  };
  check(cases, make_tensor({9, 7, 2}, 6));
  check_in_inference_mode(cases, make_tensor({9, 7, 2}, 6));
}

TEST(View, AsStridedThatIsNoViewIsRefused) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor x = shard_of(make_tensor({9, 7, 2}, 6), mesh, {shard(0)});
    const std::string text = message_of([&] { x.as_strided({3, 3, 3}, {1, 1, 1}); });
    EXPECT_EQ(text.rfind("as_strided: size [3, 3, 3], stride [1, 1, 1] and offset 0 do not step along the dims", 0), 0u)
        << text;
    const std::string shape = message_of([&] { x.view({5, 5}); });
    EXPECT_NE(shape.find("shape '[5, 5]' is invalid for input of size 126"), std::string::npos) << shape;
    const std::string name = message_of([&] { Tensor(x).as_strided_({3, 3}, {1, 1}); });
    EXPECT_EQ(name.rfind("as_strided_: the elements of a ShardTensor cannot change their places", 0), 0u) << name;
    Tensor wide = x.clone();
    EXPECT_EQ(wide.unsqueeze_(-1).sizes(), at::IntArrayRef({9, 7, 2, 1}));
    EXPECT_EQ(difference(full_tensor(wide * 2), make_tensor({9, 7, 2, 1}, 6) * 2, 0), "");
  });
}

// LibTorch gives such results the strides of their input in place, by as_strided_.
TEST(View, PoolingToOneElementKeepsTheMemoryFormat) {
  const auto channels_last = [](const at::Tensor& x) { return cubed(x).permute({0, 3, 1, 2}); };
  const std::vector<Case> images = {
      {"2d",
       [&](const Tensor& x) {
         return List{cubed(at::adaptive_avg_pool2d(channels_last(x), {1, 1}))};
       }},
      {"2d_strides",
       [&](const Tensor& x) {
         const Tensor y = at::adaptive_avg_pool2d(channels_last(x), {1, 1});
         return List{at::tensor(y.strides()), at::scalar_tensor(y.is_contiguous(at::MemoryFormat::ChannelsLast))};
       },
       kForward},
      {"2d_in_place",
       [&](const Tensor& x) {
         Tensor y = at::adaptive_avg_pool2d(channels_last(x), {1, 1});
         y.mul_(3);
         return List{y.flatten(1), y.contiguous() * 2};
       },
       kTwice},
      {"1d",
       [](const Tensor& x) { return List{cubed(at::adaptive_avg_pool1d(cubed(x).flatten(1, 2).transpose(1, 2), 1))}; }},
  };
  const std::vector<PlacementCase> ways = {
      {"samples", {3}, {shard(0, {2, 0, 1})}},        {"rows", {2}, {shard(1, {5, 2})}},
      {"columns", {4}, {shard(2, {1, 0, 2, 1})}},     {"channels", {2}, {shard(3, {2, 3})}},
      {"grid", {2, 2}, {shard(0), shard(1, {3, 4})}}, {"partial", {2}, {partial()}},
  };
  check(images, make_tensor({3, 7, 4, 5}, 7), ways);
  check_in_inference_mode(images, make_tensor({3, 7, 4, 5}, 7), ways);
  check({{"3d",
          [](const Tensor& x) {
            return List{cubed(at::adaptive_avg_pool3d(cubed(x).permute({0, 4, 1, 2, 3}), {1, 1, 1}))};
          }}},
        make_tensor({3, 7, 4, 5, 2}, 7), ways);
}

// Views that keep what each rank owns: writing through them is writing to the tensor.
const std::vector<Case> kWrites{
    {"view",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.view({9, 1, 7, 2}).mul_(2);
       return List{y, cubed(y)};
     },
     kTwice},
    {"view_slice",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.view({9, 7, 1, 2}).narrow(1, 3, 4).mul_(x.narrow(1, 0, 4).unsqueeze(2));
       return List{y * y};
     },
     kTwice},
    {"permute",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.permute({2, 0, 1}).add_(1).mul_(x.permute({2, 0, 1}));
       return List{y * y};
     }},
    {"slice",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.narrow(0, 2, 5).mul_(3);
       return List{y * y};
     },
     kTwice},
    {"slice_steps",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.slice(0, 1, 9, 3).slice(1, 0, 7, 2).mul_(x.slice(0, 1, 9, 3).slice(1, 0, 7, 2));
       return List{y * y};
     },
     kTwice},
    {"select_new_dim",
     [](const Tensor& x) {
       Tensor y = cubed(x).unsqueeze(1);
       y.select(1, 0).mul_(3);
       return List{y * y};
     }},
    {"unsqueeze",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.unsqueeze(-1).sub_(x.unsqueeze(-1));
       return List{y * x};
     }},
    {"chain",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       Tensor z = y.transpose(0, 1).narrow(1, 3, 4);
       z.mul_(2);
       y.narrow(0, 0, 5).add_(x.narrow(0, 4, 5));
       return List{y * y, z * z};
     }},
    {"copy_into",
     [](const Tensor& x) {
       Tensor y = x * 0;
       y.narrow(0, 2, 3).copy_(x.narrow(0, 5, 3));
       return List{y * y};
     },
     kTwice},
    {"fill",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.slice(0, 0, 9, 2).fill_(2);
       y.narrow(1, 3, 2).zero_();
       return List{y};
     }},
    {"masked",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.narrow(0, 1, 7).masked_fill_(x.detach().narrow(0, 1, 7).gt(0), 0.5);
       return List{y};
     }},
};

TEST(View, S26_WritingThroughAViewUnderAutograd) { check(kWrites, make_tensor({9, 7, 2}, 7)); }

TEST(View, S26_WritingThroughAViewInInferenceMode) { check_in_inference_mode(kWrites, make_tensor({9, 7, 2}, 8)); }

// A gradient of a replicated weight is such a transposed sum; clipping scales it in place.
TEST(View, ATransposedPartialStaysLazyAndIsNotPartedFromItsBase) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({9, 7}, 9);
    const Tensor x = shard_of(full, mesh, {partial()});
    Tensor y = x.t().detach();
    EXPECT_TRUE(spec(y)->has_partial());
    for (const Tensor& t : {x, y}) {
      const std::string text = message_of([&] { Tensor(t).add_(2); });
      EXPECT_NE(text.find("a Partial ShardTensor that shares memory"), std::string::npos) << text;
    }
    Tensor alone = shard_of(full, mesh, {partial()}).t().detach();
    alone.mul_(2);
    EXPECT_EQ(difference(full_tensor(alone), full.t() * 2, 1e-12), "");
    EXPECT_EQ(difference(full_tensor(x + y.t()), full * 2, 1e-12), "");
  });
}

TEST(View, KeepsTheCutWhereBlocksFallOnRows) {
  struct Kept {
    std::vector<Placement> placements;
    std::vector<int64_t> shape;
    std::string expected;
  };
  const Kept cases[] = {
      {{shard(0, {5, 4})}, {126}, "Shard(0, {70, 56})"},    {{shard(0, {6, 3})}, {3, 3, 14}, "Shard(0, {2, 1})"},
      {{shard(0, {5, 4})}, {3, 3, 14}, "Shard(0, {2, 1})"}, {{shard(1, {5, 2})}, {9, 7, 2, 1}, "Shard(1, {5, 2})"},
      {{shard(1, {5, 2})}, {9, 14}, "Shard(1, {10, 4})"},   {{shard(2, {1, 1})}, {9, 14}, "Shard(1, {8, 6})"},
  };
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (const Kept& c : cases) {
      const Tensor y = shard_of(make_tensor({9, 7, 2}, 9), mesh, c.placements).view(c.shape);
      EXPECT_EQ(spec(y)->placements()[0].to_string(), c.expected);
    }
  });
}

TEST(View, S26_Triangles) {
  check(
      {
          {"tril",
           [](const Tensor& x) {
             return List{cubed(x.permute({2, 0, 1}).tril()), x.permute({2, 0, 1}).tril(-2) * x.permute({2, 0, 1})};
           },
           kTwice},
          {"triu",
           [](const Tensor& x) {
             return List{cubed(x.select(2, 0).triu(1)), x.permute({2, 0, 1}).triu(3)};
           }},
          {"in_place",
           [](const Tensor& x) {
             Tensor y = cubed(x.permute({2, 1, 0}));
             y.triu_(1);
             return List{y * y};
           }},
      },
      make_tensor({9, 7, 2}, 4));
}

}  // namespace
}  // namespace moonhalo::testing::test_view
