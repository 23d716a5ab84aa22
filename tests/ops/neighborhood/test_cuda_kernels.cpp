// SPDX-License-Identifier: Apache-2.0
// The device code of ops/kernels/neighborhood_cuda_*.h, run by the emulator on a CPU, against dense attention with a
// mask.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>
#include <string>
#include <typeinfo>

#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/kernels/cuda.h"
#include "tests/support/dense_neighborhood.h"
#include "tests/support/neighborhood_cases.h"
#include "tests/support/oracle.h"
#include "tests/support/simt.h"

// The device code stands after the emulator, whose words it uses.
#include "moonhalo/ops/neighborhood/kernels/cuda_choice.h"

namespace moonhalo::testing::test_cuda_kernels {
namespace {

namespace cuda = neighborhood::cuda;
using Case = NeighborhoodCase;
using Sizes = std::vector<int64_t>;
using neighborhood::Axis;
using neighborhood::Problem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Runs kernels by the emulator; notes which.
struct Emulated {
  bool backwards = false;
  std::set<std::string>* names = nullptr;

  template <typename Kernel>
  void operator()(Kernel, const cuda::Launch& launch, int64_t blocks, size_t bytes) const {
    if (names != nullptr) names->insert(typeid(Kernel).name());
    simt::launch(blocks, cuda::kThreads, bytes, backwards, [&](unsigned char* memory) { Kernel::run(launch, memory); });
  }
};

template <typename Call>
void with_types(at::ScalarType type, const Call& call) {
  switch (type) {
    case at::kFloat:
      return call(float{}, float{});
    case at::kDouble:
      return call(double{}, double{});
    case at::kHalf:
      return call(c10::Half{}, float{});
    default:
      return call(c10::BFloat16{}, float{});
  }
}

// The tensors of a block: `key` and `value` hold what the call's axes say.
NeighborhoodResults emulate(const Tensors& inputs, const NeighborhoodCall& call, const at::Tensor& grad_output,
                            const at::Tensor& grad_logsumexp, const Emulated& run) {
  NeighborhoodResults r;
  const at::ScalarType type = inputs[0].scalar_type();
  std::tie(r.output, r.logsumexp) = neighborhood_forward_by(inputs[0], inputs[1], inputs[2], call, [&](Problem& p) {
    with_types(type, [&](auto t, auto s) { cuda::run_forward<decltype(t), decltype(s)>(p, run); });
  });
  const at::Tensor delta = at::empty_like(r.logsumexp);
  std::tie(r.query, r.key, r.value) = neighborhood_backward_by(
      grad_output, grad_logsumexp, inputs[0], inputs[1], inputs[2], r.output, r.logsumexp, call, [&](Problem& p) {
        const auto strided = neighborhood_strided(delta, call.spatial, 0);
        with_types(type, [&](auto t, auto s) { cuda::run_backward<decltype(t), decltype(s)>(p, strided, run); });
      });
  return r;
}

void expect_dense(const Case& c, at::ScalarType type, double tolerance, const std::vector<Sizes>& blocks = {},
                  const Emulated& run = {}) {
  const Tensors inputs = inputs_of(c, type);
  const NeighborhoodCotangents given = cotangents_of(c, type);
  Tensors doubles;
  for (const at::Tensor& t : inputs) doubles.push_back(t.to(at::kDouble).requires_grad_());
  const auto [output, logsumexp] = dense_neighborhood_attention(doubles[0], doubles[1], doubles[2], c.n, c.scale);
  const auto gradients = torch::autograd::grad({output, logsumexp}, doubles,
                                               {given.output.to(at::kDouble), given.logsumexp.to(at::kDouble)});
  const auto call = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), c.n, c.scale);
  const auto actual =
      in_blocks(inputs, call, blocks, given,
                [&](const Tensors& block, const NeighborhoodCall& local, const NeighborhoodCotangents& grads) {
                  return emulate(block, local, grads.output, grads.logsumexp, run);
                });
  expect_near(actual, {output.detach(), logsumexp.detach(), gradients[0], gradients[1], gradients[2]}, tolerance,
              c.name);
}

// Windows longer than a chunk of the CPU's kernels are of no interest here, and slow to emulate.
bool is_short(const Case& c) { return c.dims[0] * c.n.window[0] < 100'000; }

TEST(NeighborhoodCudaKernels, X04_EqualDenseMaskedAttentionAndItsGradients) {
  for (const Case& c : neighborhood_cases()) {
    if (!is_short(c)) continue;
    expect_dense(c, at::kDouble, 1e-10);
    expect_dense(c, at::kFloat, 1e-5);
  }
}

TEST(NeighborhoodCudaKernels, X04_EveryWindowDilationStrideAndCausalityOnUnevenBlocks) {
  for (int64_t window = 2; window <= 9; ++window) {
    for (int64_t dilation = 1; dilation <= 3; ++dilation) {
      for (const int64_t stride : {int64_t{1}, int64_t{2}, window}) {
        for (const bool causal : {false, true}) {
          for (const int64_t rest : {0, 4}) {
            SCOPED_TRACE(::testing::Message() << "window " << window << " dilation " << dilation << " stride " << stride
                                              << " causal " << causal << " rest " << rest);
            const int64_t extent = window * dilation + rest;
            expect_dense({"1d", {extent}, {{window}, {stride}, {dilation}, {causal}}, 3, 2, 1, 1}, at::kDouble, 1e-10,
                         {{1, extent / 3, 0, extent - 1 - extent / 3}});
          }
        }
      }
    }
  }
}

TEST(NeighborhoodCudaKernels, X04_BlocksOfOneToThreeDims) {
  for (const auto& [c, blocks] : neighborhood_block_cases()) {
    expect_dense(c, at::kDouble, 1e-10, blocks);
    expect_dense(c, at::kFloat, 1e-5, blocks);
    expect_dense(c, at::kHalf, 1e-2, blocks);
    expect_dense(c, at::kBFloat16, 5e-2, blocks);
  }
}

// More features than are summed at once.
TEST(NeighborhoodCudaKernels, X04_ManyFeatures) {
  for (const auto& [head_dim, value_dim] : std::vector<std::pair<int64_t, int64_t>>{{136, 200}, {260, 1}, {1, 140}})
    expect_dense({"features", {7, 6}, {{3}}, head_dim, value_dim}, at::kDouble, 1e-10, {{4, 3}, {6}});
}

TEST(NeighborhoodCudaKernels, X04_TensorCores) {
  for (const auto& [c, blocks] : neighborhood_tensor_cases()) {
    std::set<std::string> names;
    expect_dense(c, at::kHalf, 1e-2, blocks, {false, &names});
    expect_dense(c, at::kBFloat16, 6e-2, blocks, {false, &names});
    for (const std::string& name : names)
      EXPECT_TRUE(name.find("Tensor") != std::string::npos || name.find("Delta") != std::string::npos) << name;
  }
  // Values that are not aligned, or too wide, or of other types, are for the other kernels.
  Problem p;
  p.head_dim = p.value_dim = 32;
  EXPECT_TRUE(cuda::tensor_cores<c10::Half>(p, true));
  EXPECT_FALSE(cuda::tensor_cores<float>(p, true));
  p.key.dims[1] = 36;
  EXPECT_FALSE(cuda::tensor_cores<c10::Half>(p, false));
  p.key.dims[1] = 0;
  p.value_dim = 144;
  EXPECT_FALSE(cuda::tensor_cores<c10::Half>(p, false));
}

// Scores that rise along the window, so that sums are made smaller again and again, and large ones.
TEST(NeighborhoodCudaKernels, X04_RunningSoftmax) {
  const int64_t rows = 200;
  for (const auto& [type, tolerance] :
       std::vector<std::pair<at::ScalarType, double>>{{at::kDouble, 1e-10}, {at::kFloat, 1e-5}, {at::kHalf, 1e-2}}) {
    const at::Tensor ramp = at::linspace(-30, 30, rows, at::kDouble).to(type).view({1, rows, 1, 1});
    const at::Tensor one = at::ones({1, rows, 1, 16}, type), key = (one * ramp / 4).contiguous();
    const at::Tensor value = make_tensor({1, rows, 1, 16}, 3, type);
    const auto call = check_neighborhood(one.sizes(), key.sizes(), value.sizes(), {{150}}, std::nullopt);
    const NeighborhoodResults r = emulate({one, key, value}, call, value, {}, {});
    const auto [output, logsumexp] =
        dense_neighborhood_attention(one.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble), {{150}});
    EXPECT_EQ(difference(r.output.to(at::kDouble), output, tolerance), "") << type;
    EXPECT_EQ(difference(r.logsumexp.to(at::kDouble), logsumexp, tolerance), "") << type;
  }
}

// The plain kernels let a key or value influence those only that see it.
TEST(NeighborhoodCudaKernels, X04_NaNStaysInItsWindows) {
  const at::Tensor x = make_tensor({1, 40, 1, 4}, 1, at::kFloat);
  const auto call = check_neighborhood(x.sizes(), x.sizes(), x.sizes(), {{3}}, std::nullopt);
  for (const int which : {1, 2}) {
    Tensors inputs = {x, x.clone(), x.clone()};
    inputs[which][0][20].fill_(std::nan(""));
    const NeighborhoodResults r = emulate(inputs, call, x, {}, {});
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(r.output[0][i].isnan().any().item<bool>(), i >= 19 && i <= 21) << which << " " << i;
      EXPECT_EQ(r.query[0][i].isnan().any().item<bool>(), i >= 19 && i <= 21) << which << " " << i;
      EXPECT_EQ(r.key[0][i].isnan().any().item<bool>(), i >= 18 && i <= 22) << which << " " << i;
    }
  }
}

// Any strides of inputs and cotangents, cotangents without memory of their own, and the same bits whatever the order of
// threads.
TEST(NeighborhoodCudaKernels, X04_StridesAndOrder) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    const Case c{"", {9, 10}, {{5, 4}, {1, 2}}, 16, 16, 2, 2};
    const Tensors inputs = inputs_of(c, type);
    const auto call = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), c.n, c.scale);
    const at::Tensor grad = at::ones({}, type).expand(inputs[2].sizes());
    const at::Tensor sums = at::ones({}, at::kFloat).expand({2, 9, 10, 2});
    const NeighborhoodResults one = emulate(inputs, call, grad, sums, {});
    const Tensors strided = {at::cat(inputs, -1).narrow(-1, 0, 16),
                             inputs[1].transpose(1, 2).contiguous().transpose(1, 2),
                             inputs[2].transpose(-1, -2).contiguous().transpose(-1, -2)};
    for (const NeighborhoodResults& other : {emulate(strided, call, grad.contiguous(), sums.contiguous(), {}),
                                             emulate(inputs, call, grad, sums, {.backwards = true})}) {
      const Tensors a = {one.output, one.logsumexp, one.query, one.key, one.value},
                    b = {other.output, other.logsumexp, other.query, other.key, other.value};
      for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << type << " " << i;
    }
  }
}

// All that see a key are among its seers, and at most a stride on each side is among them for nothing.
TEST(NeighborhoodCudaKernels, X04_SeersOfKeys) {
  for (int64_t window = 1; window <= 7; ++window) {
    for (int64_t stride = 1; stride <= window; ++stride) {
      for (const bool causal : {false, true}) {
        for (int64_t length = window; length <= 3 * window + 1; ++length) {
          const Axis axis{.extent = length, .window = window, .stride = stride, .causal = causal};
          for (int64_t begin = 0; begin < length; ++begin) {
            for (int64_t end = begin + 1; end <= length; ++end) {
              Interval exact{length, 0};
              for (int64_t q = 0; q < length; ++q) {
                const Interval seen = neighborhood::window_of(axis, length, q);
                if (seen.begin >= end || seen.end <= begin) continue;
                exact = {std::min(exact.begin, q), q + 1};
              }
              const Interval seers = cuda::seers_of(axis, length, {begin, end});
              ASSERT_LE(seers.begin, exact.begin);
              ASSERT_GE(seers.end, exact.end);
              if (2 * window > length) continue;
              ASSERT_GE(seers.begin, exact.begin - 2 * stride) << window << " " << stride << " " << begin << " " << end;
              ASSERT_LE(seers.end, exact.end + 2 * stride) << window << " " << stride << " " << begin << " " << end;
            }
          }
        }
      }
    }
  }
}

// The emulator shows mistakes that a GPU may forgive.
TEST(Simt, FindsMissingBarriersAndForeignMemory) {
  const auto reversed = [](bool barrier, bool backwards) {
    std::vector<float> result(64);
    simt::launch(1, 64, 64 * sizeof(float), backwards, [&](unsigned char* memory) {
      auto* const shared = reinterpret_cast<float*>(memory);
      shared[threadIdx.x] = static_cast<float>(threadIdx.x);
      if (barrier) __syncthreads();
      result[threadIdx.x] = shared[63 - threadIdx.x];
    });
    for (int i = 0; i < 64; ++i) {
      if (result[i] != static_cast<float>(63 - i)) return false;
    }
    return true;
  };
  for (const bool backwards : {false, true}) {
    EXPECT_TRUE(reversed(true, backwards));
    EXPECT_FALSE(reversed(false, backwards));
  }
  const auto message = [](const std::function<void(unsigned char*)>& body) {
    return message_of([&] { simt::launch(1, 64, 16, false, body); });
  };
  EXPECT_THAT(message([](unsigned char*) {
                if (threadIdx.x < 32) __syncthreads();
              }),
              StartsWith("simt: threads wait at a barrier that others never reach; done are 32 of 64"));
  EXPECT_THAT(message([](unsigned char* memory) { memory[16] = 1; }),
              StartsWith("simt: a block wrote behind its 16 bytes of shared memory"));
  EXPECT_THAT(message([](unsigned char*) { throw std::runtime_error("of a thread"); }), StartsWith("of a thread"));
  EXPECT_THAT(message([](unsigned char* memory) {
                nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> matrix;
                nvcuda::wmma::load_matrix_sync(matrix, reinterpret_cast<float*>(memory) + 4, 16,
                                               nvcuda::wmma::mem_row_major);
              }),
              StartsWith("simt: a matrix is not aligned"));
  unsigned odd = 0;
  int sum = 0;
  simt::launch(1, 32, 0, false, [&](unsigned char*) {
    odd = __ballot_sync(0xffffffffu, threadIdx.x % 2 == 1);
    int value = static_cast<int>(threadIdx.x);
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    sum = value + __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x), 5);
  });
  EXPECT_EQ(odd, 0xaaaaaaaau);
  EXPECT_EQ(sum, 31 * 16 + 5);
}

}  // namespace
}  // namespace moonhalo::testing::test_cuda_kernels
