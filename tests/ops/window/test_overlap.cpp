// SPDX-License-Identifier: Apache-2.0
// Operators that compute their interior while edges are sent: X06, S16.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <set>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/support/oracle.h"
#include "tests/support/patience.h"
#include "tests/support/socket_ranks.h"

namespace moonhalo::testing::test_overlap {
namespace {

using ::testing::ElementsAre;

constexpr HaloOptions kSettings[] = {
    {true, HaloBackend::kP2p}, {false, HaloBackend::kP2p}, {true, HaloBackend::kAllToAll}};

struct Traced {
  Tensors results;
  std::vector<TraceRecord> records;  // of operators that exchanged something
};

Traced run_with(const HaloOptions& options, const std::function<Tensors()>& program) {
  auto& dispatch = Dispatch::of_this_thread();
  std::vector<TraceRecord> trace;
  const HaloOptions before = set_halo(options);
  dispatch.trace = &trace;
  Traced run{program(), {}};
  dispatch.trace = nullptr;
  set_halo(before);
  for (TraceRecord& record : trace) {
    if (!record.halo.empty()) run.records.push_back(std::move(record));
  }
  return run;
}

// Results under every setting are the same bits, and the order of events is reported.
void expect_hidden(const std::function<Tensors()>& program, size_t exchanging) {
  const Traced hidden = run_with(kSettings[0], program);
  ASSERT_EQ(hidden.records.size(), exchanging);
  for (const TraceRecord& record : hidden.records) {
    EXPECT_THAT(record.halo, ElementsAre("start", "interior", "finish", "edges")) << record.op;
    EXPECT_EQ(record.times.exchanges, 1);
  }
  for (const HaloOptions& options : kSettings) {
    const Traced other = run_with(options, program);
    for (size_t i = 0; i < other.results.size(); ++i) {
      EXPECT_TRUE(at::equal(other.results[i], hidden.results[i])) << "result " << i << ", " << name(options.backend);
    }
    if (options == kSettings[0]) continue;
    for (const TraceRecord& record : other.records)
      EXPECT_THAT(record.halo, ElementsAre("start", "finish", "interior", "edges")) << record.op;
  }
}

struct HiddenCase {
  const char* name;
  std::vector<int64_t> mesh, x, w;
  std::vector<Placement> placements;
  std::vector<int64_t> stride, padding, dilation;
};

const HiddenCase kConvolutions[] = {
    {"rows", {2}, {1, 2, 9, 5}, {3, 2, 3, 3}, {shard(2, {3, 6})}, {1, 1}, {1, 1}, {1, 1}},
    {"four ranks, 7x7", {4}, {1, 2, 22, 8}, {2, 2, 7, 7}, {shard(2)}, {1, 1}, {3, 3}, {1, 1}},
    {"blocks thinner than the halo", {4}, {1, 1, 8, 5}, {1, 1, 7, 3}, {shard(2)}, {1, 1}, {3, 1}, {1, 1}},
    {"grid", {2, 2}, {2, 2, 9, 12}, {3, 2, 5, 3}, {shard(2, {4, 5}), shard(3, {9, 3})}, {1, 1}, {2, 1}, {1, 1}},
    {"grid, strided and dilated",
     {2, 2},
     {1, 2, 16, 20},
     {2, 2, 3, 3},
     {shard(2, {8, 8}), shard(3, {12, 8})},
     {2, 1},
     {1, 2},
     {1, 2}},
    {"replicated and cut", {2, 2}, {2, 2, 9, 5}, {3, 2, 3, 3}, {replicate(), shard(2, {5, 4})}, {1, 1}, {1, 1}, {1, 1}},
    {"three cut dims",
     {2, 2, 2},
     {1, 2, 6, 8, 7},
     {2, 2, 3, 3, 3},
     {shard(2), shard(3, {3, 5}), shard(4)},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1}},
};

TEST(HiddenHalos, X06_ConvolutionComputesItsInteriorBetweenStartAndFinish) {
  for (const HiddenCase& c : kConvolutions) {
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(c.name);
      const at::NoGradGuard no_grad;
      const at::Tensor x = shard_of(make_tensor(c.x, 1), mesh, c.placements), w = make_tensor(c.w, 2),
                       b = make_tensor({c.w[0]}, 3);
      const std::vector<int64_t> none(c.stride.size(), 0), channels{c.w[0]};
      const auto program = [&]() -> Tensors {
        const at::Tensor y = at::convolution(x, w, b, c.stride, c.padding, c.dilation, false, none, 1);
        const auto [gx, gw, gb] = at::convolution_backward(y.sin(), x, w, channels, c.stride, c.padding, c.dilation,
                                                           false, none, 1, {true, true, true});
        return {to_local(y), to_local(gx), to_local(gw), to_local(gb)};
      };
      expect_hidden(program, 2);  // each way one exchange
    });
  }
}

// Rows of the input and gradients of halo rows go in one message to each neighbour.
TEST(HiddenHalos, X06_ConvolutionBackwardSendsOneMessagePerNeighbour) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = shard_of(make_tensor({1, 2, 12, 5}, 1), mesh, {shard(2)}), w = make_tensor({2, 2, 3, 3}, 2);
    const std::vector<int64_t> one{1, 1}, none{0, 0};
    const auto before = mesh->group().stats().by_kind[CommStats::kExchange];
    at::convolution_backward(x, x, w, std::nullopt, one, one, one, false, none, 1, {true, true, false});
    const auto after = mesh->group().stats().by_kind[CommStats::kExchange];
    const int64_t neighbours = mesh->rank() == 1 ? 2 : 1;
    EXPECT_EQ(after.calls - before.calls, 1);
    EXPECT_EQ(after.messages - before.messages, neighbours);
    EXPECT_EQ(after.bytes - before.bytes, neighbours * 2 * (2 * 5 * 8));
  });
}

// Without an interior of its own: the gradient of the input needs no fetched row, and that of the weight hides its
// way home.
TEST(HiddenHalos, X06_TransposedConvolutionBackward) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = shard_of(make_tensor({1, 2, 9, 4}, 1), mesh, {shard(2, {4, 0, 5})}),
                     w = make_tensor({2, 3, 4, 3}, 2);
    const std::vector<int64_t> two{2, 1}, one{1, 1}, none{0, 0}, channels{3};
    const auto program = [&]() -> Tensors {
      const at::Tensor y = at::convolution(x, w, {}, two, one, one, true, none, 1);
      const auto [gx, gw, gb] =
          at::convolution_backward(y.sin(), x, w, channels, two, one, one, true, none, 1, {true, true, true});
      return {to_local(y), to_local(gx), to_local(gw), to_local(gb)};
    };
    const Traced hidden = run_with(kSettings[0], program);

    EXPECT_THAT(hidden.records.back().halo, ElementsAre("start", "interior", "finish", "start", "interior", "finish"));
    for (const HaloOptions& options : kSettings) {
      const Traced other = run_with(options, program);
      for (size_t i = 0; i < other.results.size(); ++i) EXPECT_TRUE(at::equal(other.results[i], hidden.results[i]));
    }
  });
}

const HiddenCase kTransposed[] = {
    {"rows", {2}, {1, 2, 9, 5}, {2, 3, 3, 3}, {shard(2, {3, 6})}, {1, 1}, {1, 1}, {1, 1}},
    {"kernel 4, stride 2", {3}, {1, 2, 9, 4}, {2, 3, 4, 3}, {shard(2, {4, 2, 3})}, {2, 1}, {1, 1}, {1, 1}},
    {"empty blocks", {4}, {1, 2, 9, 4}, {2, 1, 4, 3}, {shard(2, {0, 4, 0, 5})}, {2, 1}, {1, 0}, {1, 1}},
    {"thinner than the halo", {4}, {1, 1, 4, 5}, {1, 2, 7, 3}, {shard(2)}, {1, 2}, {3, 1}, {1, 1}},
    {"all padding", {3}, {1, 1, 6, 5}, {1, 2, 5, 3}, {shard(2, {1, 4, 1})}, {1, 2}, {4, 1}, {1, 1}},
    {"dilated, blocks of one row", {4}, {1, 1, 4, 3}, {1, 1, 3, 2}, {shard(2)}, {2, 1}, {2, 0}, {3, 2}},
    {"grid", {2, 2}, {2, 2, 5, 6}, {2, 3, 4, 5}, {shard(2, {1, 4}), shard(3, {4, 2})}, {2, 1}, {1, 2}, {1, 1}},
    {"replicated and cut", {2, 2}, {2, 2, 5, 6}, {2, 3, 4, 5}, {replicate(), shard(3, {4, 2})}, {2, 3}, {1, 0}, {1, 1}},
    {"three cut dims",
     {2, 2, 2},
     {1, 2, 4, 3, 5},
     {2, 2, 3, 4, 3},
     {shard(2), shard(3, {1, 2}), shard(4)},
     {1, 2, 2},
     {1, 1, 0},
     {1, 1, 1}},
};

TEST(HiddenHalos, X06_TransposedConvolutionComputesItsInteriorWhileRowsTravel) {
  for (const HiddenCase& c : kTransposed) {
    SCOPED_TRACE(c.name);
    const at::Tensor w = make_tensor(c.w, 2), b = make_tensor({c.w[1]}, 3);
    // One more row at the end where the stride leaves space.
    std::vector<int64_t> more;
    for (const int64_t stride : c.stride) more.push_back(stride > 1);
    const auto up = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
      return at::convolution(x, weight, bias, c.stride, c.padding, c.dilation, true, more, 1);
    };
    expect_same_as_plain(c.mesh, {{make_tensor(c.x, 1), c.placements}, {w}, {b}},
                         [&](const Tensors& t) { return Tensors{up(t[0], t[1], t[2])}; });
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(c.name);
      const at::NoGradGuard no_grad;
      const at::Tensor x = shard_of(make_tensor(c.x, 1), mesh, c.placements);
      expect_hidden([&]() -> Tensors { return {to_local(up(x, w, b))}; }, 1);
    });
  }
}

struct PoolCase {
  const char* name;
  std::vector<int64_t> mesh, x;
  std::vector<Placement> placements;
  std::vector<int64_t> kernel, stride, padding, dilation;
  bool ceil_mode = false;
  bool apart = true;  // the interior can be done apart from the edges
};

const PoolCase kPools[] = {
    {"rows", {2}, {1, 2, 9, 5}, {shard(2, {3, 6})}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {"kernel 3, stride 2", {2}, {1, 2, 16, 5}, {shard(2)}, {3, 2}, {2, 2}, {1, 0}, {1, 1}},
    {"no batch", {2}, {2, 16, 5}, {shard(1)}, {3, 2}, {2, 2}, {1, 0}, {1, 1}},
    {"ceil_mode on the other dim", {2}, {2, 1, 9, 6}, {shard(2, {4, 5})}, {3, 3}, {1, 2}, {1, 0}, {1, 1}, true},
    {"four ranks", {4}, {1, 2, 22, 8}, {shard(2)}, {5, 3}, {1, 1}, {2, 1}, {1, 1}},
    {"dilated", {3}, {1, 2, 12, 8}, {shard(2, {5, 3, 4})}, {2, 3}, {1, 1}, {1, 1}, {2, 2}},
    {"grid", {2, 2}, {2, 2, 9, 12}, {shard(2, {4, 5}), shard(3, {7, 5})}, {3, 5}, {1, 1}, {1, 2}, {1, 1}},
    {"grid, thin blocks",
     {2, 2},
     {1, 2, 5, 6},
     {shard(2, {4, 1}), shard(3, {1, 5})},
     {3, 3},
     {1, 1},
     {1, 1},
     {1, 1},
     false,
     false},
    {"batch and columns", {2, 2}, {3, 2, 4, 9}, {shard(0), shard(3, {3, 6})}, {2, 3}, {2, 1}, {0, 1}, {1, 1}},
    {"three cut dims",
     {2, 2, 2},
     {1, 2, 6, 8, 7},
     {shard(2), shard(3, {3, 5}), shard(4)},
     {3, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1}},
    {"empty block", {3}, {1, 2, 9, 4}, {shard(2, {4, 0, 5})}, {3, 2}, {1, 1}, {1, 0}, {1, 1}},
    {"windows larger than blocks", {4}, {1, 1, 5, 4}, {shard(2)}, {5, 2}, {1, 1}, {2, 0}, {1, 1}, false, false},
    {"outputs without rows", {2}, {1, 1, 8, 4}, {shard(2, {7, 1})}, {4, 2}, {2, 1}, {0, 0}, {1, 1}, false, false},
};

TEST(HiddenHalos, X06_PoolingComputesItsInteriorWhileRowsTravel) {
  for (const PoolCase& c : kPools) {
    SCOPED_TRACE(c.name);
    const bool flat = c.kernel.size() == 2;
    const bool dilated = c.dilation != std::vector<int64_t>(c.dilation.size(), 1);
    const auto pools = [&](const at::Tensor& x) -> Tensors {
      auto [values, indices] =
          flat ? at::max_pool2d_with_indices(x, c.kernel, c.stride, c.padding, c.dilation, c.ceil_mode)
               : at::max_pool3d_with_indices(x, c.kernel, c.stride, c.padding, c.dilation, c.ceil_mode);
      Tensors results{values, indices};
      if (dilated) return results;
      const auto average = [&](bool include_pad, std::optional<int64_t> divisor) {
        results.push_back(flat ? at::avg_pool2d(x, c.kernel, c.stride, c.padding, c.ceil_mode, include_pad, divisor)
                               : at::avg_pool3d(x, c.kernel, c.stride, c.padding, c.ceil_mode, include_pad, divisor));
      };
      average(true, {});
      average(false, {});
      average(false, 7);
      return results;
    };
    at::Tensor full = make_tensor(c.x, 1);
    full.select(-1, 1).fill_(-std::numeric_limits<double>::infinity());  // has a first place, too
    expect_same_as_plain(c.mesh, {{full, c.placements}}, [&](const Tensors& t) { return pools(t[0]); });
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(c.name);
      const at::NoGradGuard no_grad;
      const at::Tensor x = shard_of(full, mesh, c.placements);
      const auto program = [&]() -> Tensors {
        Tensors results = pools(x);
        for (at::Tensor& result : results) result = to_local(result);
        return results;
      };
      if (c.apart) {
        expect_hidden(program, dilated ? 1 : 4);
      } else {
        EXPECT_THAT(run_with(kSettings[0], program).records.back().halo, ElementsAre("start", "finish"));
      }
    });
  }
}

// Corners are sent once: what ranks fetch is what their windows reach beyond their blocks.
TEST(HiddenHalos, X06_PoolingSendsOneMessagePerNeighbour) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = shard_of(make_tensor({1, 2, 8, 10}, 1), mesh, {shard(2), shard(3)});
    const auto before = mesh->group().stats().by_kind[CommStats::kExchange];
    at::max_pool2d(x, 3, 1, 1);
    const auto after = mesh->group().stats().by_kind[CommStats::kExchange];
    EXPECT_EQ(after.calls - before.calls, 1);
    EXPECT_EQ(after.messages - before.messages, 3);
    EXPECT_EQ(after.bytes - before.bytes, 2 * (4 + 5 + 1) * 8);
  });
}

struct AttentionCase {
  const char* name;
  std::vector<int64_t> mesh, shape;  // batch, dims..., heads, head_dim
  std::vector<Placement> placements;
  Neighborhood neighborhood;
};

const AttentionCase kAttentions[] = {
    {"rows", {2}, {1, 17, 6, 2, 3}, {shard(1, {7, 10})}, {{3}}},
    {"empty block", {3}, {2, 15, 4, 1, 2}, {shard(1, {8, 0, 7})}, {{4}}},
    {"thinner than the window", {4}, {1, 9, 3, 1, 2}, {shard(1, {1, 2, 1, 5})}, {{7, 3}}},
    {"grid", {2, 2}, {1, 12, 13, 2, 3}, {shard(1, {7, 5}), shard(2, {4, 9})}, {{3, 5}}},
    {"grid, strided, dilated, causal",
     {2, 2},
     {1, 17, 14, 1, 2},
     {shard(1, {9, 8}), shard(2)},
     {{4, 3}, {2, 1}, {1, 2}, {false, true}}},
    {"three cut dims", {2, 2, 2}, {1, 7, 8, 9, 1, 2}, {shard(1), shard(2), shard(3, {3, 6})}, {{3}}},
};

TEST(HiddenHalos, X06_NeighborhoodAttentionWorksOnInnerQueriesWhileKeysTravel) {
  for (const AttentionCase& c : kAttentions) {
    std::vector<Input> inputs;
    for (int64_t i = 0; i < 3; ++i) {
      std::vector<int64_t> shape = c.shape;
      shape.back() += i / 2;  // values of another width than keys
      inputs.push_back({make_tensor(shape, i + 1), c.placements});
    }
    SCOPED_TRACE(c.name);
    expect_same_as_plain(c.mesh, inputs, [&](const Tensors& t) {
      const auto [y, sums] = neighborhood_attention(t[0], t[1], t[2], c.neighborhood);
      return Tensors{y, sums};
    });
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      SCOPED_TRACE(c.name);
      Tensors held;
      for (const Input& input : inputs) held.push_back(shard_of(input.full, mesh, c.placements).requires_grad_());
      const auto program = [&]() -> Tensors {
        const auto [y, sums] = neighborhood_attention(held[0], held[1], held[2], c.neighborhood);
        Tensors results = torch::autograd::grad({y, sums}, held, {y.detach().sin(), sums.detach()});
        results.push_back(y);
        for (at::Tensor& result : results) result = to_local(result.detach());
        return results;
      };
      const Traced hidden = run_with(kSettings[0], program);

      ASSERT_EQ(hidden.records.size(), 2U);
      EXPECT_THAT(hidden.records[0].halo, ElementsAre("start", "interior", "finish", "edges"));
      EXPECT_THAT(hidden.records[1].halo,
                  ElementsAre("start", "interior", "finish", "edges", "start", "interior", "finish"));
      for (const HaloOptions& options : kSettings) {
        const Traced other = run_with(options, program);
        for (size_t i = 0; i < other.results.size(); ++i) {
          EXPECT_TRUE(at::equal(other.results[i], hidden.results[i]))
              << "result " << i << ", " << name(options.backend);
        }
        if (options == kSettings[0]) continue;
        EXPECT_THAT(other.records[0].halo, ElementsAre("start", "finish", "interior", "edges"));
      }
    });
  }
}

// Set by a kernel of a convolution that ends on this rank.
thread_local std::atomic<bool>* interior_ended = nullptr;

/// Messages whose receives end only when this rank has computed an interior.
class LateMessages final : public Transport {
 public:
  explicit LateMessages(TransportPtr inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool any_thread() const override { return inner_->any_thread(); }
  std::vector<Gone> gone() override { return inner_->gone(); }
  void* send(const void* data, size_t bytes, int peer, int tag) override {
    return inner_->send(data, bytes, peer, tag);
  }
  void* receive(void* data, size_t bytes, int peer, int tag) override {
    void* const request = inner_->receive(data, bytes, peer, tag);
    if (late) held_.insert(request);
    return request;
  }
  bool test(void*& request) override {
    if (held_.contains(request)) {
      if (!computed) return false;
      ++waited;
      held_.erase(request);
    }
    return inner_->test(request);
  }
  void cancel(void*& request) override { inner_->cancel(request); }

  bool late = false;
  int waited = 0;
  std::atomic<bool> computed = false;

 private:
  TransportPtr inner_;
  std::set<void*> held_;
};

// Edges that are under way for as long as the interior takes cost nothing: were they awaited first, no rank would end.
TEST(LateEdges, X06_EdgesMayComeWhenTheInteriorIsDone) {
  on_socket_transports(2, [](Communicator&, TransportPtr& mine) {
    const auto messages = std::make_shared<LateMessages>(std::move(mine));
    const CommunicatorPtr world = make_transport_communicators(messages, 1)[0];
    world->set_timeout(kHang);
    const MeshPtr mesh = init_device_mesh(*world, "cpu", {2});
    const at::NoGradGuard no_grad;
    const at::Tensor full = make_tensor({1, 2, 12, 5}, 1), weight = make_tensor({3, 2, 3, 3}, 2);
    const at::Tensor x = shard_of(full, mesh, {shard(2)}), w = shard_of(weight, mesh, {replicate()});
    const auto ended = [](const at::RecordFunction& call, at::ObserverContext*) {
      if (interior_ended != nullptr && std::string(call.name()).find("conv") != std::string::npos)
        *interior_ended = true;
    };
    interior_ended = &messages->computed;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); },
                                   ended)
            .scopes({at::RecordScope::FUNCTION}));

    messages->late = true;
    const at::Tensor y = at::conv2d(x, w, {}, 1, 1);
    messages->late = false;

    at::removeCallback(handle);
    interior_ended = nullptr;
    EXPECT_EQ(messages->waited, 1);  // for the row of the neighbour
    EXPECT_EQ(difference(full_tensor(y), at::conv2d(full, weight, {}, 1, 1), 1e-12), "");
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_overlap
