// SPDX-License-Identifier: Apache-2.0
// Whatever LibTorch's autograd offers, asked of ShardTensors: second derivatives, the options of grad and backward,
// hooks, leaves of every kind. Programs see no difference; the oracle compares with one device.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/autograd_ways.h"

namespace moonhalo::testing::test_gradient_hooks {
namespace {

using ::testing::HasSubstr;
using torch::autograd::grad;
using torch::autograd::variable_list;

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().requires_grad_(); }

// Second derivatives

// Convolution, norm, activation, attention over the pixels, loss; and a penalty on the slope.
List penalised(const List& t) {
  const at::Tensor h = at::gelu(at::group_norm(at::conv2d(t[0], t[1], t[2], 1, 1), 2, t[3], t[3]));
  const at::Tensor tokens = h.flatten(2).transpose(1, 2);
  const at::Tensor attended = at::scaled_dot_product_attention(tokens, tokens.tanh(), at::linear(tokens, t[4]));
  const at::Tensor loss = at::mse_loss(attended.sum(1), at::ones({3, 4}, at::kDouble));
  const at::Tensor slope = grad({loss}, {t[0]}, {}, true, /*create_graph=*/true)[0];
  return {loss + slope.square().sum(), slope};
}

TEST(Autograd, PenaltyOnTheSlopeOfANet) {  // X01
  expect_on_ways({{"penalised", penalised}}, [](const PlacementCase& way) {
    return std::vector<Input>{{kField, way.placements},
                              {make_tensor({4, 4, 3, 3}, 2), {}, true, true},
                              {make_tensor({4}, 3)},
                              {make_tensor({4}, 4), {}, true, true},
                              {make_tensor({4, 4}, 5)}};
  });
}

const std::vector<Program1> kTwiceDifferentiable = {
    {"matmul", [](X x) { return List{x.matmul(x.transpose(-1, -2))}; }},
    {"matmul_over_rows", [](X x) { return List{x.transpose(-1, -2).matmul(x)}; }},
    {"softmax_of_rows", [](X x) { return List{x.softmax(2)}; }},
    {"log_softmax_of_columns", [](X x) { return List{x.log_softmax(3)}; }},
    {"logsumexp",
     [](X x) {
       return List{x.logsumexp({2, 3})};
     }},
    {"layer_norm",
     [](X x) {
       return List{at::layer_norm(x, {7, 5})};
     }},
    {"layer_norm_of_columns",
     [](X x) { return List{at::layer_norm(x, {5}, make_tensor({5}, 8), make_tensor({5}, 9))}; }},
    {"group_norm", [](X x) { return List{at::group_norm(x, 2, make_tensor({4}, 8), make_tensor({4}, 9))}; }},
    {"batch_norm",
     [](X x) { return List{at::batch_norm(x, make_tensor({4}, 8), {}, {}, {}, true, 0.1, 1e-5, false)}; }},
    {"avg_pool",
     [](X x) {
       return List{at::avg_pool2d(x, {3, 2}, {2, 1}, {1, 0})};
     }},
    {"max_pool",
     [](X x) {
       return List{at::max_pool2d(x.square(), {3, 3}, {2, 2}, {1, 1})};
     }},
    {"adaptive_pool",
     [](X x) {
       return List{at::adaptive_avg_pool2d(x.square(), {3, 2})};
     }},
    {"conv",
     [](X x) {
       return List{at::conv2d(x.square(), make_tensor({2, 4, 3, 3}, 8), make_tensor({2}, 9), {2, 1}, {1, 1})};
     }},
    {"conv_transposed",
     [](X x) {
       return List{at::conv_transpose2d(x.square(), make_tensor({4, 2, 3, 2}, 8), {}, {2, 1})};
     }},
    {"upsampled",
     [](X x) {
       return List{at::upsample_bilinear2d(x.square(), {9, 8}, false)};
     }},
    {"padded",
     [](X x) {
       return List{at::pad(x, {1, 2, 2, 1}, "circular").pow(3)};
     }},
    {"index",
     [](X x) {
       return List{x.index({at::tensor({2, 0, 2}), {}, at::tensor({6, 1, 6})}).pow(3)};
     }},
    {"index_select",
     [](X x) {
       return List{x.index_select(2, at::tensor({6, 0, 6, 3})).pow(3)};
     }},
    {"gather",
     [](X x) {
       return List{x.gather(2, make_tensor({3, 4, 2, 5}, 8, at::kLong).abs()).pow(3)};
     }},
    {"slices", [](X x) { return List{(x.slice(2, 1, 6) * x.slice(2, 2, 7) * x.select(2, 0).unsqueeze(2)).pow(2)}; }},
    {"masked",
     [](X x) {
       return List{x.masked_fill(x < 0.2, 3).pow(3), at::where(x > 0, x.exp(), x * x)};
     }},
    {"joined",
     [](X x) {
       return List{at::cat({x, x.flip({2}), x.roll(2, 3)}, 2).pow(3)};
     }},
    {"std_and_norm",
     [](X x) {
       return List{x.std({2, 3}), x.var(at::IntArrayRef{0}), at::norm(x, 2, {2}), x.norm()};
     }},
    {"prod_and_cumulatives",
     [](X x) {
       return List{x.prod(2), x.cumsum(2).pow(3), x.cumprod(3), x.logcumsumexp(2)};
     }},
    {"ordered",
     [](X x) {
       return List{std::get<0>(x.sort(2)).pow(3), std::get<0>(x.topk(2, 2)).pow(2), x.amax({2, 3}).pow(2)};
     }},
    {"losses",
     [](X x) {
       return List{at::mse_loss(x, x.tanh()), at::smooth_l1_loss(x, x.square()), at::huber_loss(x, x.exp()),
                   at::binary_cross_entropy_with_logits(x, x.sigmoid().detach())};
     }},
    {"activations",
     [](X x) { return List{at::gelu(x), at::silu(x), at::softplus(x), at::elu(x), at::mish(x), x.sigmoid().log()}; }},
    {"complex",
     [](X x) {
       return List{at::view_as_real(at::complex(x, x.square()).pow(2)), at::complex(x, x.sin()).abs()};
     }},
};

TEST(Autograd, SecondDerivatives) {  // S07, S14
  for (const Program1& row : kTwiceDifferentiable) {
    expect_on_ways({{row.name, [&](const List& t) { return row.run(t[0]); }}},
                   [](const PlacementCase& way) {
                     return std::vector<Input>{{kField, way.placements}};
                   },
                   {.double_backward = true});
  }
}

// Questions to grad and backward

// t[0] is held as the way says, t[1] is plain and t[2] a Replicate ShardTensor.
at::Tensor model(const at::Tensor& x, const at::Tensor& w, const at::Tensor& r) {
  return (at::linear(x, w).tanh() * r).square().sum({1, 2});
}

struct KeepsGrad final : torch::autograd::PostAccumulateGradHook {
  explicit KeepsGrad(List& seen) : seen(seen) {}
  void operator()(const torch::autograd::Variable& tensor) override { seen.push_back(tensor.grad().clone()); }
  List& seen;
};
struct DoublesGrads final : torch::autograd::FunctionPostHook {
  variable_list operator()(const variable_list& grads, const variable_list&) override {
    variable_list doubled;
    for (const at::Tensor& one : grads) doubled.push_back(one.defined() ? one * 2 : one);
    return doubled;
  }
};
struct NegatesGrads final : torch::autograd::FunctionPreHook {
  variable_list operator()(const variable_list& grads) override {
    variable_list negated;
    for (const at::Tensor& one : grads) negated.push_back(one.defined() ? -one : one);
    return negated;
  }
};

// As PyTorch's Python does when the first of its own hooks comes.
void replace_by_negation(const at::Tensor& leaf) {
  torch::autograd::impl::clear_hooks(leaf);
  torch::autograd::impl::add_hook(leaf, std::make_unique<NegatesGrads>());
}

const std::vector<ProgramN> kAsked = {
    {"unused_inputs_have_no_gradient",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       const List g = grad({at::linear(x, w).exp().sum()}, {x, r, w}, {}, std::nullopt, false, /*allow_unused=*/true);
       return List{g[0], g[2], at::scalar_tensor(g[1].defined())};
     }},
    {"unused_inputs_are_refused",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), r = leaf(t[2]);
       const std::string text = message_of([&] { grad({x.exp().sum()}, {x, r}); });
       EXPECT_THAT(text, HasSubstr("appears to not have been used in the graph"));
       return List{x.detach()};
     }},
    {"the_graph_is_kept",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       const at::Tensor y = model(x, w, t[2]).sum();
       const at::Tensor a = grad({y}, {x}, {}, /*retain_graph=*/true)[0], b = grad({y}, {w})[0];
       EXPECT_THAT(message_of([&] { grad({y}, {x}); }), HasSubstr("backward through the graph a second time"));
       return List{a, b};
     }},
    {"gradients_of_results_between",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]);
       const at::Tensor h = at::linear(x, t[1]), k = h.cumsum(2);
       const at::Tensor y = (k * k * h).sum();
       return grad({y}, {h, k, x});
     }},
    {"third_derivative",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]);
       at::Tensor y = (x.cumsum(2).sin() * x).sum();
       for (int i = 0; i < 3; ++i) y = grad({y}, {x}, {}, true, true)[0].pow(2).sum();
       return List{y, grad({y}, {x})[0]};
     }},
    {"retained_gradients",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]);
       at::Tensor h = at::linear(x, t[1]);
       h.retain_grad();
       at::Tensor k = h.mean(2);
       k.retain_grad();
       (k.exp().sum() + h.sum()).backward();
       return List{h.grad(), k.grad(), x.grad()};
     }},
    {"retained_after_writing_in_place",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]);
       at::Tensor h = x * 2;
       h.retain_grad();
       h.mul_(3).sin_();
       h.square().sum().backward();
       return List{h.grad(), x.grad()};
     }},
    {"accumulated_over_calls",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       model(x, w, r).sum().backward();
       (model(x, w, r) * 2).mean().backward();
       const at::Tensor once = x.grad().clone();
       x.mutable_grad().zero_();
       w.mutable_grad().zero_();
       r.mutable_grad().reset();
       model(x, w, r).sum().backward();
       return List{once, x.grad(), w.grad(), r.grad()};
     }},
    {"accumulated_with_a_graph",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), r = leaf(t[2]);
       model(x, t[1], r).sum().backward({}, true, /*create_graph=*/true);
       const at::Tensor penalty = x.grad().square().sum() + r.grad().square().sum();
       const List g = grad({penalty}, {x, r});
       return List{penalty, g[0], g[1]};
     }},
    {"only_some_leaves",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       torch::autograd::backward({model(x, w, r).sum()}, {}, std::nullopt, false, {w, x});
       return List{x.grad(), w.grad(), r.grad()};
     }},
    {"several_roots",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       const at::Tensor y = at::linear(x, w), z = x.sum(2);
       torch::autograd::backward({y, z, y.sum()}, {at::ones_like(y) * 3, at::full_like(z, 2), {}});
       return List{x.grad(), w.grad()};
     }},
    {"hooks_of_tensors",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       List seen;
       x.register_hook([](const at::Tensor& g) { return g * 3; });
       x.register_hook([&seen](const at::Tensor& g) { seen.push_back(g.clone()); });
       w.register_hook([](const at::Tensor& g) { return g.clamp(-0.5, 0.5); });
       r.register_hook([](const at::Tensor& g) { return g / g.norm(); });
       at::Tensor h = at::linear(x, w);
       const unsigned removed = h.register_hook([](const at::Tensor& g) { return g * 100; });
       h.register_hook([](const at::Tensor& g) { return g + g.mean(); });
       h.remove_hook(removed);
       (h.tanh() * r).square().sum().backward();
       seen.insert(seen.end(), {x.grad(), w.grad(), r.grad()});
       return seen;
     }},
    {"hooks_of_plain_results",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       List seen;
       const auto sees = [&seen](double factor) {
         return [&seen, factor](const at::Tensor& g) {
           EXPECT_FALSE(is_shard_tensor(g));
           seen.push_back(g.clone());
           return g.clamp(-0.5, 0.5) * factor;
         };
       };
       const at::Tensor doubled = w * 2;
       const List halves = w.split(3);  // two results of one node
       doubled.register_hook(sees(3));
       halves[1].register_hook(sees(5));
       halves[0].register_hook(sees(7));
       const at::Tensor y = at::linear(at::linear(x, doubled).tanh().sum(3, true), r.unsqueeze(1));
       doubled.register_hook(sees(2));
       (y + at::linear(x, at::cat({halves[1], halves[0]}))).square().sum().backward();
       seen.insert(seen.end(), {x.grad(), w.grad()});
       return seen;
     }},
    {"hooks_that_replace_all_others",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       const at::Tensor loss = model(x, w, r).sum();
       for (const at::Tensor& one : {x, w, r}) {
         replace_hooks(one, [&one] { replace_by_negation(one); });
       }
       loss.backward();
       EXPECT_FALSE(is_shard_tensor(w.grad()));
       return List{x.grad(), w.grad(), r.grad()};
     }},
    {"hooks_after_accumulation",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       List seen;
       for (const at::Tensor& one : {x, w, r}) {
         torch::autograd::impl::set_post_acc_grad_hooks(one, std::make_unique<KeepsGrad>(seen));
         model(x, w, r).sum().backward();
         torch::autograd::impl::set_post_acc_grad_hooks(one, nullptr);
       }
       seen.push_back(x.grad());
       return seen;
     }},
    {"hooks_of_nodes",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       at::Tensor h = at::linear(x, w);
       h.grad_fn()->add_post_hook(std::make_unique<DoublesGrads>());
       at::Tensor k = h.cumsum(2);
       k.grad_fn()->add_pre_hook(std::make_unique<NegatesGrads>());
       k.square().sum().backward();
       return List{x.grad(), w.grad()};
     }},
    {"detached_and_shared",
     [](const List& t) {
       const at::Tensor x = leaf(t[0]);
       const at::Tensor y = x.sin();
       (y * y.detach() + x.detach() * y).sum().backward();
       at::Tensor z = x.detach();
       EXPECT_FALSE(z.requires_grad());
       return List{x.grad(), z};
     }},
};

TEST(Autograd, GradAndBackwardAndHooks) {  // S14, S27
  expect_on_ways(kAsked,
                 [](const PlacementCase& way) {
                   return std::vector<Input>{
                       {kField, way.placements}, {make_tensor({6, 5}, 2), {}, true, true}, {make_tensor({6}, 3)}};
                 },
                 {.backward = false});
}

TEST(Autograd, HooksOfTwoLanguagesOnOneWeight) {  // S27
  run_ranks(2, [](Communicator& world) {
    const at::Tensor x = distribute_tensor(make_tensor({5, 3}, 1), init_device_mesh(world, "cpu", {2}), {shard(0)});
    const at::Tensor w = leaf(make_tensor({3}, 2));
    const at::Tensor plain = full_tensor(x).sum(0);
    const auto doubles = [](const at::Tensor& g) { return g * 2; };
    const auto adds_one = [](const at::Tensor& g) {
      EXPECT_FALSE(is_shard_tensor(g));
      return g + 1;
    };
    at::Tensor loss = (x * w).sum();
    w.register_hook(doubles);
    replace_hooks(w, [&w] { replace_by_negation(w); });
    w.register_hook(adds_one);
    loss.backward();
    EXPECT_TRUE(at::allclose(w.grad(), -2 * plain + 1)) << w.grad();
    w.mutable_grad() = at::Tensor();
    loss = (x * w).sum();
    replace_hooks(w, [&w] { torch::autograd::impl::clear_hooks(w); });
    loss.backward();
    EXPECT_TRUE(at::allclose(w.grad(), 2 * plain + 1)) << w.grad();
  });
}

TEST(Autograd, AHookBeforeTheFirstUseIsKept) {  // S27
  run_ranks(2, [](Communicator& world) {
    const at::Tensor x = distribute_tensor(make_tensor({5, 3}, 1), init_device_mesh(world, "cpu", {2}), {shard(0)});
    const at::Tensor w = leaf(make_tensor({3}, 2));
    replace_by_negation(w);
    (x * w).sum().backward();
    EXPECT_TRUE(at::allclose(w.grad(), -full_tensor(x).sum(0))) << w.grad();
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_gradient_hooks
