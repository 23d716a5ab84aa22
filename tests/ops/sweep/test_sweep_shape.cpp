// SPDX-License-Identifier: Apache-2.0
// Views, joins, slices, indexing and rearrangements, however their tensors are held: S20, S26.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_sweep_shape {
namespace {

using at::Tensor;
using at::indexing::None;
using at::indexing::Slice;

const Tensor a = make_tensor({5, 4, 6}, 1), b = make_tensor({5, 4, 6}, 2), m = make_tensor({5, 7}, 3);
const Tensor wide = make_tensor({5, 9}, 4), tall = make_tensor({3, 7}, 5), flat = make_tensor({7}, 6);
const Tensor coin = make_tensor({5, 7}, 7, at::kBool), whole = make_tensor({5, 7}, 8, at::kLong);
const Tensor rows = make_tensor({6}, 9, at::kLong).abs().remainder(5);
const Tensor cells = make_tensor({5, 3}, 10, at::kLong).abs().remainder(7), source = make_tensor({5, 3}, 11);
const Tensor picks = make_tensor({6, 7}, 12, at::kLong).abs().remainder(5), table = make_tensor({6, 3}, 13);
const Tensor square = make_tensor({6, 6}, 14), one = make_tensor({}, 15),
             wave = make_tensor({5, 4}, 16, at::kComplexDouble);
const Allowed kForward{.backward = false};

TEST(SweepShape, S26_Views) {
  sweep({
      row("permute", {a},
          [](X x) {
            return x.permute({2, 0, 1}) * 2;
          }),
      row("transpose", {a},
          [](X x) {
            return List{x.transpose(0, 1), x.transpose(-1, 0), x.mT()};
          }),
      row("movedim", {a},
          [](X x) {
            return List{x.movedim(0, 2), x.swapaxes(0, 1)};
          }),
      row("t", {m}, [](X x) { return x.t(); }),
      row("reshape_merge", {a},
          [](X x) {
            return List{x.reshape({20, 6}), x.reshape({5, 24}), x.reshape({-1})};
          }),
      row("reshape_split", {a},
          [](X x) {
            return List{x.reshape({5, 2, 2, 6}), x.reshape({5, 4, 3, 2}), x.reshape({10, 12})};
          }),
      row("reshape_of_transposed", {a},
          [](X x) {
            return x.transpose(0, 2).reshape({24, 5});
          }),
      row("flatten", {a},
          [](X x) {
            return List{x.flatten(), x.flatten(1), x.flatten(0, 1)};
          }),
      row("unflatten", {a},
          [](X x) {
            return List{x.unflatten(2, {2, 3}), x.unflatten(1, {-1, 2})};
          }),
      row("unsqueeze", {a},
          [](X x) {
            return List{x.unsqueeze(0), x.unsqueeze(2), x.unsqueeze(-1)};
          }),
      row("squeeze", {make_tensor({5, 1, 3}, 17)},
          [](X x) {
            return List{x.squeeze(), x.squeeze(1), x.squeeze(0)};
          }),
      row("view_as_real", {wave},
          [](X x) {
            return List{at::view_as_real(x), x.conj().resolve_conj()};
          }),
      row("contiguous", {a},
          [](X x) {
            return List{x.transpose(0, 2).contiguous(), x.clone(), x.detach()};
          }),
      row("channels_last", {make_tensor({2, 4, 3, 5}, 22)},
          [](X x) { return x.contiguous(at::MemoryFormat::ChannelsLast) * 2; }),
  });
}

TEST(SweepShape, S26_Expansions) {
  sweep({
      row("expand", {make_tensor({5, 1, 3}, 17)},
          [](X x) {
            return List{x.expand({5, 4, 3}), x.expand({2, 5, 1, 3})};
          }),
      row("expand_as", {flat, m}, [](X x, X y) { return x.expand_as(y) * y; }),
      row("expand_scalar", {one},
          [](X x) {
            return x.expand({3, 4}) * 2;
          }),
      row("broadcast_tensors", {m, flat},
          [](X x, X y) {
            return at::broadcast_tensors({x, y});
          }),
      row("meshgrid", {flat, make_tensor({3}, 18)},
          [](X x, X y) {
            return at::meshgrid({x, y}, "ij");
          }),
  });
}

TEST(SweepShape, S26_DiagonalsWindowsAndShuffles) {
  sweep({
      row("diagonal", {m},
          [](X x) {
            return List{x.diagonal(), x.diagonal(1), x.diag(-1)};
          },
          {.other_cut = true}),
      row("diag_embed", {flat},
          [](X x) {
            return List{at::diag_embed(x), at::diag(x)};
          }),
      row("unfold", {a},
          [](X x) {
            return List{x.unfold(0, 3, 1), x.unfold(1, 2, 2), x.unfold(2, 3, 2)};
          },
          {.other_cut = true}),
      row("pixel_shuffle", {make_tensor({2, 8, 3, 5}, 19)}, [](X x) { return at::pixel_shuffle(x, 2); }),
      row("pixel_unshuffle", {make_tensor({2, 2, 4, 6}, 20)}, [](X x) { return at::pixel_unshuffle(x, 2); }),
      row("channel_shuffle", {make_tensor({2, 4, 3, 5}, 21)}, [](X x) { return at::channel_shuffle(x, 2); }),
  });
}

TEST(SweepShape, S26_JoinsAndParts) {
  sweep({
      row("cat_0", {m, tall},
          [](X x, X y) {
            return at::cat({x, y}, 0);
          }),
      row("cat_1", {m, wide},
          [](X x, X y) {
            return at::cat({x, y, x}, 1);
          }),
      row("cat_types", {m, whole},
          [](X x, X y) {
            return at::cat({x, y}, -1);
          }),
      row("cat_empty", {m, wide},
          [](X x, X y) {
            return at::cat({x.narrow(1, 0, 0), y}, 1);
          }),
      row("stack", {a, b},
          [](X x, X y) {
            return List{at::stack({x, y}, 0), at::stack({x, y}, 2), at::stack({x, y}, -1)};
          }),
      row("hstack", {m, wide},
          [](X x, X y) {
            return List{at::hstack({x, y}), at::vstack({x, x})};
          }),
      row("split", {a}, [](X x) { return x.split(2, 0); }),
      row("split_last", {a}, [](X x) { return x.split(4, 2); }),
      row("split_sizes", {a},
          [](X x) {
            return x.split_with_sizes({1, 3}, 1);
          }),
      row("chunk", {a}, [](X x) { return x.chunk(3, 0); }),
      row("tensor_split", {a}, [](X x) { return x.tensor_split(4, 2); }),
      row("unbind_0", {a}, [](X x) { return x.unbind(0); }),
      row("unbind_1", {a}, [](X x) { return x.unbind(1); }),
      row("repeat", {m},
          [](X x) {
            return List{x.repeat({2, 1}), x.repeat({1, 3}), x.repeat({2, 2, 2})};
          }),
      row("tile", {flat},
          [](X x) {
            return x.tile({2, 3});
          }),
      row("repeat_interleave", {m},
          [](X x) {
            return List{x.repeat_interleave(2, 0), x.repeat_interleave(3, 1)};
          }),
      row("split_product", {a},
          [](X x) {
            auto p = x.chunk(2, 1);
            return p[0] * p[1];
          }),
  });
}

TEST(SweepShape, S26_Slices) {
  sweep({
      row("slice", {a},
          [](X x) {
            return List{x.slice(0, 1, 4), x.slice(1, 0, 4, 2), x.slice(2, -3)};
          }),
      row("slice_empty", {a},
          [](X x) {
            return List{x.slice(0, 2, 2), x.slice(1, 3, 3)};
          }),
      row("narrow", {a},
          [](X x) {
            return List{x.narrow(0, 2, 2), x.narrow(2, 1, 4)};
          }),
      row("select", {a},
          [](X x) {
            return List{x.select(0, 3), x.select(1, -1), x.select(2, 0)};
          }),
      row("index_mixed", {a},
          [](X x) {
            return List{x.index({Slice(1, 4), 2}), x.index({None, "...", 1}), x.index({Slice(None, None, 2)})};
          }),
      row("shifted_difference", {m}, [](X x) { return x.slice(0, 1) - x.slice(0, 0, -1); }),
      row("central_difference", {m}, [](X x) { return x.slice(1, 2) - 2 * x.slice(1, 1, -1) + x.slice(1, 0, -2); }),
  });
}

TEST(SweepShape, S26_ReadsByIndices) {
  sweep({
      row("index_tensor", {m, rows}, [](X x, X i) { return x.index({i}); }),
      row("index_second", {a, rows.remainder(4)},
          [](X x, X i) {
            return x.index({Slice(), i});
          }),
      row("index_pair", {m, rows, rows},
          [](X x, X i, X j) {
            return x.index({i, j});
          }),
      row("index_mask", {m, coin}, [](X x, X c) { return x.index({c}).sum(); }),
      row("masked_select", {m, coin}, [](X x, X c) { return x.masked_select(c); }),
      row("nonzero", {coin}, [](X x) { return x.nonzero(); }),
      row("index_select_0", {m, rows}, [](X x, X i) { return x.index_select(0, i); }),
      row("index_select_1", {m, rows}, [](X x, X i) { return x.index_select(1, i); }),
      row("gather_0", {m, picks}, [](X x, X i) { return x.gather(0, i); }),
      row("gather_1", {m, cells}, [](X x, X i) { return x.gather(1, i); }),
      row("take", {m, rows}, [](X x, X i) { return x.take(i); }),
      row("embedding", {table, picks.remainder(6)}, [](X w, X i) { return at::embedding(w, i); }),
      row("one_hot", {rows}, [](X i) { return at::one_hot(i, 6); }),
      row("bucketize", {m, at::tensor({-0.5, 0.0, 0.5}, at::kDouble)},
          [](X x, X e) { return at::bucketize(x.detach(), e.detach()); }),
      row("searchsorted", {at::tensor({-0.5, 0.0, 0.5}, at::kDouble), m},
          [](X e, X x) { return at::searchsorted(e.detach(), x.detach()); }),
  });
}

TEST(SweepShape, S26_WritesByIndices) {
  sweep({
      row("scatter", {m, cells, source},
          [](X x, X i, X y) { return x.scatter(1, i.cumsum(1).remainder(7) * 0 + at::arange(3), y) + i.sum(); }),
      row("scatter_add", {m, cells, source}, [](X x, X i, X y) { return x.scatter_add(1, i, y); }),
      row("scatter_reduce", {m, cells, source}, [](X x, X i, X y) { return x.scatter_reduce(1, i, y, "sum"); }),
      row("index_add", {m, rows, make_tensor({6, 7}, 30)}, [](X x, X i, X y) { return x.index_add(0, i, y); }),
      row("index_add_1", {make_tensor({4, 5}, 31), rows, make_tensor({4, 6}, 32)},
          [](X x, X i, X y) { return x.index_add(1, i, y); }),
      row("index_copy", {m, at::arange(3), tall}, [](X x, X i, X y) { return x.index_copy(0, i, y); }),
      row("index_fill", {m, rows}, [](X x, X i) { return x.index_fill(0, i, 0.5); }),
      row("index_put_add", {m, rows, make_tensor({6, 7}, 33)}, [](X x, X i, X y) { return x.index_put({i}, y, true); }),
      row("index_put_mask", {m, coin, one}, [](X x, X c, X y) { return x.index_put({c}, y); }),
      row("masked_scatter", {m, coin, make_tensor({35}, 34)}, [](X x, X c, X y) { return x.masked_scatter(c, y); }),
  });
}

TEST(SweepShape, S20_Rearrangements) {
  sweep({
      row("flip", {a},
          [](X x) {
            return List{x.flip({0}), x.flip({1, 2}), x.fliplr()};
          }),
      row("rot90", {m}, [](X x) { return x.rot90(); }),
      row("roll", {a},
          [](X x) {
            return List{x.roll(2, 0), x.roll({1, -2}, {1, 2}), x.roll(3)};
          }),
      row("tril_triu", {square},
          [](X x) {
            return List{x.tril(), x.triu(1), x.tril(-2)};
          }),
      row("tril_", {square},
          [](X x) {
            return List{Tensor(x * 2).tril_(1), Tensor(x * 2).triu_()};
          }),
      row("pad_zeros", {m},
          [](X x) {
            return List{at::constant_pad_nd(x, {1, 2, 3, 0}, 0.5), at::constant_pad_nd(x, {-1, 2})};
          }),
      row("pad_reflect", {make_tensor({2, 5, 6}, 35)},
          [](X x) {
            return at::pad(x, {2, 3}, "reflect");
          }),
      row("pad_reflect_2d", {make_tensor({1, 2, 5, 6}, 36)},
          [](X x) {
            return at::pad(x, {2, 1, 3, 2}, "reflect");
          }),
      row("pad_replicate", {make_tensor({1, 2, 5, 6}, 36)},
          [](X x) {
            return at::pad(x, {2, 1, 3, 2}, "replicate");
          }),
      row("pad_circular", {make_tensor({1, 2, 5, 6}, 36)},
          [](X x) {
            return at::pad(x, {2, 1, 3, 2}, "circular");
          }),
      row("sort_gather", {m}, [](X x) { return x.gather(0, x.detach().argsort(int64_t{0}, false)); }),
      row("zeros_like", {m},
          [](X x) {
            return List{at::zeros_like(x), at::ones_like(x) * x, at::full_like(x, 2), x.new_zeros({3, 2})};
          }),
      row("eye_product", {square},
          [](X x) {
            return x * at::eye(6, at::kDouble) + at::zeros({6, 6}, at::kDouble);
          }),
      row("cartesian", {flat},
          [](X x) {
            return at::cartesian_prod({x, x});
          }),
      row(
          "vander", {flat}, [](X x) { return at::vander(x, 3); }, kForward),
      row("block_diag", {m, tall},
          [](X x, X y) {
            return at::block_diag({x, y});
          }),
  });
}

// A tensor made from x, written to, and read with x: `write` takes it and what follows x.
template <typename Write>
Row written(std::string name, List inputs, Write write, Allowed allowed = {}) {
  const auto run = [write](const List& t) {
    Tensor z = t[0] * t[0];
    if constexpr (std::is_invocable_v<Write, Tensor&>) {
      write(z);
    } else if constexpr (std::is_invocable_v<Write, Tensor&, X>) {
      write(z, t[1]);
    } else {
      write(z, t[1], t[2]);
    }
    return z * t[0];
  };
  return row(std::move(name), std::move(inputs), run, allowed);
}

TEST(SweepShape, S26_WritingThroughViews) {
  sweep({
      written("slice_mul_", {m, flat}, [](Tensor& z, X y) { z.slice(0, 1, 4).mul_(y); }),
      written("select_add_", {m}, [](Tensor& z) { z.select(1, 2).add_(1); }),
      written("view_mul_", {a},
              [](Tensor& z) {
                z.view({20, 6}).mul_(2);
              }),
      written("transpose_copy_", {m, m.t().contiguous()}, [](Tensor& z, X y) { z.t().copy_(y); }),
      written("index_put_", {m, rows, make_tensor({6, 7}, 33)},
              [](Tensor& z, X i, X y) { z.index_put_({i}, y, true); }),
      written("mask_assign", {m, coin}, [](Tensor& z, X c) { z.index_put_({c}, at::scalar_tensor(0.5, at::kDouble)); }),
      written("slice_assign", {m, flat}, [](Tensor& z, X y) { z.slice(0, 2, 4).copy_(y); }),
      written("unbind_mul_", {m}, [](Tensor& z) { z.detach().unbind(1)[3].mul_(2); }),
      row("fill_diagonal_", {square}, [](X x) { return Tensor(x.detach() * 2).fill_diagonal_(1); }),
      row("scatter_add_", {m, cells, source},
          [](X x, X i, X y) {
            Tensor z = x * x;
            return z.scatter_add_(1, i, y) * 2;
          }),
      row("index_add_", {m, rows, make_tensor({6, 7}, 30)},
          [](X x, X i, X y) {
            Tensor z = x * x;
            return z.index_add_(0, i, y) * 2;
          }),
      row("slice_scatter", {m, flat},
          [](X x, X y) {
            return List{x.slice_scatter(y.expand({2, 7}), 0, 1, 3), x.select_scatter(y, 0, 2)};
          }),
      row("cumsum_", {m}, [](X x) { return Tensor(x * x).cumsum_(0); }),
      row("unsqueeze_", {m},
          [](X x) {
            return List{(x * x).unsqueeze_(1) * 2, x.sum(0).unsqueeze_(-1), x.t().clone().unsqueeze_(0)};
          }),
      row("squeeze_", {make_tensor({5, 1, 3}, 17)}, [](X x) { return Tensor(x.detach() * 2).squeeze_(1).add_(1); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_sweep_shape
