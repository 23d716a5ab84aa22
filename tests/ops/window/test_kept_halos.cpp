// SPDX-License-Identifier: Apache-2.0
// Edges that are kept for a tensor's next readers (set_halo{keep = true}): S16, X06.
#include "moonhalo/engine/tensor/tensor_halos.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/model/recompute.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "moonhalo/ops/window/stencil.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_kept_halos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct WithHalo {
  explicit WithHalo(const HaloOptions& options) : before(set_halo(options)) {}
  ~WithHalo() { set_halo(before); }
  HaloOptions before;
};

HaloOptions keeping(HaloOptions options = {}) {
  options.keep = true;
  return options;
}

// Exchanges that this rank took part in, and the bytes of all ranks.
struct Moved {
  int64_t calls, bytes;
};
CommStats::Count exchanged(const MeshPtr& mesh) {
  CommStats::Count count = mesh->group().stats().by_kind[CommStats::kExchange];
  const CommStats::Count packed = mesh->group().stats().by_kind[CommStats::kAllToAll];
  count.calls += packed.calls;
  count.bytes += packed.bytes;
  return count;
}
template <typename Program>
Moved moved_by(const MeshPtr& mesh, const Program& program) {
  const CommStats::Count before = exchanged(mesh);
  program();
  const CommStats::Count after = exchanged(mesh);
  at::Tensor bytes = at::full({1}, after.bytes - before.bytes, at::kLong);
  mesh->group().all_reduce(bytes);
  return {after.calls - before.calls, bytes.item<int64_t>()};
}

at::Tensor conv3(const at::Tensor& x, int64_t seed = 5) {
  return at::conv2d(x, make_tensor({2, 2, 3, 3}, seed), {}, 1, 1);
}

// The same bits

struct HaloCase {
  const char* name;
  std::vector<int64_t> mesh, shape;
  std::vector<Placement> placements;
};

const HaloCase kFields[] = {
    {"uneven", {2}, {2, 2, 9, 6}, {shard(2, {3, 6})}},
    {"empty_block", {3}, {1, 2, 9, 6}, {shard(2, {4, 0, 5})}},
    {"thinner_than_the_halo", {4}, {1, 2, 9, 7}, {shard(2, {1, 2, 1, 5})}},
    {"grid", {2, 2}, {1, 2, 9, 12}, {shard(2, {4, 5}), shard(3, {9, 3})}},
    {"replicated_beside_cut", {2, 2}, {2, 2, 8, 5}, {replicate(), shard(2, {5, 3})}},
};

struct Step {
  const char* name;
  Tensors (*run)(const at::Tensor& x, const at::Tensor& w);  // w: {2, 2, 3, 3}
};

const Step kSteps[] = {
    {"convolution",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       const at::Tensor y = at::conv2d(x, w, {}, 1, 1);
       const Tensors grads = torch::autograd::grad({y.sin().sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
    {"transposed",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       // Forward and backward fetch different boxes; two branches fetch the same.
       const at::Tensor y = at::conv_transpose2d(x, w, {}, 2, 1) * at::conv_transpose2d(x, w * 2, {}, 2, 1);
       const Tensors grads = torch::autograd::grad({y.sin().sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
    {"branches",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       const at::Tensor y = at::conv2d(x, w, {}, 1, 1) + at::conv2d(x, w * 2, {}, 1, 1) +
                            at::conv2d(x, make_tensor({2, 2, 5, 5}, 3), {}, 1, 2) + at::max_pool2d(x, 3, 1, 1) +
                            at::max_pool2d(x.sin(), 3, 1, 1) + at::avg_pool2d(x, 3, 1, 1);
       const Tensors grads = torch::autograd::grad({y.sin().sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
    {"differences",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       const at::Tensor y = laplacian(x, {2, 3}) * laplacian(x, {2, 3}) + at::conv2d(x, w, {}, 1, 1);
       const Tensors grads = torch::autograd::grad({y.sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
    {"second_derivatives",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       const at::Tensor y = at::conv2d(x, w, {}, 1, 1).sin();
       const Tensors first = torch::autograd::grad({y.sum()}, {x, w}, {}, true, true);
       const Tensors second = torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, w});
       return {y, first[0], first[1], second[0], second[1]};
     }},
    {"checkpointed",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       const at::Tensor y =
           checkpoint([&](const at::Tensor& in) { return conv3(at::conv2d(in.sin(), w, {}, 1, 1).tanh()); }, x);
       const Tensors grads = torch::autograd::grad({y.sin().sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
    {"written_between",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       at::Tensor h = x * 2, sum;
       const auto read = [&] {
         const at::NoGradGuard no_grad;
         const at::Tensor both = conv3(h) + conv3(h, 6);
         sum = sum.defined() ? sum + both : both;
       };
       read();
       h.narrow(2, 1, 5).mul_(3);
       read();
       h.add_(w.sum());
       const at::Tensor y = sum + conv3(h) + conv3(h, 6);
       const Tensors grads = torch::autograd::grad({y.sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
    {"attention",
     [](const at::Tensor& x, const at::Tensor& w) -> Tensors {
       const at::Tensor rows = x.permute({0, 2, 3, 1}).unsqueeze(3);  // one head of two features
       const at::Tensor k = rows.sin(), v = rows * w.sum();
       const at::Tensor y = std::get<0>(neighborhood_attention(rows, k, v, {{5, 3}}));
       const Tensors grads = torch::autograd::grad({y.sin().sum()}, {x, w});
       return {y, grads[0], grads[1]};
     }},
};

class KeptHalos : public ::testing::TestWithParam<std::tuple<HaloCase, Step>> {};

TEST_P(KeptHalos, X06_SameBitsAndFewerBytes) {
  const auto& [field, step] = GetParam();
  on_mesh(field.mesh, [&, &field = field, &step = step](const MeshPtr& mesh) {
    const auto run = [&] {
      const at::Tensor x = shard_of(make_tensor(field.shape, 1), mesh, field.placements).requires_grad_(),
                       w = make_tensor({2, 2, 3, 3}, 2).requires_grad_();
      Tensors results = step.run(x, w);
      for (at::Tensor& result : results) result = is_shard_tensor(result) ? to_local(result.detach()) : result.detach();
      return results;
    };
    for (const HaloOptions& options :
         {HaloOptions{}, HaloOptions{false, HaloBackend::kP2p}, HaloOptions{true, HaloBackend::kAllToAll}}) {
      SCOPED_TRACE(name(options.backend));
      Tensors expected, kept;
      Moved anew{}, less{};
      {
        const WithHalo setting(options);
        anew = moved_by(mesh, [&] { expected = run(); });
      }
      {
        const WithHalo setting(keeping(options));
        less = moved_by(mesh, [&] { kept = run(); });
      }
      for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], expected[i])) << "result " << i;
      EXPECT_LE(less.calls, anew.calls);
      EXPECT_LT(less.bytes, anew.bytes);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(S16, KeptHalos, ::testing::Combine(::testing::ValuesIn(kFields), ::testing::ValuesIn(kSteps)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
                         });

// Tests of what is exchanged

TEST(KeptHalosTrace, X06_AConvolutionsBackwardDoesNotFetchItsInputAgain) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const int64_t row = 2 * 5 * 8, both_ways = 4;  // bytes of one row; edges between three blocks
    for (const bool first_layer : {true, false}) {
      const auto step = [&] {
        const at::Tensor x = shard_of(make_tensor({1, 2, 12, 5}, 1), mesh, {shard(2)}).requires_grad_(!first_layer),
                         w = make_tensor({2, 2, 3, 3}, 2).requires_grad_();
        at::conv2d(x, w, {}, 1, 1).sum().backward();
      };
      const Moved anew = moved_by(mesh, step);
      const WithHalo setting(keeping());
      std::vector<TraceRecord> trace;
      Dispatch::of_this_thread().trace = &trace;
      const Moved kept = moved_by(mesh, step);
      Dispatch::of_this_thread().trace = nullptr;

      EXPECT_EQ(anew.calls, 2);
      EXPECT_EQ(anew.bytes, (first_layer ? 2 : 3) * both_ways * row);
      EXPECT_EQ(kept.calls, first_layer ? 1 : 2);
      EXPECT_EQ(kept.bytes, (first_layer ? 1 : 2) * both_ways * row);
      std::vector<HaloEvents> events;
      for (TraceRecord& record : trace) {
        if (!record.halo.empty()) events.push_back(std::move(record.halo));
      }
      ASSERT_EQ(events.size(), 2U);
      EXPECT_THAT(events[0], ElementsAre("start", "interior", "finish", "edges"));
      if (first_layer) {
        EXPECT_THAT(events[1], ElementsAre("kept"));
      } else {
        EXPECT_THAT(events[1], ElementsAre("kept", "start", "interior", "finish", "edges"));
      }
    }
  });
}

TEST(KeptHalosTrace, X06_NeighborhoodAttentionFetchesKeysAndValuesOnce) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const auto step = [&] {
      Tensors held;
      for (int64_t i = 0; i < 3; ++i)
        held.push_back(shard_of(make_tensor({1, 17, 6, 2, 3}, i), mesh, {shard(1, {7, 10})}).requires_grad_());
      std::get<0>(neighborhood_attention(held[0], held[1], held[2], {{5}})).sum().backward();
    };
    const Moved anew = moved_by(mesh, step);
    const WithHalo setting(keeping());
    const Moved kept = moved_by(mesh, step);

    EXPECT_EQ(anew.calls, 3);
    EXPECT_EQ(kept.calls, 2);
    EXPECT_EQ(3 * kept.bytes, 2 * anew.bytes);
  });
}

// Rank 0 cannot tell these maps apart: it owns, sends and receives the same by both.
TEST(KeptHalosTrace, X06_MapsAreComparedForAllRanks) {
  on_mesh({4}, [](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {16}, {shard(0)});
    const auto around = [&](int64_t of_last) {
      return IntervalMap(spec, [=](int64_t rank) {
        const auto [begin, end] = spec->block_range(0, rank);
        return std::vector<HaloRequest>{{.rows = {begin - (rank == 3 ? of_last : 1), end + 1}}};
      });
    };
    const IntervalMap one = around(1), same = around(1), two = around(2);
    EXPECT_EQ(one.key()->requests, same.key()->requests);
    EXPECT_NE(one.key()->requests, two.key()->requests);
    EXPECT_EQ(one.elements_received() == two.elements_received(), mesh->rank() != 3);
    const IntervalMap nothing(spec, [=](int64_t rank) {
      const auto [begin, end] = spec->block_range(0, rank);
      return std::vector<HaloRequest>{{.rows = {begin, end}}};
    });
    EXPECT_EQ(nothing.key(), nullptr);
  });
}

TEST(KeptHalosTrace, X06_OfOneTensorTheMapsExchangedLastAreKept) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const WithHalo setting(keeping());
    const at::Tensor x = shard_of(make_tensor({14, 3}, 1), mesh, {shard(0, {5, 3, 6})});
    const auto read = [&](int64_t i) {
      Stencil options{0};
      options.offsets = {-1 - i % 5, 1 + i / 5};
      options.weights = {1.0, 2.0};
      return moved_by(mesh, [&] { stencil(x, options); }).calls;
    };
    constexpr int64_t kMaps = 16 + 4;
    for (int64_t i = 0; i < kMaps; ++i) EXPECT_EQ(read(i), 1) << i;
    for (int64_t i = kMaps; i-- > 4;) EXPECT_EQ(read(i), 0) << i;
    for (int64_t i = 4; i-- > 0;) EXPECT_EQ(read(i), 1) << i;
  });
}

TEST(KeptHalosTrace, X06_WhenEdgesAreExchangedAgain) {
  struct Row {
    const char* name;
    void (*between)(at::Tensor& x);
    int64_t exchanges;  // of the reader after it
  };
  const Row rows[] = {
      {"nothing", [](at::Tensor&) {}, 0},
      {"in_place", [](at::Tensor& x) { x.add_(1); }, 1},
      {"through_a_view", [](at::Tensor& x) { x.narrow(2, 3, 4).mul_(2); }, 1},
      {"through_a_detached_view", [](at::Tensor& x) { x.detach().transpose(2, 3).sub_(2); }, 1},
      {"a_mask", [](at::Tensor& x) { x.masked_fill_(x.gt(0.5), 0.25); }, 1},
      {"new_data", [](at::Tensor& x) { x.set_data(x * 2); }, 1},
      {"another_setting",
       [](at::Tensor& x) {
         set_halo({});
         to_local(x).add_(1);
         set_halo(keeping());
       },
       1},
      {"only_read", [](at::Tensor& x) { full_tensor(x).add_(to_local(x).sum()); }, 0},
      {"another_back_end",
       [](at::Tensor&) {
         set_halo(keeping({true, HaloBackend::kAllToAll}));
       },
       0},
  };
  for (const Row& row : rows) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(row.name);
      const WithHalo setting(keeping());
      at::Tensor x = shard_of(make_tensor({1, 2, 12, 5}, 1), mesh, {shard(2, {3, 5, 4})});
      EXPECT_EQ(moved_by(mesh, [&] { conv3(x); }).calls, 1);
      row.between(x);
      at::Tensor y;
      EXPECT_EQ(moved_by(mesh, [&] { y = conv3(x); }).calls, row.exchanges);
      EXPECT_EQ(difference(full_tensor(y), conv3(full_tensor(x)), 1e-10), "");
    });
  }
}

TEST(KeptHalosTrace, X06_NothingIsKeptInInferenceMode) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const WithHalo setting(keeping());
    const c10::InferenceMode inference;
    at::Tensor x = shard_of(make_tensor({1, 2, 12, 5}, 1), mesh, {shard(2)});
    for (int round = 0; round < 2; ++round) EXPECT_EQ(moved_by(mesh, [&] { conv3(x); }).calls, 1);
    to_local(x).add_(1);
    EXPECT_EQ(difference(full_tensor(conv3(x)), conv3(full_tensor(x)), 1e-10), "");
  });
}

// Blocks written behind the ShardTensor's back

constexpr const char* kBehind = "aten::convolution: this rank's block was written behind the ShardTensor's back";

TEST(KeptHalosRefused, X06_TheRankThatWroteIsToldAndNobodyHangs) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const WithHalo setting(keeping());
    at::Tensor x = shard_of(make_tensor({1, 2, 12, 5}, 1), mesh, {shard(2)});
    conv3(x);
    if (mesh->rank() == 1) to_local(x).add_(1);
    const std::string message = message_of([&] { conv3(x); });
    if (mesh->rank() == 1) {
      EXPECT_THAT(message, StartsWith(kBehind));
      EXPECT_THAT(message, HasSubstr("fix   write through the ShardTensor"));
    } else {
      EXPECT_EQ(message, "");
    }
    x.mul_(2);  // known to all: exchanged again
    EXPECT_EQ(difference(full_tensor(conv3(x)), conv3(full_tensor(x)), 1e-10), "");
  });
  // Not caught, it ends the program on every rank.
  EXPECT_THAT(message_of([] {
                on_mesh({3}, [](const MeshPtr& mesh) {
                  const WithHalo setting(keeping());
                  at::Tensor x = shard_of(make_tensor({1, 2, 12, 5}, 1), mesh, {shard(2)});
                  conv3(x);
                  if (mesh->rank() == 1) to_local(x).add_(1);
                  full_tensor(conv3(x));
                });
              }),
              HasSubstr(kBehind));
}

TEST(KeptHalosRefused, X06_EveryWayRoundTheShardTensorIsSeen) {
  struct Row {
    const char* name;
    void (*write)(at::Tensor& x, at::Tensor& block, at::Tensor& before);
  };
  const Row rows[] = {
      {"to_local", [](at::Tensor& x, at::Tensor&, at::Tensor&) { to_local(x).add_(1); }},
      {"taken before", [](at::Tensor&, at::Tensor&, at::Tensor& before) { before.add_(1); }},
      {"a view of it", [](at::Tensor& x, at::Tensor&, at::Tensor&) { to_local(x).narrow(2, 0, 1).add_(1); }},
      {"of a view", [](at::Tensor& x, at::Tensor&, at::Tensor&) { to_local(x.transpose(2, 3)).add_(1); }},
      {"of detach", [](at::Tensor& x, at::Tensor&, at::Tensor&) { to_local(x.detach()).add_(1); }},
      {"what from_local took", [](at::Tensor&, at::Tensor& block, at::Tensor&) { block.add_(1); }},
      {".data", [](at::Tensor& x, at::Tensor&, at::Tensor&) { x.data().add_(1); }},
      {"a view of .data", [](at::Tensor& x, at::Tensor&, at::Tensor&) { x.data().transpose(2, 3).add_(1); }},
      {"in inference mode",
       [](at::Tensor& x, at::Tensor&, at::Tensor&) {
         const c10::InferenceMode inference;
         to_local(x).add_(1);
       }},
  };
  for (const Row& row : rows) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(row.name);
      at::Tensor block = make_tensor({1, 2, 4, 5}, mesh->rank()), x = from_local(block, mesh, {shard(2)}),
                 before = to_local(x);
      const WithHalo setting(keeping());
      conv3(x);
      row.write(x, block, before);
      EXPECT_THAT(message_of([&] { conv3(x); }), StartsWith(kBehind));
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_kept_halos
