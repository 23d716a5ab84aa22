// SPDX-License-Identifier: Apache-2.0
// Forward-mode derivatives on ShardTensors, against one device; those of attention and stencils are in their
// folders.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/autograd_ways.h"
#include "tests/support/dual_level.h"

namespace moonhalo::testing::test_forward_mode {
namespace {

using torch::autograd::grad;

// The results of `run` at t[0] and their derivatives along t[1].
List derivatives(const std::function<List(X)>& run, const List& t, int64_t level) {
  List seen;
  for (const at::Tensor& y : run(at::_make_dual(t[0], t[1], level))) {
    const auto [value, tangent] = at::_unpack_dual(y, level);
    seen.push_back(value);
    seen.push_back(tangent);
  }
  return seen;
}

const std::vector<Program1> kDualPrograms = {
    {"pointwise",
     [](X x) {
       return List{(x.sin() * x + 2).exp(), x.clamp(-0.3, 0.4), at::gelu(x), at::where(x > 0, x, x * x)};
     }},
    {"conv",
     [](X x) {
       return List{at::conv2d(x, make_tensor({2, 4, 3, 3}, 8), make_tensor({2}, 9), {2, 1}, {1, 1})};
     }},
    {"conv_transposed",
     [](X x) {
       return List{at::conv_transpose2d(x, make_tensor({4, 2, 3, 2}, 8), {}, {2, 1})};
     }},
    {"reductions",
     [](X x) {
       return List{
           x.sum(2), x.mean(), x.var({2, 3}), x.logsumexp(2), x.amax({2}), x.prod(3), at::linalg_vector_norm(x)};
     }},
    {"scans",
     [](X x) {
       return List{x.cumsum(2), x.cumprod(3), x.logcumsumexp(2)};
     }},
    {"softmax",
     [](X x) {
       return List{x.softmax(2), x.log_softmax(3)};
     }},
    {"norms",
     [](X x) {
       return List{at::layer_norm(x, {7, 5}), at::group_norm(x, 2, make_tensor({4}, 8), make_tensor({4}, 9)),
                   at::batch_norm(x, make_tensor({4}, 8), {}, {}, {}, true, 0.1, 1e-5, false)};
     }},
    {"pools",
     [](X x) {
       return List{at::avg_pool2d(x, {3, 2}), at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1}),
                   at::adaptive_avg_pool2d(x, {3, 2})};
     }},
    {"indexed",
     [](X x) {
       return List{x.index_select(2, at::tensor({6, 0, 6})), x.index({at::tensor({2, 0}), {}, at::tensor({6, 1})}),
                   x.gather(2, make_tensor({3, 4, 2, 5}, 8, at::kLong).abs()), std::get<0>(x.sort(2))};
     }},
    {"views",
     [](X x) {
       return List{x.permute({2, 0, 3, 1}).flatten(2),
                   x.view({12, 7, 5}),
                   x.slice(2, 1, 6, 2).transpose(0, 2),
                   x.unbind(2)[3],
                   x.split(3, 2)[1],
                   x.select(2, 4),
                   x.unsqueeze(2).expand({3, 4, 2, 7, 5})};
     }},
    {"joined",
     [](X x) {
       return List{at::cat({x, x.flip({2})}, 2), at::stack({x, x.roll(2, 2)}, 1)};
     }},
    {"in_place",
     [](X x) {
       at::Tensor y = x * 2;
       y.mul_(y.detach()).add_(x).sin_();
       return List{y};
     }},
    {"in_place_on_a_view",
     [](X x) {
       at::Tensor y = x.clone();
       y.slice(2, 1, 5).mul_(3).slice(1, 2, 4).exp_();
       y.transpose(1, 2).add_(x.transpose(1, 2));
       return List{y};
     }},
    {"copied_into_constants",
     [](X x) {
       at::Tensor y = at::zeros_like(x.detach());
       y.slice(3, 0, 3).copy_(x.slice(3, 2, 5));
       return List{y, y.sum(2)};
     }},
    {"products",
     [](X x) {
       return List{x.matmul(make_tensor({5, 3}, 8)), x.matmul(x.transpose(2, 3)), x.matmul(make_tensor({5}, 8)),
                   at::linear(x, make_tensor({2, 5}, 8), make_tensor({2}, 9)), at::tensordot(x, x, {2, 3}, {2, 3})};
     }},
    {"einsum",
     [](X x) {
       return List{at::einsum("bcij,bdij->bcd", {x, x}), at::einsum("...ij,jk->...ik", {x, make_tensor({5, 2}, 8)}),
                   at::einsum("bcij,c,bcik->bjk", {x, make_tensor({4}, 9), x.sin()}), at::einsum("bcij->jb", {x})};
     }},
    {"circular",
     [](X x) {
       return List{at::pad(x, {1, 2, 3, 0}, "circular"), at::pad(x * x, {0, 0, 1, 1}, "circular")};
     }},
    {"padded",
     [](X x) {
       return List{at::pad(x, {1, 2, 3, 0}, "reflect"), at::pad(x, {1, 2, 3, 0}, "replicate"),
                   at::pad(x, {1, 0, 2, 0}, "constant", 2)};
     }},
    {"resampled",
     [](X x) {
       return List{at::upsample_nearest2d(x, {14, 6}), at::_upsample_nearest_exact2d(x, {5, 9}),
                   at::upsample_bilinear2d(x, {9, 4}, true), at::upsample_bicubic2d(x, {4, 11}, false)};
     }},
    {"shapes",
     [](X x) {
       return List{x.unfold(2, 3, 2),       at::glu(x, 1),
                   x.diagonal(0, 2, 3),     x.rot90(1, {2, 3}),
                   x.repeat({1, 2, 2, 1}),  x.triu(),
                   at::pixel_shuffle(x, 2), at::im2col(x, {3, 2}, {1, 1}, {1, 0}, {2, 1})};
     }},
    {"losses",
     [](X x) {
       return List{at::mse_loss(x, at::zeros_like(x)), at::l1_loss(x, x.detach() * 2),
                   at::huber_loss(x, x.detach() * 0)};
     }},
};

TEST(ForwardMode, DerivativesAlongATangent) {
  const DualLevel level;
  for (const Program1& row : kDualPrograms) {
    expect_on_ways(
        {{row.name, [&](const List& t) { return derivatives(row.run, t, level.index()); }}},
        [](const PlacementCase& way) {
          return std::vector<Input>{{kField, way.placements}, {make_tensor({3, 4, 7, 5}, 5), way.placements}};
        },
        {.backward = false});
  }
}

TEST(ForwardMode, TangentsOfOtherKinds) {
  const DualLevel level;
  const auto run = [](X x) { return List{(x * make_tensor({5}, 3)).tanh().cumsum(2)}; };
  const at::Tensor tangent = make_tensor({3, 4, 7, 5}, 5);
  for (const Input& kind : {Input{tangent, {}, true, true}, Input{tangent, {}}, Input{tangent, {shard(2, {1, 6})}},
                            Input{tangent, {shard(3)}}}) {
    expect_same_as_plain({2}, {{kField, {shard(2, {4, 3})}}, kind},
                         [&](const List& t) { return derivatives(run, t, level.index()); }, {.backward = false});
  }
}

// LibTorch keeps a tangent whose memory is like its tensor's, and copies another one: what the blocks are like decides.
TEST(ForwardMode, TangentsInAnotherOrderAreNotLikeTheirTensors) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {4, 3, 5}, {shard(0)});
    const auto device = device_of(*mesh);
    const at::Tensor rows = make_tensor({2, 3, 5}, 1).to(device);
    const at::Tensor x = from_local(rows, spec), like = from_local(rows.clone(), spec);
    const at::Tensor turned = from_local(rows.transpose(1, 2).contiguous().transpose(1, 2), spec);
    EXPECT_TRUE(at::_has_same_storage_numel(like, x));
    EXPECT_FALSE(at::_has_same_storage_numel(turned, x));
    EXPECT_FALSE(at::_has_same_storage_numel(
        from_local(make_tensor({3, 2, 5}, 1).to(device), make_spec(mesh, {3, 4, 5}, {shard(1)})), x));
  });
}

// Operators that move blocks move tangents with them.
TEST(ForwardMode, ThroughMovesOfBlocks) {
  const DualLevel level;
  expect_on_ways(
      {{"move_and_back",
        [&](const List& t) {
          const at::Tensor dual = at::_make_dual(t[0], t[1], level.index());
          if (!is_shard_tensor(dual)) return List{std::get<1>(at::_unpack_dual(dual.square(), level.index()))};
          const SpecPtr own = spec(dual);
          const at::Tensor whole = full_tensor(dual);
          const at::Tensor again = from_local(whole, replicated(own->mesh(), own->global_shape()));
          return List{std::get<1>(at::_unpack_dual(redistribute(again, without_partial(own)).square(), level.index()))};
        }}},
      [](const PlacementCase& way) {
        return std::vector<Input>{{kField, way.placements}, {make_tensor({3, 4, 7, 5}, 5), way.placements}};
      },
      {.backward = false});
}

// Forward over reverse: the product of the Hessian and a vector.
TEST(ForwardMode, OverReverse) {
  const DualLevel level;
  expect_on_ways({{"hessian_vector",
                   [&](const List& t) {
                     const at::Tensor x = t[0].detach().requires_grad_();
                     const at::Tensor dual = at::_make_dual(x, t[1], level.index());
                     const at::Tensor y = at::conv2d(dual, make_tensor({2, 4, 3, 3}, 8), {}, 1, 1).sin().square().sum();
                     const at::Tensor slope = grad({y}, {dual}, {}, true, true)[0];
                     return List{std::get<1>(at::_unpack_dual(slope, level.index()))};
                   }}},
                 [](const PlacementCase& way) {
                   return std::vector<Input>{{kField, way.placements}, {make_tensor({3, 4, 7, 5}, 5), way.placements}};
                 },
                 {.backward = false});
}

// The same through what is intercepted above autograd.
TEST(ForwardMode, OverReverseOfProductsAndCircularPadding) {
  const DualLevel level;
  expect_on_ways({{"hessian_vector",
                   [&](const List& t) {
                     const at::Tensor x = t[0].detach().requires_grad_();
                     const at::Tensor dual = at::_make_dual(x, t[1], level.index());
                     const at::Tensor h = at::pad(dual, {1, 1, 2, 0}, "circular").sin();
                     const at::Tensor y = at::einsum("bcij,bdij->bcd", {h, h.square()}).square().sum() +
                                          h.matmul(h.transpose(2, 3)).sin().sum();
                     const at::Tensor slope = grad({y}, {dual}, {}, true, true)[0];
                     return List{std::get<1>(at::_unpack_dual(slope, level.index()))};
                   }}},
                 [](const PlacementCase& way) {
                   return std::vector<Input>{{kField, way.placements}, {make_tensor({3, 4, 7, 5}, 5), way.placements}};
                 },
                 {.backward = false});
}

}  // namespace
}  // namespace moonhalo::testing::test_forward_mode
