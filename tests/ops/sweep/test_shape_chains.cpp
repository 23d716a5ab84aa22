// SPDX-License-Identifier: Apache-2.0
// Random chains of shape operators on randomly cut tensors, against one device: features S20, S26.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_shape_chains {
namespace {

using at::Tensor;

class Dice {
 public:
  explicit Dice(int64_t seed) : engine_(static_cast<uint64_t>(seed)) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }

 private:
  std::mt19937_64 engine_;
};

std::vector<int64_t> random_sizes(Dice& dice, int64_t extent, int64_t blocks) {
  std::vector<int64_t> ends{0, extent}, sizes;
  for (int64_t b = 1; b < blocks; ++b) ends.push_back(dice.below(extent + 1));
  std::sort(ends.begin(), ends.end());
  for (size_t b = 1; b < ends.size(); ++b) sizes.push_back(ends[b] - ends[b - 1]);
  return sizes;
}

// Splits the number of elements into dims in another way.
std::vector<int64_t> random_shape(Dice& dice, int64_t numel) {
  std::vector<int64_t> shape;
  for (int64_t p = 2; numel > 1; ++p) {
    for (; numel % p == 0; numel /= p) {
      if (!shape.empty() && dice.below(2) == 0) {
        shape[dice.below(static_cast<int64_t>(shape.size()))] *= p;
      } else {
        shape.insert(shape.begin() + dice.below(static_cast<int64_t>(shape.size()) + 1), p);
      }
    }
  }
  if (dice.below(3) == 0) {
    shape.insert(shape.begin() + dice.below(static_cast<int64_t>(shape.size()) + 1), 1);
  }
  return shape;
}

Tensor step(Dice& dice, const Tensor& x, const Tensor& start) {
  const int64_t kind = dice.below(12);
  if (kind == 0) return x.reshape(random_shape(dice, x.numel()));
  if (kind == 1) return x.unsqueeze(dice.below(x.dim() + 1));
  if (kind == 2) return at::cat({x.flatten(), start.flatten()});
  if (x.dim() == 0) return x * 2;
  const int64_t dim = dice.below(x.dim()), extent = x.size(dim);
  switch (kind) {
    case 3:
      return x.transpose(dim, dice.below(x.dim()));
    case 4: {
      const int64_t begin = dice.below(extent), end = begin + 1 + dice.below(extent - begin);
      return x.slice(dim, begin, end, 1 + dice.below(3));
    }
    case 5:
      return extent > 2 ? x.select(dim, dice.below(extent)) : x.squeeze();
    case 6:
      return at::cat({x, x.flip({dim})}, dim);
    case 7:
      return x.roll(dice.below(2 * extent) - extent, dim);
    case 8: {
      std::vector<int64_t> pad(2 * x.dim(), 0);
      pad[2 * (x.dim() - 1 - dim)] = dice.below(3);
      pad[2 * (x.dim() - 1 - dim) + 1] = dice.below(extent) - extent + 1;
      return at::constant_pad_nd(x, pad);
    }
    case 9: {
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < 3; ++i) rows.push_back(dice.below(extent));
      return x.index_select(dim, at::tensor(rows, at::kLong));
    }
    case 10:
      return x.numel() > 400 ? x.sum(dim, true) : x.repeat_interleave(2, dim);
    default: {
      Tensor y = x * 1.5;
      y.narrow(dim, extent / 2, 1).mul_(2);
      return y;
    }
  }
}

Tensor chain(int64_t seed, const Tensor& start) {
  Dice dice(seed);
  Tensor x = start;
  for (int64_t i = 0; i < 6; ++i) {
    x = step(dice, x, start);
    if (x.numel() > 2000) x = x.flatten().slice(0, 0, 500);
  }
  return x * x * x;
}

// Two writes through chains of views, of which some share memory and some are copies, each with a value that needs a
// gradient.
Tensor writes(int64_t seed, const Tensor& start) {
  Dice dice(seed);
  Tensor y = start * 1.5;
  for (int64_t i = 0; i < 2; ++i) {
    Tensor view = y, value = start * start;
    for (int64_t links = 1 + dice.below(4); links > 0; --links) {
      const int64_t dim = dice.below(view.dim()), other = dice.below(view.dim());
      const int64_t begin = dice.below(view.size(dim)), steps = 1 + dice.below(2);
      const int64_t kind = dice.below(view.dim() > 1 ? 5 : 3), even = view.size(dim) % 2 == 0 ? 2 : 1;
      for (Tensor* t : {&view, &value}) {
        *t = kind == 0   ? t->transpose(dim, other)
             : kind == 1 ? t->unsqueeze(dim)
             : kind == 2 ? t->slice(dim, begin, 100, steps)
             : kind == 3 ? t->select(dim, begin)
                         : t->unflatten(dim, {even, -1});
      }
    }
    dice.below(2) == 0 ? view.mul_(value) : view.copy_(value);
  }
  return y * y * start;
}

void on_random_cuts(int64_t seeds, const std::function<Tensor(int64_t seed, const Tensor& x)>& program) {
  for (int64_t seed = 0; seed < seeds; ++seed) {
    Dice dice(1000 + seed);
    const std::vector<int64_t> meshes[] = {{2}, {3}, {4}, {2, 2}};
    const auto& mesh = meshes[dice.below(4)];
    const std::vector<int64_t> shape = random_shape(dice, dice.below(2) == 0 ? 72 : 90);
    std::vector<Placement> placements;
    std::vector<int64_t> cut_by(shape.size(), 1);
    for (const int64_t ranks : mesh) {
      const int64_t dim = dice.below(static_cast<int64_t>(shape.size()));
      cut_by[dim] *= ranks;
      placements.push_back(dice.below(6) == 0 ? replicate() : shard(dim, random_sizes(dice, shape[dim], ranks)));
      if (cut_by[dim] > ranks) placements.back().sizes.clear();
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::string thrown = message_of([&] {
      expect_same_as_plain(mesh, {{make_tensor(shape, seed), placements}},
                           [&](const List& x) { return List{program(seed, x[0])}; },
                           {.double_backward = seed % 5 == 0});
    });
    EXPECT_EQ(thrown, "");
  }
}

TEST(ShapeChains, S20_S26_EqualOneDevice) { on_random_cuts(150, chain); }

TEST(ShapeChains, S26_WritesThroughChainsOfViewsEqualOneDevice) { on_random_cuts(100, writes); }

}  // namespace
}  // namespace moonhalo::testing::test_shape_chains
