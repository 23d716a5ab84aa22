// SPDX-License-Identifier: Apache-2.0
// Plain tensors that differ between ranks are found where they are combined with ShardTensors, and nothing else is.
#include "moonhalo/engine/dispatch/check_replicated.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <set>

#include "moonhalo/engine/exchange/replicated_values.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_check_replicated {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kNotAlike = "is not the same on all ranks; beside ShardTensors it counts as replicated";

at::Tensor block(const MeshPtr& mesh, at::IntArrayRef shape, int64_t dim = 0, int64_t seed = 1) {
  std::vector<Placement> placements(mesh->ndim());
  placements[0] = shard(dim);
  return shard_of(make_tensor(shape, seed), mesh, placements);
}

struct Case {
  const char* name;
  at::Tensor plain;
  std::function<void(const at::Tensor& x, const at::Tensor& p)> program;  // x: [6, 4], cut by rows
  const char* what;
  bool weight = false;
};

// The tensor, with another last number on one rank.
at::Tensor of_rank(const at::Tensor& tensor, bool other) {
  at::Tensor own = tensor.detach().clone();
  if (other && own.numel() > 0) {
    at::Tensor last = own.view({-1})[-1];
    if (own.scalar_type() == at::kBool) {
      last.logical_not_();
    } else {
      last.copy_(last.eq(0).item<bool>() ? at::ones_like(last) : at::zeros_like(last));
    }
  }
  return own.requires_grad_(tensor.requires_grad());
}

at::Tensor leaf(at::IntArrayRef shape) { return make_tensor(shape, 3).requires_grad_(); }

const std::vector<Case>& cases() {
  static const at::Tensor rows = at::tensor({0, 3, 5}, at::kLong), labels = at::tensor({0, 1, 2, 3, 0, 1}, at::kLong);
  static const std::vector<Case> all = {
      {"mul", make_tensor({4}, 2), [](auto& x, auto& p) { x* p; }, "aten::mul: argument 'other', a plain tensor"},
      {"number", at::scalar_tensor(2.0), [](auto& x, auto& p) { x* p; }, "aten::mul: argument 'other', a plain tensor"},
      {"left", make_tensor({6, 4}, 2), [](auto& x, auto& p) { p - x; }, "aten::sub: argument 'self', a plain tensor"},
      {"weight", leaf({4, 3}), [](auto& x, auto& p) { x.mm(p); }, "aten::mm: argument 'mat2', a plain weight", true},
      {"linear", leaf({3, 4}), [](auto& x, auto& p) { at::linear(x, p); }, "a plain weight", true},
      {"bias", leaf({3}),
       [](auto& x, auto& p) {
         at::addmm(p, x, make_tensor({4, 3}, 5));
       },
       "argument 'self', a plain weight", true},
      {"convolution", leaf({2, 1, 3}), [](auto& x, auto& p) { at::conv1d(x.unsqueeze(1), p); },
       "argument 'weight', a plain weight", true},
      {"index", rows, [](auto& x, auto& p) { x.index({p}); }, "tensor 0 of argument 'indices', a plain tensor"},
      {"index_select", at::tensor({0, 2}, at::kLong), [](auto& x, auto& p) { x.index_select(1, p); },
       "argument 'index', a plain tensor"},
      {"embedding", leaf({7, 3}), [](auto& x, auto& p) { at::embedding(p, (x.abs() * 6).to(at::kLong)); },
       "argument 'weight', a plain weight", true},
      {"labels", labels, [](auto& x, auto& p) { at::cross_entropy_loss(x, p); }, "argument 'target', a plain tensor"},
      {"target", make_tensor({6, 4}, 2), [](auto& x, auto& p) { at::mse_loss(x, p); }, "a plain tensor"},
      {"list", make_tensor({2, 4}, 2),
       [](auto& x, auto& p) {
         at::cat({x, p});
       },
       "tensor 1 of argument 'tensors', a plain tensor"},
      {"written", make_tensor({4}, 2), [](auto& x, auto& p) { x.clone().mul_(p); },
       "aten::mul_: argument 'other', a plain tensor"},
      {"source", make_tensor({6, 4}, 2), [](auto& x, auto& p) { x.clone().copy_(p); },
       "aten::copy_: argument 'src', a plain tensor"},
      {"mask", make_tensor({6, 4}, 2, at::kBool), [](auto& x, auto& p) { at::where(p, x, x); },
       "argument 'condition', a plain tensor"},
      {"filled", make_tensor({6, 1}, 2, at::kBool), [](auto& x, auto& p) { x.masked_fill(p, 0); },
       "argument 'mask', a plain tensor"},
      {"complex", make_tensor({4}, 2, at::kComplexFloat), [](auto& x, auto& p) { x* p; },
       "argument 'other', a plain tensor"},
      {"not dense", make_tensor({4, 6}, 2).t(), [](auto& x, auto& p) { x* p.t().contiguous().t(); },
       "argument 'other', a plain tensor"},
      {"conjugate", make_tensor({4}, 2, at::kComplexDouble), [](auto& x, auto& p) { x* p.conj(); },
       "argument 'other', a plain tensor"},
  };
  return all;
}

TEST(CheckReplicated, APlainTensorThatDiffersIsNamedOnEveryRank) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    std::atomic<int> refused{0};
    on_mesh(
        {3},
        [&](const MeshPtr& mesh) {
          const at::Tensor x = block(mesh, {6, 4}), p = of_rank(one.plain.contiguous(), mesh->rank() == 1);
          const std::string message = message_of([&] { one.program(x, p); });
          EXPECT_THAT(message, AllOf(HasSubstr(one.what), HasSubstr(kNotAlike), HasSubstr("ranks 0, 2 hold the same"),
                                     HasSubstr("rank 1 holds others"),
                                     HasSubstr(one.weight ? "a plain weight" : "a plain tensor")));
          refused += message.empty() ? 0 : 1;
        },
        Fallback::kReplicate);
    EXPECT_EQ(refused, 3);
  }
}

TEST(CheckReplicated, EqualPlainTensorsPass) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    on_mesh(
        {3},
        [&](const MeshPtr& mesh) {
          const at::Tensor x = block(mesh, {6, 4}), p = of_rank(one.plain.contiguous(), false);
          for (int call = 0; call < 40; ++call) one.program(x, p);
        },
        Fallback::kReplicate);
  }
}

TEST(CheckReplicated, TheMessageTellsWhoHoldsWhat) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4});
    at::Tensor p = at::arange(4, at::kDouble);
    if (mesh->rank() >= 2) p[2] += 0.5 * static_cast<double>(mesh->rank());
    EXPECT_EQ(
        message_of([&] { x* p; }),
        "aten::mul: argument 'other', a plain tensor, is not the same on all ranks; beside ShardTensors it "
        "counts as replicated\n"
        "  have  shape [4], Double; ranks 0, 1 hold the same\n"
        "        rank 2 holds others: element [2] is 3, on rank 0 2; 1 of 4 numbers differ, by up to 1\n"
        "        rank 3 holds others: element [2] is 3.5, on rank 0 2; 1 of 4 numbers differ, by up to 1.5\n"
        "  fix   initialise it identically on all ranks: one mh::manual_seed for all before weights are made, one "
        "mh::distribute_tensor of what one rank read; a rank's block of a larger tensor becomes a part by "
        "mh::from_local. "
        "mh::set_check_replicated(false) switches this check off");
    // Reported again, not accepted, until it is corrected.
    EXPECT_THAT(message_of([&] { x* p; }), HasSubstr("ranks 0, 1 hold the same"));
    p.copy_(at::arange(4, at::kDouble));
    EXPECT_EQ(message_of([&] { x* p; }), "");

    const at::Tensor z = at::zeros({2}, at::kComplexDouble);
    if (mesh->rank() == 3) at::view_as_real(z)[1][1] = 2;
    EXPECT_THAT(message_of([&] { x.sum() + z; }),
                HasSubstr("element [1] is 2, on rank 0 0 (imaginary parts); 1 of 4 numbers differ"));
  });
}

TEST(CheckReplicated, OtherShapesAndTypesAreNamed) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4});
    const at::Tensor other = mesh->rank() == 2 ? at::ones({1}) : at::ones({4});
    EXPECT_THAT(message_of([&] { x* other; }),
                HasSubstr("have  ranks 0, 1: shape [4], Float; rank 2: shape [1], Float"));
    const at::Tensor typed = at::ones({4}, mesh->rank() == 0 ? at::kFloat : at::kInt);
    EXPECT_THAT(message_of([&] { x* typed; }), HasSubstr("have  rank 0: shape [4], Float; ranks 1, 2: shape [4], Int"));
    // One rank is in another call.
    const at::Tensor one = at::ones({4});
    EXPECT_THAT(message_of([&] { mesh->rank() == 1 ? x - one : x + one; }), HasSubstr("ranks have diverged"));
  });
}

TEST(CheckReplicated, AMeetingInBackwardIsOneToo) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4}).requires_grad_(), y = x * 2;
    const at::Tensor p = of_rank(make_tensor({4}, 2), mesh->rank() == 1);
    y.register_hook([p](const at::Tensor& grad) { return grad.div(p); });
    EXPECT_THAT(message_of([&] { y.sum().backward(); }), HasSubstr("aten::div: argument 'other', a plain tensor"));
  });
}

TEST(CheckReplicated, EveryWeightIsComparedWhenItIsNew) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4});
    std::vector<at::Tensor> weights;
    for (int layer = 0; layer < 100; ++layer)
      weights.push_back(of_rank(leaf({4, 4}), layer == 77 && mesh->rank() == 1));
    for (int layer = 0; layer < 100; ++layer)
      EXPECT_EQ(message_of([&] { x.mm(weights[layer]); }).empty(), layer != 77) << layer;
  });
}

// Ranks that part later are found later, at once at first, then within a quarter of the calls that were, and not looked
// for at every call.
TEST(CheckReplicated, WhatPartsLaterIsFound) {
  for (const bool weight : {true, false}) {
    for (const int after : {1, 10, 100, 1000}) {
      on_mesh({2}, [&](const MeshPtr& mesh) {
        const at::Tensor x = block(mesh, {6, 4}), w = leaf({4, 4}).requires_grad_(weight);
        for (int call = 0; call < after; ++call) x.mm(w);
        if (mesh->rank() == 1) w.data()[0][0] += 1;
        int calls = 0;
        while (calls < 3000 && message_of([&] { x.mm(w); }).empty()) ++calls;
        EXPECT_LE(calls, 1 + after / 4) << after;
        if (after == 1000) EXPECT_GE(calls, 2);
      });
    }
  }
}

// Each of the first sixteen: a tensor that is made again is wrong at this one call only.
TEST(CheckReplicated, EachOfTheFirstMeetingsIsCompared) {
  for (int wrong = 0; wrong < 16; ++wrong) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const at::Tensor x = block(mesh, {6, 4}), p = make_tensor({4}, 2);
      for (int call = 0; call <= wrong; ++call) {
        const at::Tensor own = of_rank(p, call == wrong && mesh->rank() == 1);
        EXPECT_EQ(message_of([&] { x* own; }).empty(), call != wrong) << call << " of " << wrong;
      }
    });
  }
}

// One that was caught is looked for at every call, also where calls are compared seldom by then.
TEST(CheckReplicated, ADifferenceThatWasCaughtIsCaughtAgain) {
  for (const int after : {0, 5, 100, 700}) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const at::Tensor x = block(mesh, {6, 4}), p = make_tensor({4}, 2), other = of_rank(p, mesh->rank() == 1);
      for (int call = 0; call < after; ++call) x* p;
      int calls = 0;
      while (calls < 3000 && message_of([&] { x* other; }).empty()) ++calls;
      ASSERT_LT(calls, 3000);
      for (int again = 0; again < 70; ++again) EXPECT_NE(message_of([&] { x* other; }), "") << again;
    });
  }
}

// Tensors made again for every call are known by their kind alone: of 12 equal layers each is found, whichever it
// is.
TEST(CheckReplicated, LayersOfOneKindAllHaveTheirTurn) {
  constexpr int kLayers = 12, kSteps = 4000;
  const at::Tensor same = make_tensor({4}, 2);
  for (int layer = 0; layer < kLayers; ++layer) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const at::Tensor x = block(mesh, {6, 4}), other = of_rank(same, mesh->rank() == 1);
      bool found = false;
      for (int call = 0; call < kLayers * kSteps && !found; ++call)
        found = !message_of([&] { x.add(call > 50 && call % kLayers == layer ? other : same); }).empty();
      EXPECT_TRUE(found) << layer;
    });
  }
}

TEST(CheckReplicated, MemoryThatIsNotReadMayHoldAnything) {
  on_mesh(
      {2},
      [](const MeshPtr& mesh) {
        const at::Tensor x = block(mesh, {6, 4}), w = make_tensor({4, 4}, 5);
        const auto garbage = [&](at::IntArrayRef shape) {
          return at::full(shape, 1.0 + static_cast<double>(mesh->rank()), at::kDouble);
        };
        const std::function<void()> calls[] = {
            [&] {
              garbage({6, 4}).copy_(x);
            },
            [&] {
              at::addmm(garbage({6, 4}), x, w, 0.0);
            },
            [&] {
              at::baddbmm(garbage({1, 6, 4}), x.unsqueeze(0), w.unsqueeze(0), 0, 2.0);
            },
            [&] {
              at::Tensor out = garbage({6, 4});
              at::mul_out(out, x, x);
            },
            [&] {
              at::Tensor out = x.clone();
              at::empty_permuted_out(out, {6, 4}, {1, 0});
            },
            [&] { garbage({6}).index_put_({at::arange(6)}, x.sum(1)); },
        };
        for (const auto& call : calls) EXPECT_THAT(message_of(call), ::testing::Not(HasSubstr("is not the same")));
        EXPECT_THAT(message_of([&] { at::addmm(garbage({6, 4}), x, w, 0.5); }), HasSubstr(kNotAlike));
      },
      Fallback::kReplicate);
}

TEST(CheckReplicated, BitsOfNaNsSignsOfZeroAndRoundingsAreNoDifference) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4});
    const bool other = mesh->rank() == 1;
    const auto passes = [&](const at::Tensor& p) { return message_of([&] { x* p; }).empty(); };
    at::Tensor p = at::zeros({4}, at::kDouble);
    p[1] = other ? -0.0 : 0.0;
    p[2] = other ? -std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::quiet_NaN();
    p[3] = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(passes(p));
    EXPECT_FALSE(passes(other ? at::full({4}, std::nan("")) : at::zeros({4})));
    EXPECT_FALSE(passes(other ? at::full({4}, INFINITY) : at::full({4}, -INFINITY)));

    for (const auto& [dtype, rounding, error] :
         {std::tuple{at::kDouble, 1e-15, 1e-12}, {at::kFloat, 1e-6, 1e-4}, {at::kBFloat16, 0.01, 0.1}}) {
      const at::Tensor values = make_tensor({5, 4}, 2)[4] + 2;
      EXPECT_TRUE(passes((values * (1 + (other ? rounding : 0))).to(dtype))) << dtype;
      EXPECT_FALSE(passes((values * (1 + (other ? error : 0))).to(dtype))) << dtype;
    }
    EXPECT_FALSE(passes(at::full({4}, int64_t{1} << 60, at::kLong) + (other ? 1 : 0)));
  });
}

TEST(CheckReplicated, OnlyTheRanksOfTheMeshAreCompared) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const MeshPtr row = mesh->slice({mesh->names()[1]});
    const at::Tensor x = block(row, {6, 4});
    const at::Tensor p = make_tensor({4}, 10 + mesh->coordinate(0));  // another in each data-parallel part
    for (int call = 0; call < 3; ++call) EXPECT_EQ(message_of([&] { x* p; }), "");
    EXPECT_THAT(message_of([&] { x* make_tensor({4}, 10 + mesh->rank()); }),
                HasSubstr("shape [4], Double; rank 0\n        rank 1 holds others"));
  });
}

TEST(CheckReplicated, NothingIsCountedAsSent) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4});
    mesh->group().reset_stats();
    const int64_t before = bytes_sent_by_this_thread();
    x* make_tensor({4}, 2);
    EXPECT_EQ(mesh->group().stats().total().calls, 0);
    EXPECT_EQ(bytes_sent_by_this_thread(), before);
  });
}

TEST(CheckReplicated, CanBeSwitchedOffByAllRanksTogether) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4});
    const at::Tensor p = of_rank(make_tensor({4}, 2), mesh->rank() == 1);
    EXPECT_TRUE(check_replicated());
    EXPECT_TRUE(set_check_replicated(false, &mesh->group()));
    EXPECT_EQ(message_of([&] { x* p; }), "");
    EXPECT_EQ(message_of([&] { expect_replicated(p, mesh, "here"); }), "");
    EXPECT_FALSE(set_check_replicated(true, &mesh->group()));
    EXPECT_THAT(message_of([&] { x* p; }), HasSubstr(kNotAlike));
    EXPECT_THAT(message_of([&] { expect_replicated(p, mesh, "here"); }), HasSubstr("here: a plain tensor"));
    EXPECT_THAT(message_of([&] { set_check_replicated(mesh->rank() == 0, &mesh->group()); }),
                HasSubstr("check_replicated: ranks 0 and 1 want different settings"));
  });
}

TEST(CheckReplicated, FakeAndLonelyMeshesAskNobody) {
  const CommunicatorPtr fake = make_fake_communicator(0, 4);
  const MeshPtr mesh = init_device_mesh(*fake, "cpu", {4});
  const at::Tensor x = wrap(at::ones({2, 4}), make_spec(mesh, {8, 4}, {shard(0)}));
  EXPECT_EQ(message_of([&] { x* at::ones({4}); }), "");
  EXPECT_EQ(fake->stats().total().calls, 0);
  on_mesh({1}, [](const MeshPtr& one) { EXPECT_EQ(message_of([&] { block(one, {6, 4}) * at::ones({4}); }), ""); });
}

TEST(CheckReplicated, RandomNumbersOfDifferentSeedsAreNoTensor) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {6, 4}).abs(), whole = shard_of(make_tensor({3}, 1).abs(), mesh, {Placement()});
    const std::function<void()> calls[] = {
        [&] { at::dropout(x, 0.5, true); }, [&] { at::rand_like(x); }, [&] { at::bernoulli(whole); },
        [&] { x.clone().normal_(); },       [&] { at::poisson(x); },   [&] { at::multinomial(x, 1); },
    };
    for (const auto& call : calls) {
      manual_seed(1);
      EXPECT_EQ(message_of(call), "");
      manual_seed(mesh->rank() == 2 ? 2 : 1);
      EXPECT_THAT(message_of(call), HasSubstr(": ranks draw different random numbers for one ShardTensor\n  have  "
                                              "equal only among: ranks 0, 1; rank 2\n"));
      EXPECT_THAT(message_of(call), HasSubstr("ranks draw different random numbers"));
    }
    manual_seed(1);
    for (int call = 0; call < 100; ++call) EXPECT_EQ(message_of(calls[0]), "");
  });
}

// A large tensor is read wholly at first, later in pieces, in other places each time.
TEST(CheckReplicated, PiecesOfLargeTensorsAreComparedLater) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor x = block(mesh, {2, 1});
    at::Tensor p = at::zeros({int64_t{1} << 20});
    if (mesh->rank() == 1) p[12345] = 1;
    EXPECT_THAT(message_of([&] { x* p; }), HasSubstr("element [12345] is 1, on rank 0 0; 1 of 1048576 numbers differ"));
    p.zero_();
    for (int call = 0; call < 5; ++call) x* p;
    p.fill_(static_cast<double>(mesh->rank()));
    EXPECT_THAT(message_of([&] { x* p; }), HasSubstr("1048576 of 1048576 numbers differ"));
  });
}

TEST(CheckReplicated, AChecksumDependsOnEveryByteAndTheirOrder) {
  std::string bytes;
  for (int i = 0; i < 101; ++i) bytes += static_cast<char>(i * 7);
  std::set<uint64_t> sums = {checksum(bytes.data(), bytes.size())};
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] ^= 1;
    sums.insert(checksum(other.data(), other.size()));
    sums.insert(checksum(bytes.data(), i));
    other = bytes;
    std::swap(other[i], other[(i + 32) % bytes.size()]);
    sums.insert(checksum(other.data(), other.size()));
  }
  EXPECT_EQ(sums.size(), 1u + 3 * bytes.size());
  EXPECT_NE(checksum(bytes.data(), 64, 1), checksum(bytes.data(), 64, 2));
}

TEST(CheckReplicated, ModelsThatEveryRankCutsItselfAreCompared) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    EXPECT_THAT(message_of([&] { expect_replicated(at::full({2}, mesh->rank()), mesh, "parallelize_module"); }),
                HasSubstr("parallelize_module: a plain tensor"));
    EXPECT_EQ(message_of([&] { expect_replicated(at::ones({2}), mesh, "parallelize_module"); }), "");
    EXPECT_EQ(
        message_of([&] { expect_replicated(at::empty({2 + mesh->rank()}, at::kMeta), mesh, "parallelize_module"); }),
        "");
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_check_replicated
