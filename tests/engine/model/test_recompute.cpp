// SPDX-License-Identifier: Apache-2.0
// Checkpointed segments give what the same code gives without, and keep less.
#include "moonhalo/engine/model/recompute.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/autograd_ways.h"

namespace moonhalo::testing::test_recompute {
namespace {

using ::testing::HasSubstr;
using torch::autograd::grad;

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().requires_grad_(); }

// Runs its segments as they are, or checkpointed.
using Call = std::function<List(const Segment&, const List&)>;
List directly(const Segment& segment, const List& inputs) { return segment(inputs); }
List checkpointed(const Segment& segment, const List& inputs) { return checkpoint(segment, inputs); }

struct Row {
  const char* name;
  std::function<List(const Call&, const List&)> run;
};

// t: the field as the way says, a plain [6, 5], a Replicate [6].
const Row kRows[] = {
    {"captured_weights",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       const auto block = [&](const List& in) { return List{(at::linear(in[0], w).tanh() * r).square()}; };
       call(block, {x})[0].sum().backward();
       return List{x.grad(), w.grad(), r.grad()};
     }},
    {"several_inputs_and_results",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       const auto block = [&](const List& in) {
         const at::Tensor h = at::linear(in[0], in[1]);
         return List{h.exp(), in[0], h.detach(), in[2] * 2, h.sum(2)};
       };
       const List y = call(block, {x, w, t[2]});
       EXPECT_FALSE(y[2].requires_grad() || y[3].requires_grad());
       const List g = grad({y[0].mean() + y[1].square().sum() + (y[4] * y[3]).sum()}, {x, w});
       return List{y[0].detach(), y[2], g[0], g[1]};
     }},
    {"captured_activations",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       const at::Tensor h = at::linear(x, w).sin(), k = h.cumsum(2);
       const auto block = [&](const List& in) { return List{in[0] * h + in[0].square() * k}; };
       (call(block, {h.exp()})[0] + h).sum().backward();
       return List{x.grad(), w.grad()};
     }},
    {"inputs_of_each_other",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]);
       const at::Tensor y = x.sin();
       const auto block = [](const List& in) { return List{in[0] * in[1].cumsum(2) * in[1]}; };
       call(block, {x, y})[0].sum().backward();
       return List{x.grad()};
     }},
    {"stacked_and_nested",
     [](const Call& call, const List& t) {
       const at::Tensor w = leaf(t[1].slice(0, 0, 5)), x = leaf(t[0]);
       const Segment inner = [&](const List& in) { return List{at::linear(in[0], w).tanh()}; };
       const Segment outer = [&](const List& in) {
         const at::Tensor h = call(inner, {in[0]})[0];
         return List{call(inner, {h + in[0]})[0] * h};
       };
       const at::Tensor y = call(outer, {call(outer, {x})[0]})[0];
       const at::Tensor loss = at::mse_loss(y, at::zeros_like(y));
       loss.backward();
       return List{loss.detach(), x.grad(), w.grad()};
     }},
    {"second_derivatives",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]), r = leaf(t[2]);
       const Segment block = [&](const List& in) { return List{(at::linear(in[0], w).tanh() * in[1]).cumsum(2)}; };
       const at::Tensor y = call(block, {x, r})[0].square().mean();
       const List slope = grad({y}, {x, r}, {}, true, true);
       (y + slope[0].square().sum() * 10 + slope[1].exp().sum()).backward();
       return List{slope[0].detach(), x.grad(), w.grad(), r.grad()};
     }},
    {"the_graph_is_kept",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       const Segment block = [&](const List& in) { return List{at::linear(in[0], w).exp()}; };
       const at::Tensor y = call(block, {x})[0].sum();
       const at::Tensor once = grad({y}, {w}, {}, /*retain_graph=*/true)[0];
       const List twice = grad({y}, {x, w});
       EXPECT_THAT(message_of([&] { grad({y}, {x}); }), HasSubstr("second time"));
       return List{once, twice[0], twice[1]};
     }},
    {"hooks_run_once",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       const Segment block = [&](const List& in) { return List{at::linear(in[0], w).sin()}; };
       int64_t runs = 0;
       w.register_hook([&](const at::Tensor& g) { return ++runs, g * 3; });
       x.register_hook([](const at::Tensor& g) { return g + 1; });
       call(block, {x})[0].sum().backward();
       EXPECT_EQ(runs, 1);
       return List{x.grad(), w.grad()};
     }},
    {"random_numbers_repeat",
     [](const Call& call, const List& t) {
       const at::Tensor x = leaf(t[0]), w = leaf(t[1]);
       manual_seed(7);
       const Segment block = [&](const List& in) { return List{at::dropout(at::linear(in[0], w), 0.5, true)}; };
       const at::Tensor y = call(block, {x})[0], after = at::rand_like(y);
       const at::Tensor weighted = (y * at::dropout(y, 0.5, true)).sum();
       weighted.backward();
       return List{y.detach(), after, at::rand_like(y), x.grad(), w.grad()};
     }},
    {"nothing_to_differentiate",
     [](const Call& call, const List& t) {
       const Segment block = [&](const List& in) { return List{in[0].exp()}; };
       const at::Tensor constant = call(block, {t[0]})[0];
       EXPECT_FALSE(constant.requires_grad());
       const at::NoGradGuard off;
       return List{constant, call(block, {leaf(t[0])})[0]};
     }},
};

std::vector<Input> inputs_of(const PlacementCase& way) {
  return {{kField, way.placements}, {make_tensor({6, 5}, 2), {}, true, true}, {make_tensor({6}, 3)}};
}

TEST(Checkpoint, GivesWhatTheSegmentGives) {
  for (const Row& row : kRows) {
    // Random numbers of plain tensors are drawn otherwise outside of ranks.
    if (std::string(row.name) != "random_numbers_repeat") {
      expect_on_ways({{row.name, [&](const List& t) { return row.run(checkpointed, t); }}}, inputs_of,
                     {.backward = false});
    }
    for (const PlacementCase& way : kFieldWays) {
      SCOPED_TRACE(std::string(row.name) + " beside itself " + way.name);
      on_mesh(way.mesh, [&](const MeshPtr& mesh) {
        const List t = {shard_of(kField, mesh, way.placements), make_tensor({6, 5}, 2),
                        shard_of(make_tensor({6}, 3), mesh, {})};
        const List with = row.run(checkpointed, t), without = row.run(directly, t);
        for (size_t i = 0; i < with.size(); ++i) {
          const auto whole = [](const at::Tensor& x) { return is_shard_tensor(x) ? full_tensor(x) : x; };
          EXPECT_EQ(difference(whole(with[i]), whole(without[i]), 1e-12), "") << i;
        }
      });
    }
  }
}

TEST(Checkpoint, KeepsNothingOfTheSegment) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = leaf(shard_of(kField, mesh, {shard(2, {2, 5})}));
    for (const Call& call : {Call(directly), Call(checkpointed)}) {
      std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made;
      int64_t runs = 0;
      const Segment block = [&](const List& in) {
        ++runs;
        const at::Tensor h = in[0].exp(), k = h.sin() * h;
        for (const at::Tensor& one : {h, k}) made.emplace_back(one.getIntrusivePtr());
        return List{k.square().sum(2)};
      };
      const at::Tensor y = call(block, {call(
                                            [&](const List& in) {
                                              return block({in[0], in[0]});
                                            },
                                            {x})[0]
                                            .unsqueeze(2)})[0];

      const auto alive = std::count_if(made.begin(), made.end(), [](const auto& one) { return !one.expired(); });
      const bool plain = runs == 2 && alive == 4;
      const bool dropped = runs == 2 && alive == 0;
      EXPECT_TRUE(call.target<List (*)(const Segment&, const List&)>() &&
                          *call.target<List (*)(const Segment&, const List&)>() == directly
                      ? plain
                      : dropped)
          << alive << " of " << made.size() << " are alive";
      y.sum().backward();
    }
  });
}

TEST(Checkpoint, AutocastIsAsInTheFirstRun) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor full = kField.to(at::kFloat);
    List seen;
    for (const Call& call : {Call(directly), Call(checkpointed)}) {
      const at::Tensor x = leaf(shard_of(full, mesh, {shard(2, {2, 5})})), w = leaf(make_tensor({6, 5}, 2, at::kFloat));
      std::vector<at::ScalarType> dtypes;
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor y = call(
          [&](const List& in) {
            const at::Tensor h = at::linear(in[0], w);
            dtypes.push_back(h.scalar_type());
            return List{h.tanh()};
          },
          {x})[0];
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      y.to(at::kFloat).sum().backward();
      EXPECT_THAT(dtypes, ::testing::Each(at::kBFloat16));
      seen.push_back(full_tensor(x.grad()));
    }
    EXPECT_EQ(difference(seen[1], seen[0], 0), "");
  });
}

TEST(Checkpoint, OtherTensorsInTheSecondRunAreRefused) {
  const at::Tensor x = leaf(kField), a = leaf(kField), b = leaf(kField);
  bool first = true;
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return in * (std::exchange(first, false) ? a : b); }, x);

  EXPECT_THAT(message_of([&] { y.sum().backward(); }),
              HasSubstr("checkpoint: the segment used other tensors when it was run again"));
}

TEST(Checkpoint, InputsWrittenSinceAreRefused) {
  const at::Tensor w = leaf(kField), x = w * 2;
  const at::Tensor y = checkpoint([](const at::Tensor& in) { return in.exp(); }, x);
  x.add_(1);

  EXPECT_THAT(message_of([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

}  // namespace
}  // namespace moonhalo::testing::test_recompute
