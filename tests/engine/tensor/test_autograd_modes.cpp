// SPDX-License-Identifier: Apache-2.0
// Inference mode, no-grad and autocast on ShardTensors, against one device.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/autograd_ways.h"

namespace moonhalo::testing::test_autograd_modes {
namespace {

using ::testing::HasSubstr;

// Inference mode, no-grad

List forward_of_a_net(const List& t) {
  const at::Tensor h = at::max_pool2d(
      at::relu(at::batch_norm(at::conv2d(t[0], t[1], {}, 1, 1), {}, {}, {}, {}, true, 0.1, 1e-5, false)), 2);
  at::Tensor y = at::linear(h.flatten(2), make_tensor({3, 6}, 8)).softmax(-1);
  y.select(2, 0).mul_(2);
  return {y, at::scaled_dot_product_attention(y, y, y), at::einsum("bij,bkj->bik", {y, y}), y.std(),
          at::mse_loss(y, y.flip({1}))};
}

TEST(Modes, InferenceAndNoGradGiveTheSame) {
  const auto under = [](auto make_guard) {
    return [make_guard](const List& t) {
      const auto guard = make_guard();
      List results = forward_of_a_net(t);
      for (at::Tensor& result : results) EXPECT_FALSE(result.requires_grad());
      results.push_back(t[0].detach().clone().add_(1));
      return results;
    };
  };
  const std::vector<ProgramN> rows = {{"inference", under([] { return std::make_unique<c10::InferenceMode>(); })},
                                      {"no_grad", under([] { return std::make_unique<at::NoGradGuard>(); })}};
  expect_on_ways(rows, [](const PlacementCase& way) {
    return std::vector<Input>{{kField, way.placements}, {make_tensor({4, 4, 3, 3}, 2), {}, true, true}};
  });
}

TEST(Modes, TensorsOfInferenceAreRefusedByAutograd) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    at::Tensor made;
    {
      const c10::InferenceMode inference;
      made = shard_of(kField, mesh, {shard(2)}) * 2;
      EXPECT_TRUE(made.is_inference());
    }
    const at::Tensor x = shard_of(kField, mesh, {shard(2)}).requires_grad_();
    EXPECT_THAT(message_of([&] { x* made; }), HasSubstr("Inference tensors cannot be saved for backward"));
    EXPECT_THAT(message_of([&] { made.add_(1); }), HasSubstr("Inplace update to inference tensor"));
  });
}

TEST(Modes, GradModeWithinAProgram) {
  expect_on_ways({{"switched",
                   [](const List& t) {
                     const at::Tensor x = t[0].detach().requires_grad_();
                     at::Tensor constant, y;
                     {
                       const at::NoGradGuard off;
                       constant = x.cumsum(2);
                       const at::AutoGradMode on(true);
                       y = x.square();
                     }
                     (y * constant).sum().backward();
                     return List{x.grad()};
                   }}},
                 [](const PlacementCase& way) {
                   return std::vector<Input>{{kField, way.placements}};
                 },
                 {.backward = false});
}

// Views that PyTorch does not differentiate, since their memory was written after they were made.
List read_without_gradients(const List& t) {
  const at::Tensor w = t[0].detach().clone().requires_grad_(), y = w * 2;
  const std::vector<at::Tensor> parts = y.split(2, 2);
  at::Tensor row, column;
  {
    const at::NoGradGuard off;
    row = w.select(2, 1);
    column = w.narrow(3, 0, 2);
    row.mul_(2);
  }
  y.mul_(3);
  List read;
  for (const at::Tensor& view : {row, column, parts[0], parts[2]}) {
    for (const at::Tensor& one : {view.detach(), view.gt(0), view.argmax(-1), view.isnan().any(), at::eq(view, view)})
      read.push_back(one);
  }
  read.push_back(row.gt(make_tensor({7, 4, 5}, 3).requires_grad_().narrow(0, 0, 3)));
  {
    const at::Tensor plain = make_tensor({3, 4, 7, 2}, 4).requires_grad_();
    const at::NoGradGuard off;
    const at::Tensor view = plain.narrow(3, 0, 2);
    view.mul_(2);
    const at::AutoGradMode on(true);
    read.push_back(column.gt(view));
  }
  y.sum().backward();
  read.push_back(w.grad());
  return read;
}

TEST(Modes, ViewsThatGiveNoGradientAreRead) {
  std::vector<PlacementCase> ways = kFieldWays;
  ways.push_back({"stored", {3}, {stored(0, {1, 0, 2})}});
  ways.push_back({"stored_and_cut", {2, 2}, {stored(3, {4, 1}), shard(2, {2, 5})}});
  expect_on_ways(
      {{"read", read_without_gradients}},
      [](const PlacementCase& way) {
        return std::vector<Input>{{kField, way.placements}};
      },
      {.backward = false}, ways);
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor w = shard_of(kField, mesh, {shard(2)}).requires_grad_();
    at::Tensor row;
    {
      const at::NoGradGuard off;
      row = w.select(2, 1);
      row.mul_(2);
    }
    EXPECT_THAT(message_of([&] { row * 2; }), HasSubstr("A view was created in no_grad mode"));
  });
}

// Views that were made while recording, and written while nothing was recorded. PyTorch differentiates them.
List read_after_a_write(const List& t) {
  List read;
  for (const bool leaf : {true, false}) {
    const at::Tensor w = t[0].detach().clone().requires_grad_(), y = leaf ? w : w * 2;
    const std::vector<at::Tensor> views = {y.select(2, 1), y.narrow(3, 0, 2), y.flatten(0, 1), y.transpose(1, 3),
                                           y.unsqueeze(0)};
    const at::Tensor plain = make_tensor({3, 4, 7, 5}, 4).requires_grad_(), part = plain.narrow(3, 0, 5);
    {
      const at::NoGradGuard off;
      y.mul_(3);
      views[1].add_(1);
      part.mul_(2);
    }
    at::Tensor loss = (y.detach() * part).sum();
    for (const at::Tensor& view : views) {
      for (const at::Tensor& one : {view.detach(), view.gt(0), view.argmax(-1), view.isnan().any(), at::eq(view, view)})
        read.push_back(one);
      loss = loss + view.square().sum();
    }
    read.push_back(y.gt(part));
    loss.backward();
    read.push_back(w.grad());
    read.push_back(plain.grad());
  }
  return read;
}

TEST(Modes, ViewsWrittenWithoutRecordingAreReadAndDifferentiated) {
  std::vector<PlacementCase> ways = kFieldWays;
  ways.push_back({"stored", {3}, {stored(0, {1, 0, 2})}});
  ways.push_back({"stored_and_cut", {2, 2}, {stored(3, {4, 1}), shard(2, {2, 5})}});
  expect_on_ways(
      {{"read", read_after_a_write}},
      [](const PlacementCase& way) {
        return std::vector<Input>{{kField, way.placements}};
      },
      {.backward = false}, ways);
}

// Autocast

class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

const std::vector<ProgramN> kCast = {
    {"linear", [](const List& t) { return List{at::linear(t[0], t[2])}; }},
    {"matmul",
     [](const List& t) {
       return List{t[0].matmul(t[0].transpose(-1, -2)), t[0].matmul(t[2].t())};
     }},
    {"conv",
     [](const List& t) {
       return List{at::conv2d(t[0], t[1], {}, {2, 1}, 1)};
     }},
    {"net",
     [](const List& t) {
       const at::Tensor h = at::gelu(at::group_norm(at::conv2d(t[0], t[1], {}, 1, 1), 2));
       return List{h, at::linear(h, t[2]).softmax(-1), at::mse_loss(h, at::zeros_like(h))};
     }},
    {"attention", [](const List& t) { return List{at::scaled_dot_product_attention(t[0], t[0], t[0])}; }},
    {"einsum",
     [](const List& t) {
       const at::Tensor v = t[0].sum({0, 1, 3});
       return List{at::einsum("bcij,kj->bcik", {t[0], t[2]}),
                   at::einsum("bcij,bdij->bcd", {t[0], t[0]}),
                   at::einsum("i,j->ij", {v, v}),
                   at::einsum("bcij,bci,kj->bck", {t[0], t[0].mean(3), t[2] * 0.25}),
                   at::einsum("bcij->cj", {t[0]}),
                   at::einsum("bci,bci->bci", {t[0].sum(3), t[0].mean(3)})};
     }},
    {"tensordot",
     [](const List& t) {
       return List{at::tensordot(t[0], t[2], {3}, {1}), at::tensordot(t[0], t[0], {1, 2}, {1, 2}),
                   at::tensordot(t[2], t[2], {}, {})};
     }},
    {"batches",
     [](const List& t) {
       const at::Tensor a = t[0].flatten(0, 1), b = a.transpose(1, 2);
       const at::Tensor c = make_tensor({7, 7}, 6, at::kFloat).expand({12, 7, 7});
       return List{a.bmm(b),
                   at::baddbmm(c, a, b),
                   at::addbmm(c[0], a, b),
                   a[0].mm(t[2].t()),
                   at::addmm(a[0], a[0].matmul(b[0]), a[1]),
                   at::linalg_vecdot(t[0], t[0]),
                   at::linalg_multi_dot({a[0], b[0], a[1]}),
                   a[0].mv(t[2][0]),
                   at::bilinear(t[0], t[0], make_tensor({2, 5, 5}, 9, at::kFloat))};
     }},
    {"convs",
     [](const List& t) {
       // Gradients of 1, about: those of w add up over all of them.
       const at::Tensor x = t[0] * 0.125, line = x.select(3, 2), volume = x.unsqueeze(2), w = t[1];
       return List{at::conv1d(line, w.select(3, 0), {}, 1, 1),   at::conv_transpose1d(line, w.select(3, 0)),
                   at::conv3d(volume, w.unsqueeze(2)),           at::conv_transpose2d(x, w, {}, 2),
                   at::conv_transpose3d(volume, w.unsqueeze(2)), at::conv2d(at::pad(x, {1, 1, 1, 1}, "circular"), w)};
     }},
    {"wide_again",
     [](const List& t) {
       const at::Tensor low = at::linear(t[0], t[2]);
       return List{at::mse_loss(low, low * 0), low.prod(),
                   at::cdist(low, low * 2),    low.cumsum(2),
                   at::cat({low, t[0]}, 3),    at::stack({low, t[0].narrow(3, 0, 1).expand({3, 4, 7, 6})})};
     }},
    {"wide_norms",
     [](const List& t) {
       const at::Tensor low = at::linear(t[0], t[2]);
       return List{at::upsample_bilinear2d(low, {3, 4}, false), low.std(), low.softmax(-1), at::layer_norm(low, {6}),
                   at::group_norm(low, 2)};
     }},
    {"kept_wide",
     [](const List& t) {
       return List{at::linear(t[0], t[2]).to(at::kFloat).sum(), t[0].exp(), t[0] + t[0].to(at::kBFloat16)};
     }},
};

// The products are rounded to 8 bits on either side, each rank's in its own order.
TEST(Modes, AutocastInBfloat16) {
  List dtypes;
  for (const ProgramN& row : kCast) {
    const auto cast = [&row](const List& t) {
      const Autocast on;
      return row.run(t);
    };
    expect_on_ways({{row.name, cast}},
                   [](const PlacementCase& way) {
                     return std::vector<Input>{{kField.to(at::kFloat), way.placements},
                                               {make_tensor({4, 4, 3, 3}, 2, at::kFloat), {}, true, true},
                                               {make_tensor({6, 5}, 3, at::kFloat)}};
                   },
                   {.tolerance = 0.04});
  }
  on_mesh({2}, [](const MeshPtr& mesh) {
    const Autocast on;
    const at::Tensor x = shard_of(kField.to(at::kFloat), mesh, {shard(2)}), w = make_tensor({6, 5}, 3, at::kFloat);
    EXPECT_EQ(at::linear(x, w).scalar_type(), at::kBFloat16);
    EXPECT_EQ(x.matmul(w.t()).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::mse_loss(at::linear(x, w), at::linear(x, w)).scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_autograd_modes
