// SPDX-License-Identifier: Apache-2.0
// Code that users bring: their derivatives, operators without a rule, writes through views, tools of
// torch::nn::utils.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include "moonhalo/engine/model/local_map.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/autograd_ways.h"

namespace moonhalo::testing::test_autograd_users {
namespace {

using ::testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::grad;
using torch::autograd::variable_list;
namespace nn = torch::nn;

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().requires_grad_(); }
at::Tensor whole(const at::Tensor& tensor) {
  return tensor.defined() && is_shard_tensor(tensor) ? full_tensor(tensor) : tensor;
}

std::vector<Input> field_and_weights(const PlacementCase& way) {
  return {{kField, way.placements}, {make_tensor({6, 5}, 2), {}, true, true}, {make_tensor({6}, 3)}};
}

// torch::autograd::Function

// sum over the columns of x^3 w, with a derivative that is itself a Function.
struct CubeBackward : Function<CubeBackward> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& g, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({g, x, w});
    return {g.unsqueeze(-1) * 3 * x.square() * w, (g.unsqueeze(-1) * x.pow(3)).sum({0, 1, 2})};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gg) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor g = saved[0].unsqueeze(-1), x = saved[1], w = saved[2];
    return {(gg[0] * 3 * x.square() * w + gg[1] * x.pow(3)).sum(-1), g * 6 * x * w * gg[0] + g * 3 * x.square() * gg[1],
            (g * 3 * x.square() * gg[0]).sum({0, 1, 2})};
  }
};
struct Cube : Function<Cube> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return (x.pow(3) * w).sum(-1);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& g) {
    const auto saved = ctx->get_saved_variables();
    return CubeBackward::apply(g[0], saved[0], saved[1]);
  }
};
// Scales in place and marks what it wrote; gives one result that is not differentiable.
struct ScaleInPlace : Function<ScaleInPlace> {
  static variable_list forward(AutogradContext* ctx, at::Tensor x, double factor) {
    ctx->saved_data["factor"] = factor;
    x.mul_(factor);
    const at::Tensor positive = x > 0;
    ctx->mark_dirty({x});
    ctx->mark_non_differentiable({positive});
    return {x, positive};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& g) {
    return {g[0] * ctx->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

TEST(AutogradOfUsers, FunctionsWithDerivativesOfTheirOwn) {  // V13
  const std::vector<ProgramN> rows = {
      {"cube", [](const List& t) { return List{Cube::apply(t[0], make_tensor({5}, 4) + t[1].mean(0))}; }},
      {"in_place",
       [](const List& t) {
         const at::Tensor x = t[0] * 2;
         const auto results = ScaleInPlace::apply(x, 3.0);
         EXPECT_FALSE(results[1].requires_grad());
         return List{results[0].sin() * results[1], x};
       }},
  };
  expect_on_ways(rows, field_and_weights, {.double_backward = true});
}

// Operators of users, without a rule

// Reads and writes memory: nothing that could run on a ShardTensor by itself.
at::Tensor running_product(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor result = (x * w).contiguous();
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns;
  auto* data = result.mutable_data_ptr<double>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 1; c < columns; ++c) data[r * columns + c] *= data[r * columns + c - 1];
  }
  return result;
}
at::Tensor call_running_product(const at::Tensor& x, const at::Tensor& w) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("moonhalo_test::running_product", "")
                             .typed<decltype(running_product)>();
  return op.call(x, w);
}
struct RunningProduct : Function<RunningProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, w});
    return call_running_product(x, w);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& g) {
    const auto saved = ctx->get_saved_variables();
    const at::AutoGradMode recording(true);
    const at::Tensor x = leaf(saved[0]), w = leaf(saved[1]);
    return grad({(x * w).cumprod(-1)}, {x, w}, {g[0]});
  }
};
at::Tensor running_product_autograd(const at::Tensor& x, const at::Tensor& w) { return RunningProduct::apply(x, w); }

TORCH_LIBRARY(moonhalo_test, library) { library.def("running_product(Tensor x, Tensor w) -> Tensor"); }
TORCH_LIBRARY_IMPL(moonhalo_test, CPU, library) { library.impl("running_product", &running_product); }
TORCH_LIBRARY_IMPL(moonhalo_test, AutogradCPU, library) { library.impl("running_product", &running_product_autograd); }

TEST(AutogradOfUsers, V13_AnOperatorWithoutARuleRunsOnBlocks) {
  const auto rows = [](const PlacementCase& way) {
    return [&way](const List& t) {
      Placements cut = way.placements;
      for (Placement& one : cut) one.sizes.clear();
      const Placements copies(way.mesh.size(), replicate());
      return local_map([](const List& in) { return List{call_running_product(in[0], in[1])}; }, {t[0], t[1]},
                       {.in_placements = {cut, copies}, .out_placements = {cut}});
    };
  };
  for (const PlacementCase& way : kFieldWays) {
    if (way.placements.back().dim == 3) continue;  // along the columns it is not a function of blocks
    SCOPED_TRACE(way.name);
    for (const bool plain : {true, false}) {
      expect_same_as_plain(way.mesh, {{kField, way.placements}, {make_tensor({5}, 2), {}, true, plain}}, rows(way));
    }
  }
  // Without the wrapper: refused, or gathered.
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = leaf(shard_of(kField, mesh, {shard(2, {2, 5})})), w = make_tensor({5}, 2);
    EXPECT_THAT(message_of([&] { call_running_product(x, w); }),
                HasSubstr("moonhalo_test::running_product: no rule for these placements"));
    set_fallback(Fallback::kReplicate);
    EXPECT_EQ(difference(full_tensor(call_running_product(x, w).detach()), call_running_product(kField, w), 1e-12), "");

    const LocalMapOptions rows{.in_placements = {Placements{shard(1)}}, .out_placements = {Placements{shard(2)}}};
    const auto same = [](const List& in) { return in; };
    EXPECT_THAT(message_of([&] { local_map(same, {x}, rows); }),
                HasSubstr("local_map: argument 1 has placements {Shard(2, {2, 5})}, in_placements says {Shard(1)}"));
    EXPECT_THAT(message_of([&] {
                  local_map([](const List&) { return List{}; }, {x}, {.out_placements = {Placements{shard(2)}}});
                }),
                HasSubstr("out_placements is for 1 results, there are 0"));
    const at::Tensor r = leaf(shard_of(make_tensor({5}, 2), mesh, {}));
    EXPECT_THAT(message_of([&] {
                  local_map(
                      [](const List& in) {
                        return List{in[0] * in[1], in[1] * 2};
                      },
                      {x, r}, {.out_placements = {Placements{shard(2)}, Placements{replicate()}}});
                }),
                HasSubstr("local_map: argument 2 is replicated and needs a gradient"));
  });
}

TEST(AutogradOfUsers, V13_ASumTakesTheGradientOfItsAddends) {
  const auto twice = [](const List& in) { return List{in[0] * 2}; };
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = leaf(from_local(at::full({4}, 1.5, at::kDouble), mesh, {partial()}));

    const at::Tensor y = local_map(twice, {x}, {.out_placements = {Placements{partial()}}})[0];
    full_tensor(y).sum().backward();

    EXPECT_TRUE(at::equal(full_tensor(y.detach()), at::full({4}, 9, at::kDouble)));
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full({4}, 2, at::kDouble)));
  });
}

TEST(AutogradOfUsers, V13_TheMeshMayBeGivenAndArgumentsUndefined) {
  const auto rows = [](const List& in) { return List{in[0] * 2, {}}; };
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Placements cut{shard(0)};
    const at::Tensor x = make_tensor({5}, 2);

    const List y = local_map(rows, {x, {}}, {.in_placements = {cut}, .out_placements = {cut, cut}, .mesh = mesh});

    EXPECT_TRUE(at::equal(full_tensor(y[0]), x * 2));
    EXPECT_FALSE(y[1].defined());
    EXPECT_THAT(message_of([&] { local_map(rows, {x}, {.out_placements = {Placements{}}, .mesh = mesh}); }),
                HasSubstr("local_map: result 1 has 0 placements for"));
  });
}

// Writes through views

const std::vector<ProgramN> kViewsWritten = {
    {"select_and_slice",
     [](const List& t) {
       at::Tensor y = t[0] * 1;
       y.select(2, 3).mul_(2);
       y.slice(2, 1, 6).add_(1).sin_();
       y.select(3, 2).exp_();
       return List{y};
     }},
    {"permuted_chain",
     [](const List& t) {
       at::Tensor y = t[0] * 1;
       const at::Tensor a = y.permute({2, 0, 1, 3}), b = a.slice(0, 1, 5), c = b.unsqueeze(0);
       c.mul_(t[2].sum() + b.detach());
       return List{y, a.sum(0), b, c.square()};
     }},
    {"flattened",
     [](const List& t) {
       at::Tensor y = t[0] * 1;
       at::Tensor flat = y.flatten(0, 1);
       flat.mul_(3);
       y.view({12, 7, 5}).mul_(2).sub_(flat.detach());
       return List{y, flat};
     }},
    {"base_after_view",
     [](const List& t) {
       at::Tensor y = t[0] * 1;
       const at::Tensor v = y.transpose(1, 2).slice(1, 0, 4);
       y.mul_(y.detach() + 2);
       return List{v.square(), y.sum(2)};
     }},
    {"copied_into_a_view",
     [](const List& t) {
       at::Tensor y = at::zeros_like(t[0]);
       y.slice(3, 0, 2).copy_(t[0].slice(3, 3, 5) * 2);
       y.slice(2, 2, 7).slice(3, 2, 5).copy_(t[0].slice(2, 0, 5).slice(3, 1, 4));
       return List{y};
     }},
    {"filled_and_masked",
     [](const List& t) {
       at::Tensor y = t[0].sin();
       y.slice(2, 0, 2).zero_();
       y.select(2, 5).fill_(3);
       y.slice(2, 2, 7).masked_fill_(t[0].detach().slice(2, 2, 7) > 0.5, -1);
       y.select(3, 0).add_(t[0].select(3, 1), 2);
       return List{y.square()};
     }},
    {"after_joining_and_splitting",
     [](const List& t) {  // unbind, split, chunk and cat over and off the cut dim
       const auto rows = t[0].unbind(2);
       const auto parts = t[0].split({3, 4}, 2);
       at::Tensor y = at::cat({parts[1], parts[0] * 2, at::stack({rows[0], rows[6]}, 2)}, 2);
       y.narrow(2, 2, 4).mul_(t[0].chunk(2, 2)[0]).relu_();
       return List{y, y.chunk(3, 3)[1].pow(2)};
     }},
    {"rows_of_zeros_filled_in_a_loop",
     [](const List& t) {
       at::Tensor y = at::zeros_like(t[0]), state = t[0].select(2, 0);
       for (int64_t i = 0; i < 7; ++i) {
         y.select(2, i).copy_(state);
         state = (state + t[0].select(2, i)).tanh();
       }
       return List{y, state};
     }},
};

TEST(AutogradOfUsers, S26_WritesThroughViews) {
  expect_on_ways(kViewsWritten, field_and_weights, {.double_backward = true});
}

// torch::nn::utils, parametrisations, copies of state

at::Tensor loss_of(const at::Tensor& x, const at::Tensor& w, const at::Tensor& r) {
  return (at::linear(x, w) * r).tanh().square().sum();
}

const std::vector<ProgramN> kTools = {
    {"clip_grad_norm",
     [](const List& t) {
       List seen;
       for (const double kind : {2.0, 1.0, double{INFINITY}}) {
         const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
         loss_of(x, w, r).backward();
         const double norm = nn::utils::clip_grad_norm_(List{x, w, r}, 0.7, kind, true);
         const List all = {at::scalar_tensor(norm, at::kDouble), x.grad(), w.grad(), r.grad()};
         seen.insert(seen.end(), all.begin(), all.end());
       }
       return seen;
     }},
    {"clip_grad_value",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       loss_of(x, w, r).backward();
       nn::utils::clip_grad_value_(List{x, w, r}, 0.1);
       return List{x.grad(), w.grad(), r.grad()};
     }},
    {"one_vector_of_parameters",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), r = leaf(t[2]);
       const at::Tensor vector = nn::utils::parameters_to_vector({x, r});
       const at::Tensor slope = grad({(vector * vector).sum()}, {x})[0];
       nn::utils::vector_to_parameters(vector.detach() * 2 + 1, {x, r});
       loss_of(x, t[1], r).backward();
       return List{vector.detach(), slope, x.detach(), r.detach(), x.grad(), r.grad()};
     }},
    {"weight_norm",
     [](const List& t) {
       const at::Tensor v = leaf(t[0]), g = leaf(t[2]);
       const at::Tensor w = g.slice(0, 0, 5) * v / at::linalg_vector_norm(v, 2, at::IntArrayRef{1, 2, 3}, true);
       const at::Tensor u = at::_weight_norm(v, v.detach().square().sum({1, 2, 3}, true), 0);
       (w.sin().sum() + u.cos().sum()).backward();
       return List{v.grad(), g.grad()};
     }},
    {"spectral_norm",
     [](const List& t) {
       const at::Tensor w = leaf(t[0]);
       const at::Tensor matrix = w.permute({2, 0, 1, 3}).reshape({7, 60});
       at::Tensor u = at::ones({7}, at::kDouble), v;
       {
         const at::NoGradGuard off;
         for (int i = 0; i < 5; ++i) {
           v = matrix.t().mv(u);
           v = v / v.norm().clamp_min(1e-12);
           u = matrix.mv(v);
           u = u / u.norm();
         }
       }
       const at::Tensor sigma = u.dot(matrix.mv(v));
       (w / sigma).exp().sum().backward();
       return List{sigma.detach(), w.grad()};
     }},
    {"copies_of_state",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1].clone()), r = leaf(t[2].clone());
       const List state = {x.detach().clone(), w.detach().clone(), r.detach().clone()};
       {
         const at::NoGradGuard off;
         for (const at::Tensor& one : {x, w, r}) at::Tensor(one).mul_(3);
         at::Tensor(x).copy_(state[0]);
         at::Tensor(w).copy_(state[1] + r.sum() * 0);   // a ShardTensor into a plain tensor
         at::Tensor(r).copy_(w.detach().select(1, 2));  // and the other way
       }
       loss_of(x, w, r).backward();
       return List{x.grad(), w.grad(), r.grad(), w.detach()};
     }},
    {"data_of_another_cut",
     [](const List& t) {
       at::Tensor x = leaf(t[0]);
       loss_of(x, t[1], t[2]).backward();
       const at::Tensor first = x.grad().clone();
       at::Tensor other = t[0].detach() * 2;
       if (is_shard_tensor(other)) other = redistribute(other, Placements(spec(other)->mesh()->ndim(), replicate()));
       x.set_data(other);
       x.mutable_grad().reset();
       loss_of(x, t[1], t[2]).backward();
       if (is_shard_tensor(x)) EXPECT_EQ(without_partial(spec(x.grad())), spec(x));
       return List{first, x.grad(), x.detach()};
     }},
    {"detached_in_place",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]);
       at::Tensor state = at::zeros_like(t[0]);
       List seen;
       for (int i = 0; i < 2; ++i) {
         state.detach_();
         state.requires_grad_();
         const at::Tensor next = (state + x).tanh();
         next.cumsum(2).square().sum().backward();
         seen.push_back(state.grad().clone());
         state = next;
       }
       seen.push_back(x.grad());
       return seen;
     }},
};

TEST(AutogradOfUsers, ToolsOfTorchNnUtils) { expect_on_ways(kTools, field_and_weights, {.backward = false}); }

TEST(AutogradOfUsers, WhatNeedsStorageSaysSo) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(kField, mesh, {shard(2)});
    std::stringstream stream;
    const std::string text = message_of([&] { torch::save(x, stream); });
    EXPECT_THAT(text, HasSubstr("a ShardTensor has no storage of its own"));
    EXPECT_THAT(text, HasSubstr("full_tensor"));
    EXPECT_THAT(message_of([&] { x.storage(); }), HasSubstr("[3, 4, 7, 5] on mesh(2: dim_0): Shard(2, {4, 3})"));
  });
}

// Whole programs

// V18: activations cut along the sequence; the norm's weights are replicated, their gradients reduced.
TEST(AutogradOfUsers, V18_LayerNormAndDropoutOnACutSequence) {
  const at::Tensor full = make_tensor({2, 7, 6}, 1);
  const auto train = [&](const at::Tensor& input, const auto& make) {
    manual_seed(11);
    const at::Tensor x = leaf(input), weight = leaf(make(make_tensor({6}, 2))), bias = leaf(make(make_tensor({6}, 3)));
    const at::Tensor h = at::dropout(at::layer_norm(x, {6}, weight, bias), 0.4, true);
    (at::gelu(h) + x).square().mean().backward();
    return List{whole(h.detach()), whole(x.grad()), whole(weight.grad()), whole(bias.grad())};
  };
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 4}, {5, 0, 2}, {1, 2, 2, 2}}) {
    on_mesh({static_cast<int64_t>(sizes.size())}, [&](const MeshPtr& mesh) {
      const auto plainly = [](const at::Tensor& t) { return t; };
      const List expected = train(full, plainly);
      const at::Tensor x = shard_of(full, mesh, {shard(1, sizes)});
      for (const List& actual :
           {train(x, plainly), train(x, [&](const at::Tensor& t) { return shard_of(t, mesh, {}); })}) {
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(difference(actual[i], expected[i], 1e-12), "") << i;
      }
    });
  }
}

// S28: the batch, the rows and the channels of the weights each cut by a mesh dim of two.
TEST(AutogradOfUsers, S28_BatchDomainAndModel) {
  const Placement r = replicate();
  const std::vector<Input> inputs = {
      {make_tensor({3, 2, 7, 5}, 1), {shard(0, {1, 2}), shard(2, {5, 2}), r}},
      {make_tensor({5, 2, 3, 3}, 2), {r, r, shard(0, {3, 2})}},
      {make_tensor({5}, 3), {r, r, shard(0, {3, 2})}},
      {make_tensor({4, 5, 1, 1}, 4), {r, r, shard(1, {3, 2})}},
      {make_tensor({4}, 5), {r, r, r}},
      {make_tensor({6, 4}, 6), {r, r, shard(0, {2, 4})}},
      {make_tensor({6}, 7), {}, true, true},
  };
  const Program net = [](const List& t) {
    const at::Tensor h = at::gelu(at::conv2d(t[0], t[1], t[2], 1, 1));
    const at::Tensor y = at::group_norm(at::conv2d(h, t[3]), 2, t[4]);
    const at::Tensor tokens = y.flatten(2).transpose(1, 2);
    const at::Tensor out = at::linear(tokens, t[5], t[6]);
    return List{out.square().mean(), at::softmax(out, 1)};
  };
  expect_same_as_plain({2, 2, 2}, inputs, net);
  expect_same_as_plain({2, 2, 2}, inputs, net, {.backward = false, .double_backward = true});
}

}  // namespace
}  // namespace moonhalo::testing::test_autograd_users
