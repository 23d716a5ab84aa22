// SPDX-License-Identifier: Apache-2.0
// Pooling, folding, resampling, padding and shuffling over whole tables of arguments in 1 to 3 dims, on uneven, empty
// and thin blocks, against the whole tensor, with gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "moonhalo/engine/base/text.h"
#include "tests/support/named_cases.h"

namespace moonhalo::testing::test_window_tables {
namespace {

using Sizes = std::vector<int64_t>;

struct Cut {
  Sizes mesh;
  std::vector<Placement> placements;
  int64_t least_dims = 1;
};

// Blocks of [2, 3, 11], [2, 3, 11, 6] and [2, 3, 11, 6, 4].
const Cut kCuts[] = {
    {{2}, {shard(2, {5, 6})}},
    {{2}, {shard(2, {1, 10})}},
    {{3}, {shard(2, {4, 0, 7})}},
    {{4}, {shard(2, {2, 2, 2, 5})}},
    {{2, 2}, {replicate(), shard(2, {8, 3})}},
    {{2, 2}, {shard(0), shard(2, {3, 8})}},
    {{2, 2}, {shard(2, {5, 6}), shard(3, {1, 5})}, 2},
    {{3, 2}, {shard(2, {1, 9, 1}), shard(3, {6, 0})}, 2},
    {{2, 2, 2}, {shard(2, {7, 4}), shard(3, {2, 4}), shard(4, {3, 1})}, 3},
};

// A table's programs, each on the next two cuts in turn.
class Table {
 public:
  explicit Table(int64_t dims, at::ScalarType dtype = at::kDouble) : dims_(dims) {
    Sizes shape = {2, 3, 11, 6, 4};
    shape.resize(dims + 2);
    full_ = make_tensor(shape, dims, dtype);
  }

  void add(const std::string& name, const Program& program) {
    for (int i = 0; i < 2; ++i) {
      const Cut* cut = nullptr;
      do cut = &kCuts[turn_++ % std::size(kCuts)];
      while (cut->least_dims > dims_);
      cases_[cut->mesh].push_back({std::to_string(dims_) + "-D " + name + ", " + cut->placements.back().to_string(),
                                   {{.full = full_, .placements = cut->placements}},
                                   program});
    }
  }

  void check(const Oracle& options = {}) const {
    for (const auto& [mesh, cases] : cases_) expect_each_same_as_plain(mesh, cases, options);
  }

  /// A number for each dim: `first` for the rows.
  Sizes with_others(int64_t first, int64_t second, int64_t third) const {
    Sizes all = {first, second, third};
    all.resize(dims_);
    return all;
  }

 private:
  int64_t dims_;
  at::Tensor full_;
  size_t turn_ = 0;
  std::map<Sizes, std::vector<NamedCase>> cases_;
};

std::string text(const char* what, const Sizes& numbers) { return what + shape_string(numbers); }

class WindowTables : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, WindowTables, ::testing::Values(1, 2, 3));

Tensors max_pool(const at::Tensor& x, const Sizes& kernel, const Sizes& stride, const Sizes& padding,
                 const Sizes& dilation, bool ceil_mode) {
  auto [values, indices] =
      kernel.size() == 1   ? at::max_pool1d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
      : kernel.size() == 2 ? at::max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
                           : at::max_pool3d_with_indices(x, kernel, stride, padding, dilation, ceil_mode);
  return {values, indices};
}

Tensors avg_pool(const at::Tensor& x, const Sizes& kernel, const Sizes& stride, const Sizes& padding, bool ceil_mode) {
  Tensors all;
  for (const bool include : {true, false}) {
    if (kernel.size() == 1) {
      all.push_back(at::avg_pool1d(x, kernel, stride, padding, ceil_mode, include));
      continue;
    }
    for (const std::optional<int64_t> divisor : {std::optional<int64_t>(), std::optional<int64_t>(5)}) {
      all.push_back(kernel.size() == 2 ? at::avg_pool2d(x, kernel, stride, padding, ceil_mode, include, divisor)
                                       : at::avg_pool3d(x, kernel, stride, padding, ceil_mode, include, divisor));
    }
  }
  return all;
}

TEST_P(WindowTables, X03_X05_PoolingOfEveryWindow) {
  Table maxima(GetParam()), means(GetParam());
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t stride = 1; stride <= 3; ++stride) {
      for (int64_t padding = 0; padding <= kernel / 2; ++padding) {
        for (const bool ceil_mode : {false, true}) {
          const Sizes k = maxima.with_others(kernel, 2, 2), s = maxima.with_others(stride, 2, 1),
                      p = maxima.with_others(padding, 1, 0);
          const std::string name =
              text("kernel ", k) + text(" stride ", s) + text(" padding ", p) + (ceil_mode ? " ceil" : "");
          means.add("mean " + name, [=](const Tensors& t) { return avg_pool(t[0], k, s, p, ceil_mode); });
          for (int64_t dilation = 1; dilation <= 3; ++dilation) {
            if (dilation * (kernel - 1) + 1 > 11 + 2 * padding) continue;
            const Sizes d = maxima.with_others(dilation, 1, 2);
            maxima.add("maximum " + name + text(" dilation ", d),
                       [=](const Tensors& t) { return max_pool(t[0], k, s, p, d, ceil_mode); });
          }
        }
      }
    }
  }

  maxima.check();
  means.check();
}

TEST_P(WindowTables, X03_AdaptivePoolingToEverySize) {
  const int64_t dims = GetParam();
  Table table(dims);
  for (int64_t rows = 1; rows <= 13; ++rows) {
    for (const auto& [columns, layers] : {std::pair<int64_t, int64_t>{1, 1}, {5, 3}, {7, 4}}) {
      const Sizes size = table.with_others(rows, columns, layers);
      table.add(text("adaptive ", size), [=](const Tensors& t) {
        auto [values, indices] = dims == 1   ? at::adaptive_max_pool1d(t[0], size)
                                 : dims == 2 ? at::adaptive_max_pool2d(t[0], size)
                                             : at::adaptive_max_pool3d(t[0], size);
        return Tensors{dims == 1   ? at::adaptive_avg_pool1d(t[0], size)
                       : dims == 2 ? at::adaptive_avg_pool2d(t[0], size)
                                   : at::adaptive_avg_pool3d(t[0], size),
                       values, indices};
      });
    }
  }

  table.check();
}

TEST(WindowTables, X03_UnfoldAndFoldOfEveryWindow) {
  Table table(2);
  for (int64_t kernel = 1; kernel <= 7; ++kernel) {
    for (int64_t stride = 1; stride <= 3; ++stride) {
      for (int64_t dilation = 1; dilation <= 3; ++dilation) {
        for (int64_t padding = 0; padding <= 3; ++padding) {
          if (dilation * (kernel - 1) + 1 > 11 + 2 * padding) continue;
          const Sizes k = {kernel, 2}, s = {stride, 2}, d = {dilation, 1}, p = {padding, 1};
          table.add(text("unfold ", k) + text(" stride ", s) + text(" dilation ", d) + text(" padding ", p),
                    [=](const Tensors& t) {
                      const at::Tensor blocks = at::im2col(t[0], k, d, p, s);
                      return Tensors{blocks, at::col2im(blocks * blocks, {11, 6}, k, d, p, s)};
                    });
        }
      }
    }
  }

  table.check();
}

TEST_P(WindowTables, X03_ResamplingToEverySizeInEveryMode) {
  const int64_t dims = GetParam();
  Table table(dims);
  for (int64_t rows = 1; rows <= 34; ++rows) {
    // LibTorch's antialiasing to a single column is itself wrong where the rows change too.
    const Sizes size = table.with_others(rows, 2 + rows * 5 % 12, 1 + rows * 3 % 7);
    table.add(text("resampled to ", size), [=](const Tensors& t) {
      const at::Tensor& x = t[0];
      if (dims == 1)
        return Tensors{at::upsample_nearest1d(x, size), at::_upsample_nearest_exact1d(x, size),
                       at::upsample_linear1d(x, size, false), at::upsample_linear1d(x, size, true)};
      if (dims == 3)
        return Tensors{at::upsample_nearest3d(x, size), at::_upsample_nearest_exact3d(x, size),
                       at::upsample_trilinear3d(x, size, false), at::upsample_trilinear3d(x, size, true)};
      return Tensors{at::upsample_nearest2d(x, size),
                     at::_upsample_nearest_exact2d(x, size),
                     at::upsample_bilinear2d(x, size, false),
                     at::upsample_bilinear2d(x, size, true),
                     at::upsample_bicubic2d(x, size, false),
                     at::upsample_bicubic2d(x, size, true),
                     at::_upsample_bilinear2d_aa(x, size, false),
                     at::_upsample_bilinear2d_aa(x, size, true),
                     at::_upsample_bicubic2d_aa(x, size, false),
                     at::_upsample_bicubic2d_aa(x, size, true)};
    });
  }

  table.check();
}

TEST_P(WindowTables, X03_PaddingOfEveryWidthAndMode) {
  const int64_t dims = GetParam();
  Table table(dims);
  for (const char* mode : {"constant", "circular", "reflect", "replicate"}) {
    const std::string name = mode;
    const int64_t most = name == "reflect" ? 10 : name == "circular" ? 11 : 14;
    for (const int64_t before : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{6}, most}) {
      for (const int64_t after : {int64_t{0}, int64_t{2}, int64_t{5}, most}) {
        Sizes pads = {before, after};  // from the last dim to the first
        if (dims >= 2) pads = {before % 4, after % 3, before, after};
        if (dims == 3) pads.insert(pads.begin(), {after % 2, before % 3});
        table.add(name + text(" padding ", pads), [=](const Tensors& t) { return Tensors{at::pad(t[0], pads, name)}; });
      }
    }
  }

  table.check({.double_backward = true});
}

TEST(WindowTables, X03_PixelsShuffledByEveryFactor) {
  const std::vector<std::pair<Sizes, std::vector<Placement>>> cuts = {
      {{2}, {shard(1, {5, 31})}},     {{3}, {shard(1, {18, 0, 18})}},
      {{2}, {shard(2, {1, 11})}},     {{3}, {shard(2, {4, 0, 8})}},
      {{2}, {shard(2, {5, 7})}},      {{2, 2}, {shard(2, {2, 10}), shard(3, {5, 1})}},
      {{2, 2}, {shard(0), shard(3)}}, {{2, 2}, {replicate(), shard(1)}},
  };
  for (const auto& [mesh, placements] : cuts) {
    std::vector<NamedCase> cases;
    for (const int64_t factor : {1, 2, 3, 6}) {
      cases.push_back({"factor " + std::to_string(factor) + " " + placements.back().to_string(),
                       {{.full = make_tensor({2, 36, 12, 6}, 1), .placements = placements}},
                       [factor](const Tensors& t) {
                         return Tensors{at::pixel_shuffle(t[0], factor), at::pixel_unshuffle(t[0], factor),
                                        at::channel_shuffle(t[0], factor)};
                       }});
    }
    expect_each_same_as_plain(mesh, cases);
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_window_tables
