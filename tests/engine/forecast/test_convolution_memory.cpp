// SPDX-License-Identifier: Apache-2.0
// The memory of real convolutions, beside what their shape rules count.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/convolution_memory.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "tests/support/live_bytes.h"

namespace moonhalo::testing::test_convolution_memory {
namespace {

struct Row {
  std::vector<int64_t> x, weight;
  int64_t stride = 1, groups = 1, dilation = 1;
  bool transposed = false;
  at::ScalarType dtype = at::kFloat;
};

std::string name_of(const Row& row) {
  return ::testing::PrintToString(row.x) + " " + ::testing::PrintToString(row.weight) + ", stride " +
         std::to_string(row.stride) + ", groups " + std::to_string(row.groups) + ", dilation " +
         std::to_string(row.dilation) + (row.transposed ? ", transposed" : "");
}

struct Peaks {
  int64_t forward = 0, of_input = 0, of_weight = 0, of_both = 0;
};

// Peaks of the convolution and of its derivatives, with their results.
Peaks peaks_of(const Row& row, const at::Tensor& x, const at::Tensor& weight) {
  const size_t dims = row.x.size() - 2;
  const std::vector<int64_t> stride(dims, row.stride), dilation(dims, row.dilation), none(dims, 0),
      padding(dims, weight.size(2) / 2 * row.dilation);
  at::Tensor y;
  const auto convolve = [&] {
    y = at::convolution(x, weight, {}, stride, padding, dilation, row.transposed, none, row.groups);
  };
  const auto peak = [](const auto& call) {
    auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    call();
    return live->peak;
  };
  Peaks peaks{peak(convolve)};
  const at::Tensor grad = at::ones_like(y);
  const auto derive = [&](bool for_input, bool for_weight) {
    return peak([&] {
      at::convolution_backward(grad, x, weight, {}, stride, padding, dilation, row.transposed, none, row.groups,
                               {for_input, for_weight, false});
    });
  };
  peaks.of_input = derive(true, false);
  peaks.of_weight = derive(false, true);
  peaks.of_both = derive(true, true);
  return peaks;
}

void expect_real_peaks(const Row& row) {
  SCOPED_TRACE(name_of(row));
  const Peaks real = peaks_of(row, at::ones(row.x, row.dtype), at::ones(row.weight, row.dtype));
  const FakeResults fakes;
  const Peaks fake = peaks_of(row, make_fake(row.x, row.dtype), make_fake(row.weight, row.dtype));
  // A step has the tensors of the call at that time, too.
  const int64_t tensors = c10::multiply_integers(row.x) * static_cast<int64_t>(c10::elementSize(row.dtype));
  const auto expect = [&](const char* which, int64_t counted, int64_t taken) {
    EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(taken), 0.03 * static_cast<double>(taken + tensors))
        << which;
  };
  expect("forward", fake.forward, real.forward);
  expect("derivative of the input", fake.of_input, real.of_input);
  expect("derivative of the weight", fake.of_weight, real.of_weight);
  expect("both derivatives", fake.of_both, real.of_both);
}

// A field of `dims` dims with such channels, and its weight.
Row row_of(size_t dims, int64_t from, int64_t to, int64_t kernel, int64_t groups = 1, int64_t stride = 1) {
  Row row{{2, from}, {to, from / groups}, stride, groups};
  const std::array<std::vector<int64_t>, 4> fields{{{}, {12000}, {120, 104}, {24, 26, 22}}};
  row.x.insert(row.x.end(), fields[dims].begin(), fields[dims].end());
  row.weight.insert(row.weight.end(), dims, kernel);
  return row;
}

TEST(ConvolutionMemory, X14_CopiesInBlocksAreCounted) {
  for (const size_t dims : {1, 2, 3}) {
    for (const int64_t kernel : {1, 3}) {
      expect_real_peaks(row_of(dims, 3, 8, kernel));
      expect_real_peaks(row_of(dims, 8, 8, kernel));
      expect_real_peaks(row_of(dims, 16, 3, kernel));
      expect_real_peaks(row_of(dims, 20, 40, kernel));
      expect_real_peaks(row_of(dims, 32, 32, kernel));
    }
    expect_real_peaks(row_of(dims, 32, 1, 1));
  }
}

TEST(ConvolutionMemory, X14_CopiesOfStridedConvolutionsAreCounted) {
  for (const size_t dims : {2, 3}) {
    for (const int64_t kernel : {1, 2, 3, 5}) {
      expect_real_peaks(row_of(dims, 16, 32, kernel, 1, 2));
      expect_real_peaks(row_of(dims, 20, 40, kernel, 1, 2));
    }
    expect_real_peaks(row_of(dims, 32, 64, 3, 2, 2));
  }
  // Threads have copies of samples of the result.
  expect_real_peaks({{2, 3, 240, 208}, {48, 3, 4, 4}, 4});
  expect_real_peaks({{1, 4, 160, 161}, {64, 4, 3, 3}, 2});
  expect_real_peaks({{2, 3, 40, 36, 38}, {32, 3, 3, 3, 3}, 2});
}

TEST(ConvolutionMemory, X14_CopiesOfConvolutionsByChannelAreCounted) {
  for (const size_t dims : {2, 3}) {
    for (const int64_t kernel : {3, 5, 7}) {
      for (const int64_t channels : {8, 24, 32}) {
        expect_real_peaks(row_of(dims, channels, channels, kernel, channels));
        expect_real_peaks(row_of(dims, channels, channels, kernel, channels, 2));
      }
    }
  }
  for (const int64_t kernel : {1, 3}) expect_real_peaks(row_of(2, 32, 64, kernel, 2));
}

TEST(ConvolutionMemory, X14_CopiesOfTransposedConvolutionsAreCounted) {
  for (const size_t dims : {2, 3}) {
    for (const auto& [from, to] : {std::pair<int64_t, int64_t>{32, 16}, {16, 16}, {40, 20}, {16, 3}}) {
      for (const int64_t stride : {1, 2}) {
        Row row = row_of(dims, from, to, stride == 1 ? 3 : 2, 1, stride);
        row.transposed = true;
        row.weight[0] = from;
        row.weight[1] = to;
        expect_real_peaks(row);
      }
    }
  }
}

TEST(ConvolutionMemory, X14_CopiesOfDilatedConvolutionsAreCounted) {
  for (const size_t dims : {2, 3}) {
    for (const int64_t channels : {3, 16, 20}) {
      Row row = row_of(dims, channels, 32, 3);
      row.dilation = 2;
      expect_real_peaks(row);
    }
  }
}

// LibTorch's own kernels lay out all windows: of small inputs of one sample, and of float64.
TEST(ConvolutionMemory, X14_ColumnsAreCounted) {
  for (const Row& row : {Row{{1, 8, 33, 32, 32}, {8, 8, 3, 3, 3}},
                         {{1, 2, 17, 32, 64}, {8, 2, 3, 3, 3}},
                         {{1, 8, 16, 16, 16}, {4, 8, 1, 1, 1}},
                         {{1, 4, 60, 60}, {8, 4, 3, 3}},
                         {{2, 8, 64, 64}, {8, 8, 3, 3}, 1, 1, 1, false, at::kDouble},
                         {{2, 4, 16, 16, 16}, {4, 4, 3, 3, 3}, 1, 1, 1, false, at::kDouble},
                         {{2, 8, 64, 60}, {16, 4, 3, 3}, 1, 2, 1, false, at::kDouble},
                         {{2, 16, 32, 30}, {16, 8, 2, 2}, 2, 1, 1, true, at::kDouble},
                         {{2, 8, 32, 30}, {8, 16, 3, 3}, 1, 1, 1, true, at::kDouble},
                         {{2, 16, 10, 10, 12}, {16, 8, 2, 2, 2}, 2, 1, 1, true, at::kDouble}})
    expect_real_peaks(row);
}

// A rank may have no rows of a field, which LibTorch's convolution refuses, or no samples.
TEST(ConvolutionMemory, X14_AnEmptyBlockNeedsNoCopies) {
  expect_real_peaks({{0, 8, 16, 16}, {16, 8, 1, 1}});
  expect_real_peaks({{0, 16, 16, 16}, {16, 8, 2, 2}, 2, 1, 1, true});

  const ConvolutionShape no_rows{{2, 8, 0, 16}, {16, 8, 1, 1}, {2, 16, 0, 16}, {1, 1}, {0, 0}, {1, 1}, {0, 0}};
  EXPECT_EQ(convolution_work_space(no_rows), 0);
  EXPECT_EQ(convolution_backward_work_space(no_rows, true, true), 0);
}

}  // namespace
}  // namespace moonhalo::testing::test_convolution_memory
