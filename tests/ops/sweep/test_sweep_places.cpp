// SPDX-License-Identifier: Apache-2.0
// The places of elements: rearrangements, indices, scatters, masks and padding along dims that are cut: S20, S26, X09.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_sweep_places {
namespace {

using at::Tensor;
using at::indexing::None;
using at::indexing::Slice;

const Tensor a = make_tensor({5, 4, 6}, 1), m = make_tensor({5, 7}, 3), flat = make_tensor({7}, 6),
             square = make_tensor({6, 6}, 14), picture = make_tensor({2, 4, 3, 5}, 21);
const Tensor coin = make_tensor({5, 7}, 7, at::kBool), coins = make_tensor({5}, 8, at::kBool);
const Tensor rows = make_tensor({6}, 9, at::kLong).abs().remainder(5);
const Tensor columns = make_tensor({6}, 10, at::kLong).abs().remainder(7);
const Tensor places = at::tensor({3, 34, 0, 12, 7, -1}, at::kLong).view({2, 3});
const Allowed kForward{.backward = false};

TEST(SweepShapePlaces, S20_Rearrangements) {
  sweep({
      row("rot90_k", {m},
          [](X x) {
            return List{x.rot90(1), x.rot90(2), x.rot90(3, {1, 0}), x.rot90(-1), x.rot90(4)};
          }),
      row("rot90_3d", {a},
          [](X x) {
            return List{x.rot90(1, {0, 2}), x.rot90(2, {1, 2})};
          }),
      row("flip_all", {a},
          [](X x) {
            return List{x.flip({0, 1, 2}), x.flipud(), x.flip(at::IntArrayRef{})};
          }),
      row("roll_far", {a},
          [](X x) {
            return List{x.roll(-8, 0), x.roll({1, 2, 3}, {0, 1, 2}), x.roll({1, 1}, {0, 0}), x.roll(-7)};
          }),
      row("channel_shuffle_groups", {picture},
          [](X x) {
            return List{at::channel_shuffle(x, 2), at::channel_shuffle(x, 4),
                        at::native_channel_shuffle(x.detach(), 2)};
          }),
      row("unflatten_flatten", {make_tensor({6, 4, 5}, 24)},
          [](X x) {
            return List{x.unflatten(0, {2, 3}), x.flatten(1, 2), x.flatten(0, 1).unflatten(0, {6, 4}),
                        x.unflatten(0, {3, 2}).flatten(1), x.ravel()};
          }),
      row("moves", {a},
          [](X x) {
            return List{x.movedim({0, 2}, {2, 1}),       x.moveaxis(1, 0), x.swapdims(0, 2), x.mT(), x.adjoint(),
                        x.narrow(0, 1, 3).swapaxes(0, 1)};
          }),
  });
}

TEST(SweepShapePlaces, S20_DiagonalsTrianglesAndWindows) {
  sweep({
      row("diag_embed_dims", {m},
          [](X x) {
            return List{at::diag_embed(x), at::diag_embed(x, 1), at::diag_embed(x, -2, 0, 2),
                        at::diag_embed(x, 0, 2, 0)};
          }),
      row("diagonal_cut", {a},
          [](X x) {
            return List{x.diagonal(),        x.diagonal(1),  x.diagonal(-2, 0, 1),
                        x.diagonal(1, 2, 0), x.diagonal(-9), at::linalg_diagonal(x)};
          },
          {.other_cut = true}),
      row("trace_cut", {m}, [](X x) { return x.trace() * x.sum(); }),
      row("unfold_cut", {a},
          [](X x) {
            return List{x.unfold(0, 3, 1), x.unfold(1, 2, 2), x.unfold(2, 3, 2), x.unfold(0, 5, 1), x.unfold(2, 1, 4)};
          },
          {.other_cut = true}),
      row("tril_batches", {make_tensor({2, 5, 4}, 23)},
          [](X x) {
            return List{x.tril(), x.triu(-1), x.tril(2)};
          }),
      row("triangles_of_indices", {m},
          [](X x) {
            const Tensor lower = at::tril_indices(5, 7, 0, at::kLong);
            return x.index({lower[0], lower[1]});
          }),
  });
}

TEST(SweepShapePlaces, S20_RepetitionsAndProducts) {
  sweep({
      row("tile_more", {m},
          [](X x) {
            return List{x.tile({2}), x.tile({2, 1, 3}), x.tile({0, 2})};
          }),
      row("repeat_interleave_n", {m},
          [](X x) {
            return List{x.repeat_interleave(2, 0), x.repeat_interleave(3, 1), x.repeat_interleave(2),
                        x.repeat_interleave(1, -1)};
          }),
      row("repeat_interleave_by", {m, at::tensor({2, 0, 1, 3, 1}, at::kLong)},
          [](X x, X n) {
            return List{x.repeat_interleave(n, 0), x.repeat_interleave(n, 0, 7)};
          }),
      row("broadcast_to", {flat},
          [](X x) {
            return List{x.broadcast_to({3, 7}) * 2, x.expand({2, 5, 7}), x.view({1, 7}).expand({4, -1})};
          }),
      row("meshgrid_xy", {flat, make_tensor({3}, 18)},
          [](X x, X y) {
            return at::meshgrid({x, y}, "xy");
          }),
      row("cartesian_combinations", {flat, make_tensor({3}, 27)},
          [](X x, X y) {
            return List{at::cartesian_prod({x, y}), at::combinations(x, 2), at::combinations(y, 2, true)};
          }),
  });
}

TEST(SweepShapePlaces, S20_StacksAndSplits) {
  sweep({
      row("stacks", {m, make_tensor({5, 7}, 25)},
          [](X x, X y) {
            return List{at::hstack({x, y}),       at::vstack({x, y}),    at::dstack({x, y}),
                        at::column_stack({x, y}), at::row_stack({x, y}), at::concat({x, y}, 1)};
          }),
      row("stacks_1d", {flat, make_tensor({7}, 26)},
          [](X x, X y) {
            return List{at::hstack({x, y}), at::vstack({x, y}), at::dstack({x, y}), at::column_stack({x, y})};
          }),
      row("block_diag_vector", {m, flat},
          [](X x, X y) {
            return at::block_diag({x, y, x});
          }),
      row("splits", {a},
          [](X x) {
            List all;
            for (const auto& parts : {x.tensor_split({1, 3}, 2), x.hsplit(2), x.vsplit({2, 3}), x.dsplit(3),
                                      at::unsafe_chunk(x, 3, 0), at::unsafe_split(x, 2, 2), x.split({3, 2}, 0)})
              all.insert(all.end(), parts.begin(), parts.end());
            return all;
          }),
      row("tensor_split_by_tensor", {a, at::tensor({1, 3}, at::kLong)},
          [](X x, X at) { return at::tensor_split(x, at, 2); }),
  });
}

TEST(SweepShapePlaces, S26_CopiesOfViews) {
  sweep({
      row(
          "copies_of_views", {a},
          [](X x) {
            return List{at::view_copy(x, {20, 6}),
                        at::permute_copy(x, {2, 0, 1}),
                        at::transpose_copy(x, 0, 2),
                        at::unsqueeze_copy(x, 1),
                        at::squeeze_copy(x.slice(0, 1, 2)),
                        at::expand_copy(x, {2, 5, 4, 6}),
                        at::slice_copy(x, 0, 1, 4),
                        at::select_copy(x, 0, 3),
                        at::diagonal_copy(x, 0, 0, 1),
                        at::unfold_copy(x, 0, 3, 1),
                        at::alias_copy(x),
                        at::detach_copy(x),
                        at::narrow_copy(x, 0, 1, 3),
                        at::narrow_copy(x, 2, 2, 4)};
          },
          kForward),
      row(
          "copies_of_parts", {a},
          [](X x) {
            List all;
            for (const auto& parts :
                 {at::split_copy(x, 2, 0), at::unbind_copy(x, 1), at::split_with_sizes_copy(x, {1, 3, 2}, 2)})
              all.insert(all.end(), parts.begin(), parts.end());
            return all;
          },
          kForward),
      row(
          "copies_of_more", {m},
          [](X x) {
            return List{at::t_copy(x), at::as_strided_copy(x, {5, 7}, {7, 1}), at::view_as_real_copy(at::complex(x, x)),
                        at::_reshape_copy(x, {35}), at::view_as_complex_copy(at::stack({x, x}, -1))};
          },
          kForward),
      row("scatters", {a, make_tensor({3, 4, 6}, 30), make_tensor({4, 6}, 31)},
          [](X x, X y, X z) {
            return List{at::slice_scatter(x, y, 0, 1, 4), at::select_scatter(x, z, 0, 2),
                        at::slice_scatter(x, y, 0, 0, 5, 2)};
          }),
      row("diagonal_scatter", {m, make_tensor({5}, 32)},
          [](X x, X y) {
            return List{at::diagonal_scatter(x, y), at::diagonal_scatter(x, y, 1)};
          },
          {.other_cut = true}),
      row("diagonal_scatter_3d", {a, make_tensor({6, 4}, 33)},
          [](X x, X y) {
            return List{at::diagonal_scatter(x, y, 0, 0, 1), at::diagonal_scatter(x, y, -1, 0, 1)};
          },
          {.other_cut = true}),
      row("as_strided_scatter", {m, flat}, [](X x, X y) { return at::as_strided_scatter(x, y, {7}, {1}, 14); },
          {.gather = true, .other_cut = true}),
  });
}

TEST(SweepShapePlaces, S26_Reads) {
  sweep({
      row("take_along_dim", {m, at::tensor({6, 0, 2, 2, 5}, at::kLong).view({5, 1})},
          [](X x, X i) {
            return List{at::take_along_dim(x, i, 1), at::take_along_dim(x, i.slice(0, 0, 1).remainder(5), 0),
                        at::take_along_dim(x, i.view({5}))};
          }),
      row("gather_short", {a, make_tensor({2, 3, 4}, 34, at::kLong).abs().remainder(4)},
          [](X x, X i) {
            return List{x.gather(0, i), x.gather(1, i), x.gather(2, i)};
          }),
      row("index_select_all", {a, rows.remainder(4)},
          [](X x, X i) {
            return List{x.index_select(0, i), x.index_select(1, i), x.index_select(2, i)};
          }),
      row("index_three", {a, rows, rows.remainder(4)},
          [](X x, X i, X j) {
            return List{x.index({i, j}), x.index({i, Slice(), j}), x.index({Slice(), j, i}), x.index({i, j, i})};
          }),
      row("index_broadcast", {m, rows, at::tensor({6, 0}, at::kLong).view({2, 1})},
          [](X x, X i, X j) {
            return List{x.index({i, j}), x.index({i.view({3, 2})})};
          }),
      row("masked_select_grad", {m, coin}, [](X x, X c) { return x.masked_select(c) * 3; }),
      row("masked_select_broadcast", {m, flat, coins},
          [](X x, X y, X c) {
            return List{x.masked_select(y.detach() > 0), x.masked_select(c.unsqueeze(1))};
          }),
      row("index_masks", {a, coins, make_tensor({5, 4}, 35, at::kBool)},
          [](X x, X c, X d) {
            return List{x.index({c}), x.index({d}), x.index({c, 2})};
          }),
      row("index_mask_second", {a, make_tensor({4}, 36, at::kBool), rows},
          [](X x, X c, X i) {
            return List{x.index({Slice(), c}), x.index({Slice(), Slice(), i}),
                        x.index({i, c.nonzero().select(1, 0).select(0, 0)})};
          }),
      row("nonzero_all", {coin},
          [](X c) {
            return List{c.nonzero(), c.argwhere(), at::nonzero_static(c, 40, -1), at::nonzero_static(c, 5, -1)};
          }),
      row("nonzero_numpy", {make_tensor({4, 3, 2}, 37, at::kBool)}, [](X c) { return c.nonzero_numpy(); }),
      row("where_one", {coin}, [](X c) { return at::where(c); }),
      row("embedding_renorm", {make_tensor({7, 3}, 38), columns},
          [](X w, X i) { return at::embedding(w.detach(), i); }),
  });
}

TEST(SweepShapePlaces, S26_WritesByMasks) {
  sweep({
      row("masked_scatter_grad", {m, coin, make_tensor({35}, 40)},
          [](X x, X c, X y) { return x.masked_scatter(c, y) * 2; }),
      row("masked_scatter_broadcast", {m, coins, make_tensor({5, 8}, 41)},
          [](X x, X c, X y) { return x.masked_scatter(c.unsqueeze(1), y); }),
      row("mask_many", {m, coin},
          [](X x, X c) {
            const Tensor count = c.sum();
            Tensor z = x * x;
            z.index_put_({c}, at::arange(count.item<int64_t>(), at::kDouble));
            return z * x;
          }),
      row("mask_rows", {m, coins},
          [](X x, X c) {
            Tensor z = x * x;
            z.index_put_({c}, x.select(0, 1));
            return z;
          }),
      row("mask_rows_many", {m, coins, m.slice(0, 0, coins.sum().item<int64_t>())},
          [](X x, X c, X y) { return x.index_put({c}, y); }),
  });
}

TEST(SweepShapePlaces, S26_WritesByIndices) {
  sweep({
      row("put", {m, places, make_tensor({2, 3}, 42)},
          [](X x, X i, X y) {
            return List{x.put(i, y), x.put(i, y, true)};
          }),
      row("put_", {m, places, make_tensor({2, 3}, 42)},
          [](X x, X i, X y) {
            Tensor z = x * x;
            return z.put_(i, y, true) * x;
          }),
      row("index_put_pairs", {a, rows, rows.remainder(4), make_tensor({6, 6}, 43)},
          [](X x, X i, X j, X y) {
            return List{x.index_put({i, j}, y, true), x.index_put({std::nullopt, j, i}, y.sum(), true)};
          }),
      row("index_put_apart", {a, at::tensor({4, 0}, at::kLong), at::tensor({5, 1}, at::kLong), make_tensor({2, 4}, 44)},
          [](X x, X i, X j, X y) {
            return List{x.index_put({i, std::nullopt, j}, y), x.index_put({i, std::nullopt, j}, y, true)};
          }),
      row("index_add_dims", {a, rows.slice(0, 0, 4).remainder(4), make_tensor({4, 4, 6}, 45)},
          [](X x, X i, X y) {
            return List{x.index_add(0, i, y, 0.5), x.transpose(0, 2).index_add(2, i, y.permute({2, 1, 0}))};
          }),
      row("index_copy_dims", {a, at::tensor({3, 0}, at::kLong), make_tensor({5, 2, 6}, 46)},
          [](X x, X i, X y) {
            return List{x.index_copy(1, i, y), x.transpose(1, 2).index_copy(2, i, y.transpose(1, 2))};
          }),
      row("index_fill_dims", {a, rows.remainder(4), make_tensor({}, 47)},
          [](X x, X i, X v) {
            return List{x.index_fill(1, i, 2), x.index_fill(2, i, v), x.index_fill(0, i, v)};
          }),
      row("index_reduce", {m, rows, make_tensor({6, 7}, 48)},
          [](X x, X i, X y) {
            const Tensor p = x.detach(), q = y.detach();
            return List{at::index_reduce(p, 0, i, q, "amax"), at::index_reduce(p, 0, i, q, "mean"),
                        at::index_reduce(p, 0, i, q, "prod", false)};
          }),
  });
}

TEST(SweepShapePlaces, S26_Scatters) {
  sweep({
      row("scatter_dims",
          {a, make_tensor({5, 4, 2}, 49, at::kLong).abs().remainder(2) * 3 + at::arange(2), make_tensor({5, 4, 2}, 50)},
          [](X x, X i, X y) {
            return List{x.scatter(2, i, y), x.scatter(2, i, 0.5), x.scatter_add(2, i, y)};
          }),
      row("scatter_short", {a, at::tensor({0, 2, 1, 3}, at::kLong).view({2, 2, 1}), make_tensor({2, 2, 1}, 51)},
          [](X x, X i, X y) {
            return List{x.scatter(1, i, y), x.scatter_add(1, i, y), x.scatter_add(0, i, y), x.scatter(1, i, 2.0)};
          }),
      row("scatter_reduces", {m, make_tensor({5, 3}, 52, at::kLong).abs().remainder(7), make_tensor({5, 3}, 53)},
          [](X x, X i, X y) {
            const Tensor p = x.detach(), q = y.detach();
            return List{p.scatter_reduce(1, i, q, "mean"), p.scatter_reduce(1, i, q, "amax", false),
                        p.scatter_reduce(1, i, q, "prod"), at::scatter(p, 1, i, q, "add"),
                        at::scatter(p, 1, i, 2.0, "multiply")};
          }),
      row("scatter_reduce_grad", {m, make_tensor({5, 3}, 52, at::kLong).abs().remainder(7), make_tensor({5, 3}, 53)},
          [](X x, X i, X y) {
            return List{x.scatter_reduce(1, i, y, "amax"), x.scatter_reduce(1, i, y, "mean")};
          }),
  });
}

TEST(SweepShapePlaces, S26_Assignments) {
  sweep({
      row("fill_diagonal", {square, make_tensor({7, 3}, 54)},
          [](X x, X y) {
            return List{Tensor(x.detach() * 2).fill_diagonal_(1), Tensor(y.detach() * 2).fill_diagonal_(2, true),
                        Tensor(y.detach() * 2).fill_diagonal_(3)};
          }),
      row("assign", {a, make_tensor({4, 6}, 55)},
          [](X x, X y) {
            Tensor z = x * x;
            z.index_put_({2}, y);
            z.index_put_({Slice(1, 3), 1}, 0.5);
            z.index_put_({Slice(), Slice(), -1}, 3);
            return z * x;
          }),
      row("assign_select", {a, make_tensor({4, 6}, 55)},
          [](X x, X y) {
            Tensor z = x * x;
            z.select(0, 2).copy_(y);
            z.select(0, 3).fill_(2);
            z.select(1, 1).zero_();
            return z * x;
          }),
      row("assign_row_add", {a, make_tensor({4, 6}, 55)},
          [](X x, X y) {
            Tensor z = x * x;
            z.select(0, 2).add_(y).mul_(2);
            z.select(0, 2).select(0, 1).sub_(1);
            return z * x;
          }),
  });
}

TEST(SweepShapePlaces, S26_ChangingDimsInPlace) {
  sweep({
      row("transpose_", {a},
          [](X x) {
            return List{Tensor(x * x).transpose_(0, 2) * 2, Tensor(x.detach() * 2).swapaxes_(0, 1),
                        Tensor(x.detach() * 2).swapdims_(1, 2).add_(1)};
          }),
      row("t_", {m},
          [](X x) {
            return List{Tensor(x * x).t_() * 2, Tensor(x.detach() * 3).t_().mul_(2)};
          }),
      row("squeeze_", {make_tensor({5, 1, 3, 1}, 56)},
          [](X x) {
            return List{Tensor(x * x).squeeze_() * 2, Tensor(x * x).squeeze_(1) * 2,
                        Tensor(x.detach() * 2).squeeze_(at::IntArrayRef{1, 3}).add_(1),
                        Tensor(x.detach() * 2).squeeze_(0)};
          }),
  });
}

TEST(SweepShapePlaces, S20_Padding) {
  sweep({
      row("pad_circular_1d", {make_tensor({2, 3, 6}, 60)},
          [](X x) {
            return List{at::pad(x, {2, 3}, "circular"), at::pad(x, {6, 0}, "circular"),
                        at::pad(x.select(0, 0), {1, 1}, "circular")};
          }),
      row("pad_circular_crop", {make_tensor({2, 3, 6}, 60)},
          [](X x) {
            return at::pad(x, {-1, 2}, "circular");
          }),
      row("pad_circular_2d", {picture},
          [](X x) {
            return List{at::pad(x, {2, 1, 3, 2}, "circular"), at::pad(x, {5, 5, 0, 0}, "circular")};
          }),
      row("pad_circular_3d", {make_tensor({1, 2, 3, 4, 3}, 61)},
          [](X x) {
            return at::pad(x, {1, 2, 3, 2, 1, 3}, "circular");
          }),
      row("pad_reflect_all", {make_tensor({1, 2, 3, 4, 3}, 61)},
          [](X x) {
            return List{at::pad(x, {1, 2, 3, 2, 1, 0}, "reflect"),
                        at::pad(x.select(0, 0), {1, 2, 3, 2, 1, 0}, "reflect"),
                        at::pad(x.select(0, 0), {1, 2, 3, 2}, "reflect"),
                        at::pad(x.select(0, 0).select(0, 0), {2, 2}, "reflect")};
          }),
      row("pad_replicate_all", {make_tensor({1, 2, 3, 4, 3}, 61)},
          [](X x) {
            return List{at::pad(x, {1, 2, 4, 2, 1, 5}, "replicate"),
                        at::pad(x.select(0, 0), {1, 2, 3, 2, 1, 0}, "replicate"),
                        at::pad(x.select(0, 0), {1, 2, 3, 2}, "replicate"),
                        at::pad(x.select(0, 0).select(0, 0), {2, 2}, "replicate")};
          }),
      row("pad_constant_all", {a},
          [](X x) {
            return List{at::pad(x, {1, 2}, "constant", 3), at::pad(x, {-1, 0, 2, 1, 1, 4}),
                        at::constant_pad_nd(x, {0, 0, 0, 0, 2, 2})};
          }),
  });
}

TEST(SweepShapePlaces, S20_Products) {
  const Tensor p = make_tensor({5, 6}, 70), q = make_tensor({6, 4}, 71);
  sweep({
      row("einsum_diagonal", {make_tensor({4, 4, 3}, 72)},
          [](X x) {
            return List{at::einsum("iij->ij", {x}), at::einsum("iij->j", {x}), at::einsum("ijk->kji", {x}),
                        at::einsum("ijk->k", {x})};
          },
          {.other_cut = true}),
      row("einsum_diagonal_two", {make_tensor({4, 4}, 73), make_tensor({4, 3}, 74)},
          [](X x, X y) {
            return List{at::einsum("ii,ij->ij", {x, y}), at::einsum("ii,ij->j", {x, y})};
          },
          {.other_cut = true}),
      row("einsum_ones", {make_tensor({5, 1, 3}, 75), make_tensor({1, 4, 3}, 76)},
          [](X x, X y) {
            return List{at::einsum("abc,abc->abc", {x, y}), at::einsum("abc,abc->c", {x, y}),
                        at::einsum("abc,abc->ab", {x, y})};
          }),
      row("tensordot_dims", {a, make_tensor({6, 4, 2}, 77)},
          [](X x, X y) {
            return List{at::tensordot(x, y, {2, 1}, {0, 1}), at::tensordot(x, y, {2}, {0})};
          }),
      row("inner_outer", {p, q, make_tensor({6}, 78)},
          [](X x, X y, X z) {
            return List{at::inner(x, y.t()), at::outer(z, y.select(1, 0)),
                        at::inner(x, z),     at::ger(z, x.select(0, 0)),
                        at::dot(z, z),       at::vdot(z, z)};
          }),
      row("kron", {make_tensor({3, 4}, 79), make_tensor({2, 5}, 80)}, [](X x, X y) { return at::kron(x, y); }),
      row("cross_dims", {make_tensor({4, 3, 5}, 81), make_tensor({4, 3, 5}, 82)},
          [](X x, X y) {
            return List{at::linalg_cross(x, y, 1), at::cross(x, y, 1), at::linalg_cross(x.slice(0, 0, 1), y, 1)};
          },
          {.other_cut = true}),
      row("vander_grad", {flat},
          [](X x) {
            return List{at::vander(x.detach(), 3), at::vander(x.detach(), 4, true), at::linalg_vander(x)};
          }),
      row("bilinear_all",
          {make_tensor({4, 3}, 83), make_tensor({4, 2}, 84), make_tensor({5, 3, 2}, 85), make_tensor({5}, 86)},
          [](X x, X y, X w, X b) {
            return List{at::bilinear(x, y, w, b), at::bilinear(x, y, w, {})};
          }),
      row("where_scalars", {m, coin},
          [](X x, X c) {
            return List{at::where(c, x, 0.5), at::where(c, 0.5, x), at::where(c, 1.0, 2.0), at::where(c, x, x * 2)};
          }),
      row("chain_of_products", {p, q, make_tensor({4, 3}, 90)},
          [](X x, X y, X z) {
            return List{at::chain_matmul({x, y, z}), at::linalg_multi_dot({x, y, z}),
                        at::linalg_matrix_power(x.slice(1, 0, 5), 3)};
          }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_sweep_places
