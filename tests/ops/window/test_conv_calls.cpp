// SPDX-License-Identifier: Apache-2.0
// The ways to call convolution, and what it moves: S02 S07.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_conv_calls {
namespace {

// S07: functional code of the user's own, through the composite operators, with padding modes
// "same" and numbers.
TEST(Convolution, UnmodifiedCodeRunsOnShards) {
  const auto program = [](const std::vector<at::Tensor>& t) {
    at::Tensor y = at::conv2d(t[0], t[1], t[2], 1, "same").tanh();
    y = at::conv2d(y, t[1], t[2], {2, 1}, {1, 1}).relu();
    return std::vector<at::Tensor>{at::conv_transpose2d(y, t[1], {}, {2, 1}, {1, 1}), at::conv2d(t[0][0], t[1], t[2])};
  };
  for (const auto& placement : {shard(2, {5, 6}), shard(2, {10, 1}), shard(3)}) {
    expect_same_as_plain({2},
                         {{.full = make_tensor({2, 3, 11, 6}, 1), .placements = {placement}},
                          {.full = make_tensor({3, 3, 3, 3}, 2), .plain = true},
                          {.full = make_tensor({3}, 3), .plain = true}},
                         program);
  }
}

// Other kernels of LibTorch are behind these types.
TEST(Convolution, OtherTypes) {
  const auto program = [](const std::vector<at::Tensor>& t) {
    return std::vector<at::Tensor>{at::conv2d(t[0], t[1], t[2], 1, 1), at::conv2d(t[0], t[1], t[2], 2, 1),
                                   at::conv_transpose2d(t[0], t[1], t[2], 2, 1, 1)};
  };
  for (const auto& [dtype, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
           {at::kFloat, 1e-5}, {at::kBFloat16, 0.2}, {at::kComplexDouble, 1e-10}}) {
    for (const auto& [mesh, placements] : std::vector<std::pair<std::vector<int64_t>, std::vector<Placement>>>{
             {{3}, {shard(2, {9, 0, 10})}}, {{2}, {shard(3)}}, {{2, 2}, {shard(2, {3, 16}), shard(3)}}}) {
      SCOPED_TRACE(dtype);
      expect_same_as_plain(mesh,
                           {{.full = make_tensor({2, 8, 19, 16}, 1, dtype), .placements = placements},
                            {.full = make_tensor({8, 8, 3, 3}, 2, dtype)},
                            {.full = make_tensor({8}, 3, dtype), .plain = true}},
                           program, {.tolerance = tolerance});
    }
  }
}

TEST(Convolution, RunsInInferenceMode) {
  const at::Tensor x = make_tensor({1, 2, 9, 4}, 1), w = make_tensor({3, 2, 3, 3}, 2);
  const at::Tensor expected = at::conv2d(x, w, {}, 1, 1);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const c10::InferenceMode inference;
    const at::Tensor y = at::conv2d(shard_of(x, mesh, {shard(2, {5, 4})}), w, {}, 1, 1);
    EXPECT_EQ(difference(full_tensor(y), expected, 1e-12), "");
  });
}

// S02: an output row is where the centre of its window is.
TEST(Convolution, RecordsTheCutOfItsOutput) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 1, 17}, 1), mesh, {shard(2, {6, 6, 5})}),
                     w = make_tensor({1, 1, 3}, 2);
    EXPECT_EQ(sharding_sizes(at::conv1d(x, w, {}, 1, 1)).at(0), (std::vector<int64_t>{6, 6, 5}));
    EXPECT_EQ(sharding_sizes(at::conv1d(x, w, {}, 2, 1)).at(0), (std::vector<int64_t>{3, 3, 3}));
    EXPECT_EQ(sharding_sizes(at::conv1d(x, w)).at(0), (std::vector<int64_t>{5, 6, 4}));
  });
}

// A convolution without a halo, or of a dim that is not cut, moves nothing.
TEST(Convolution, MovesOnlyTheHalo) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const auto bytes = [&](const at::Tensor& x, const at::Tensor& w, int64_t stride, int64_t padding) {
      const at::NoGradGuard no_grad;
      mesh->group().reset_stats();
      at::convolution(x, w, {}, {stride, 1}, {padding, padding}, {1, 1}, false, {0, 0}, 1);
      return mesh->group().stats().by_kind[CommStats::kExchange].bytes;
    };
    const at::Tensor x = shard_of(make_tensor({1, 2, 8, 5}, 1), mesh, {shard(2)});
    EXPECT_EQ(bytes(x, make_tensor({2, 2, 1, 3}, 2), 1, 0), 0);
    EXPECT_EQ(bytes(x, make_tensor({2, 2, 2, 1}, 2), 2, 0), 0);
    EXPECT_EQ(bytes(x, make_tensor({2, 2, 3, 3}, 2), 1, 1), 1 * 2 * 1 * 5 * 8);
  });
}

/// The largest tensor that LibTorch's allocator gives out on this thread.
struct LargestBlock : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    largest = std::max(largest, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t largest = 0;
};

// Left to itself, LibTorch would unfold thin strips into columns, 27 times their size.
TEST(Convolution, ThinStripsOfVolumesTakeNoMoreMemoryThanTheirBlocks) {
  const auto program = [](const std::vector<at::Tensor>& t) {
    return std::vector<at::Tensor>{at::conv3d(t[0], t[1], t[2], 1, {1, 1, 2}, {1, 1, 2}),
                                   at::conv3d(t[0], t[1], t[2], {2, 1, 1}, 1),
                                   at::conv_transpose3d(t[0], t[1], t[2], {1, 1, 2}, 1, {0, 0, 1})};
  };
  const at::Tensor x = make_tensor({1, 8, 12, 52, 56}, 1, at::kFloat), w = make_tensor({8, 8, 3, 3, 3}, 2, at::kFloat),
                   b = make_tensor({8}, 3, at::kFloat);
  // Above the usual 1e-5: a weight's gradient adds 35,000 float32 products of both signs, in another order on blocks.
  expect_same_as_plain(
      {3}, {{.full = x, .placements = {shard(2, {5, 3, 4})}}, {.full = w, .plain = true}, {.full = b, .plain = true}},
      program, {.tolerance = 1e-3});
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor block = shard_of(x, mesh, {shard(2)});
    auto counter = std::make_shared<LargestBlock>();
    {
      const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counter);
      const at::Tensor y = at::conv3d(block, w, b, 1, 1);
      at::convolution_backward(y, block, w, at::IntArrayRef{8}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, false, {0, 0, 0}, 1,
                               {true, true, true});
    }
    EXPECT_LE(counter->largest, 2 * static_cast<int64_t>(to_local(block).nbytes()));
  });
}

TEST(Convolution, RefusesShapesThatDoNotFit) {
  const auto message = [](at::IntArrayRef w, int64_t groups) {
    return message_of([&] {
      on_mesh({2}, [&](const MeshPtr& mesh) {
        at::convolution(shard_of(make_tensor({1, 4, 8}, 1), mesh, {shard(2)}), make_tensor(w, 2), {}, {1}, {0}, {1},
                        false, {0}, groups);
      });
    });
  };
  EXPECT_THAT(message({2, 3, 3}, 1), ::testing::HasSubstr("convolution: the input has 4 channels, the weight takes 3"));
  EXPECT_THAT(message({3, 2, 3}, 2),
              ::testing::HasSubstr("convolution: the weight's 3 channels do not divide into 2 groups"));
  EXPECT_THAT(message({2, 4, 9}, 1), ::testing::HasSubstr("convolution: a window of 9 rows along dim 2"));
}

// Also on a rank that has no rows.
TEST(Convolution, RefusesListsBiasesAndTypesOnEveryRankAlike) {
  const at::Tensor w = make_tensor({3, 2, 3, 3, 3}, 2), bias = make_tensor({3}, 3);
  const auto convolve = [](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& b, at::IntArrayRef stride,
                           at::IntArrayRef padding, at::IntArrayRef dilation) {
    at::convolution(x, weight, b, stride, padding, dilation, false, {0}, 1);
  };
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 2, 4, 5, 6}, 1), mesh, {shard(2, {4, 0})});
    const auto refused = [&](const std::string& text, const auto&... arguments) {
      EXPECT_THAT(message_of([&] { convolve(x, arguments...); }), ::testing::StartsWith(text));
    };
    using Ints = std::vector<int64_t>;
    const Ints one{1};
    refused("convolution: stride has 2 numbers for 3 dims", w, bias, Ints{1, 1}, one, one);
    refused("convolution: padding has 4 numbers for 3 dims", w, bias, one, Ints{1, 1, 1, 1}, one);
    refused("convolution: dilation has 0 numbers for 3 dims", w, bias, one, one, Ints{});
    refused("convolution: a bias of shape [2] for 3 output channels", w, bias.narrow(0, 0, 2), one, one, one);
    refused("convolution: a bias of shape [1, 3] for 3 output channels", w, bias.unsqueeze(0), one, one, one);
    refused("convolution: the input is Double, the weight Float", w.to(at::kFloat), bias, one, one, one);
    refused("convolution: the input is Double, the bias Float", w, bias.to(at::kFloat), one, one, one);
  });
}

TEST(Convolution, RefusesOutputPaddingThatAStrideCannotLeaveOpen) {
  const at::Tensor w = make_tensor({2, 3, 3, 3}, 2);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(make_tensor({1, 2, 5, 4}, 1), mesh, {shard(2, {5, 0})});
    const auto refused = [&](at::IntArrayRef stride, at::IntArrayRef output_padding, at::IntArrayRef dilation) {
      EXPECT_THAT(message_of([&] { at::conv_transpose2d(x, w, {}, stride, 1, output_padding, 1, dilation); }),
                  ::testing::HasSubstr("is not below the stride"));
    };
    refused({2, 2}, {2, 0}, {1, 1});
    refused({1, 2}, {0, 3}, {1, 2});
    refused({2, 2}, {-1, 0}, {1, 1});
    // One below the larger of stride and dilation is the last that is taken.
    EXPECT_EQ(at::conv_transpose2d(x, w, {}, {2, 1}, 1, {1, 2}, 1, {1, 3}).size(3), 4 - 1 - 2 + 7 + 2);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_conv_calls
