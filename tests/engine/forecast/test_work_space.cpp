// SPDX-License-Identifier: Apache-2.0
// Memory that kernels of real tensors take beside their results, beside what calls with fake tensors count.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "moonhalo/engine/forecast/fake_tensor.h"
#include "tests/support/live_bytes.h"

namespace moonhalo::testing::test_work_space {
namespace {

using Call = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

struct Memory {
  int64_t peak = 0, kept = 0;  // of the call; while the result is there
};

Memory memory_of(const Call& call, const at::Tensor& a, const at::Tensor& b) {
  auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
  const at::Tensor result = call(a, b);
  return {live->peak, live->now};
}

constexpr double kOfThreads = 2000;  // bytes of sums of threads

void expect_real_memory(const std::map<std::string, Call>& calls, at::ScalarType a, at::ScalarType b,
                        double within = kOfThreads) {
  const std::vector<int64_t> sizes{64, 512};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name + " of " + c10::toString(a) + " and " + c10::toString(b));
    const Memory real = memory_of(call, at::ones(sizes, a), at::ones(sizes, b));
    const FakeResults fakes;
    const Memory fake = memory_of(call, make_fake(sizes, a), make_fake(sizes, b));
    EXPECT_NEAR(static_cast<double>(fake.peak), static_cast<double>(real.peak), within);
    EXPECT_NEAR(static_cast<double>(fake.kept), static_cast<double>(real.kept), within);
  }
}

TEST(WorkSpace, X14_ConvertedOperandsAreCounted) {
  const std::map<std::string, Call> calls{
      {"add", [](const at::Tensor& a, const at::Tensor& b) { return a + b; }},
      {"mul", [](const at::Tensor& a, const at::Tensor& b) { return a * b; }},
      {"div", [](const at::Tensor& a, const at::Tensor& b) { return a / b; }},
      {"maximum", [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); }},
      {"eq", [](const at::Tensor& a, const at::Tensor& b) { return a == b; }},
      {"scalar", [](const at::Tensor& a, const at::Tensor&) { return a * 2; }}};

  expect_real_memory(calls, at::kFloat, at::kFloat);
  expect_real_memory(calls, at::kFloat, at::kBFloat16);
  expect_real_memory(calls, at::kFloat, at::kLong);
  expect_real_memory(calls, at::kInt, at::kFloat);
  expect_real_memory(calls, at::kDouble, at::kFloat);
  expect_real_memory(calls, at::kBFloat16, at::kBFloat16);
}

TEST(WorkSpace, X14_ConvertedSumsAreCounted) {
  const std::map<std::string, Call> calls{
      {"sum", [](const at::Tensor& a, const at::Tensor&) { return a.sum(); }},
      {"sum of rows", [](const at::Tensor& a, const at::Tensor&) { return a.sum(1); }},
      {"sum in double", [](const at::Tensor& a, const at::Tensor&) { return a.sum(0, false, at::kDouble); }}};
  const std::map<std::string, Call> means{
      {"mean", [](const at::Tensor& a, const at::Tensor&) { return a.mean(); }},
      {"mean of rows", [](const at::Tensor& a, const at::Tensor&) { return a.mean(1); }}};

  for (const at::ScalarType dtype : {at::kFloat, at::kBool, at::kInt, at::kBFloat16, at::kLong})
    expect_real_memory(calls, dtype, dtype);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) expect_real_memory(means, dtype, dtype);
}

// The result of some losses has the memory of all elements.
TEST(WorkSpace, X14_LossesAreCounted) {
  std::map<std::string, Call> calls;
  for (const auto& [name, reduction] : {std::pair<std::string, at::Reduction::Reduction>{"none", at::Reduction::None},
                                        {"mean", at::Reduction::Mean},
                                        {"sum", at::Reduction::Sum}}) {
    calls["mse " + name] = [r = reduction](const auto& a, const auto& b) { return at::mse_loss(a, b, r); };
    calls["l1 " + name] = [r = reduction](const auto& a, const auto& b) { return at::l1_loss(a, b, r); };
    calls["smooth_l1 " + name] = [r = reduction](const auto& a, const auto& b) { return at::smooth_l1_loss(a, b, r); };
    calls["huber " + name] = [r = reduction](const auto& a, const auto& b) { return at::huber_loss(a, b, r); };
    calls["bce " + name] = [r = reduction](const auto& a, const auto& b) {
      return at::binary_cross_entropy(a, b, {}, r);
    };
    calls["bce of logits " + name] = [r = reduction](const auto& a, const auto& b) {
      return at::binary_cross_entropy_with_logits(a, b, {}, {}, r);
    };
  }
  expect_real_memory(calls, at::kFloat, at::kFloat);
}

TEST(WorkSpace, X14_AbsoluteValuesOfComplexNumbersAreCounted) {
  const std::map<std::string, Call> calls{{"abs", [](const at::Tensor& a, const at::Tensor&) { return at::abs(a); }},
                                          {"angle", [](const at::Tensor& a, const auto&) { return at::angle(a); }}};

  expect_real_memory(calls, at::kComplexFloat, at::kFloat);
  expect_real_memory(calls, at::kFloat, at::kFloat);
}

TEST(WorkSpace, X14_DerivativesOfBatchNormAreCounted) {
  const std::map<std::string, Call> calls{{"batch norm", [](const at::Tensor& x, const at::Tensor& grad) {
                                             const at::Tensor scale = at::ones({x.size(1)}),
                                                              mean = at::zeros({x.size(1)});
                                             return std::get<0>(at::native_batch_norm_backward(
                                                 grad, x, scale, {}, {}, mean, scale, true, 1e-5, {true, true, true}));
                                           }}};

  expect_real_memory(calls, at::kFloat, at::kFloat);
}

// Blocks without their edges are not contiguous: kernels copy them.
TEST(WorkSpace, X14_ContiguousCopiesAreCounted) {
  const auto inner = [](const at::Tensor& x) { return x.view({2, 4, 64, 64}).narrow(2, 1, 60); };
  const auto volume = [](const at::Tensor& x) { return x.view({2, 4, 16, 16, 16}).narrow(2, 1, 12); };
  const std::map<std::string, Call> calls{
      {"avg_pool2d", [&](const at::Tensor& a, const at::Tensor&) { return at::avg_pool2d(inner(a), 2); }},
      {"avg_pool3d", [&](const at::Tensor& a, const at::Tensor&) { return at::avg_pool3d(volume(a), 2); }},
      {"max_pool2d",
       [&](const at::Tensor& a, const auto&) { return std::get<0>(at::max_pool2d_with_indices(inner(a), 2)); }},
      {"max_pool3d",
       [&](const at::Tensor& a, const auto&) { return std::get<0>(at::max_pool3d_with_indices(volume(a), 2)); }},
      {"avg_pool2d_backward",
       [&](const at::Tensor& a, const at::Tensor&) {
         return at::avg_pool2d_backward(inner(a), at::ones({2, 4, 60, 64}), 1, {}, 0, false, true, {});
       }},
      {"nll_loss2d",
       [&](const at::Tensor& a, const at::Tensor&) {
         const at::Tensor target = at::zeros({2, 64, 64}, at::kLong).narrow(1, 2, 60);
         return std::get<0>(at::nll_loss2d_forward(inner(a), target, {}, at::Reduction::Mean, -1));
       }},
      {"conv2d",
       [&](const at::Tensor& a, const at::Tensor&) {
         return at::conv2d(inner(a), at::ones({4, 4, 3, 3}));
       }},
      {"conv2d backward", [&](const at::Tensor& a, const at::Tensor& b) {
         return std::get<0>(at::convolution_backward(inner(a), b.view({2, 4, 64, 64}).narrow(2, 0, 60),
                                                     at::ones({4, 4, 3, 3}), {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0},
                                                     1, {true, true, false}));
       }}};

  constexpr double kOfConvolutions = 20000;  // of layouts without AVX-512
  expect_real_memory(calls, at::kFloat, at::kFloat, kOfConvolutions);
}

const std::map<std::string, at::Tensor (*)(const at::Tensor&)> kKernels{
    {"softmax", [](const at::Tensor& x) { return at::softmax(x, -1); }},
    {"softmax of dim 1", [](const at::Tensor& x) { return at::softmax(x, 1); }},
    {"log_softmax", [](const at::Tensor& x) { return at::log_softmax(x, -1); }},
    {"layer_norm", [](const at::Tensor& x) { return at::layer_norm(x, {x.size(-1)}); }},
    {"group_norm", [](const at::Tensor& x) { return at::group_norm(x, 2); }},
    {"batch_norm", [](const at::Tensor& x) { return at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
    {"avg_pool2d", [](const at::Tensor& x) { return at::avg_pool2d(x, 2); }},
    {"max_pool2d", [](const at::Tensor& x) { return at::max_pool2d(x, 2); }},
    {"adaptive_avg_pool2d",
     [](const at::Tensor& x) {
       return at::adaptive_avg_pool2d(x, {4, 4});
     }},
    {"adaptive_max_pool2d",
     [](const at::Tensor& x) {
       return std::get<0>(at::adaptive_max_pool2d(x, {4, 4}));
     }},
    {"upsample_nearest2d",
     [](const at::Tensor& x) {
       return at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
     }},
    {"upsample_bilinear2d",
     [](const at::Tensor& x) {
       return at::upsample_bilinear2d(x, {2 * x.size(2), 2 * x.size(3)}, false);
     }},
    {"upsample_bicubic2d",
     [](const at::Tensor& x) {
       return at::upsample_bicubic2d(x, {2 * x.size(2), 2 * x.size(3)}, false);
     }},
    {"reflection_pad2d",
     [](const at::Tensor& x) {
       return at::reflection_pad2d(x, {1, 1, 1, 1});
     }},
    {"replication_pad2d",
     [](const at::Tensor& x) {
       return at::replication_pad2d(x, {1, 1, 1, 1});
     }},
    {"pad",
     [](const at::Tensor& x) {
       return at::constant_pad_nd(x, {1, 1, 1, 1});
     }},
    {"pixel_shuffle", [](const at::Tensor& x) { return at::pixel_shuffle(x, 2); }},
    {"cumsum", [](const at::Tensor& x) { return x.cumsum(2); }},
    {"logcumsumexp", [](const at::Tensor& x) { return x.logcumsumexp(2); }},
    {"logsumexp", [](const at::Tensor& x) { return x.logsumexp(-1); }},
    {"sort", [](const at::Tensor& x) { return std::get<0>(x.sort(-1)); }},
    {"topk", [](const at::Tensor& x) { return std::get<0>(x.topk(4, -1)); }},
    {"max", [](const at::Tensor& x) { return std::get<0>(x.max(-1)); }},
    {"amax", [](const at::Tensor& x) { return x.amax(-1); }},
    {"var", [](const at::Tensor& x) { return x.var(-1); }},
    {"glu", [](const at::Tensor& x) { return at::glu(x, 1); }},
    {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
    {"silu", [](const at::Tensor& x) { return at::silu(x); }},
    {"matmul",
     [](const at::Tensor& x) {
       return x.matmul(at::ones({x.size(-1), 8}));
     }},
    {"linear",
     [](const at::Tensor& x) {
       return at::linear(x, at::ones({8, x.size(-1)}));
     }},
    {"linear with a bias",
     [](const at::Tensor& x) {
       return at::linear(x, at::ones({8, x.size(-1)}), at::ones({8}));
     }},
    {"product of matrices",
     [](const at::Tensor& x) {
       return x.select(0, 0).select(0, 0).mm(at::ones({x.size(3), 8}));
     }},
    {"products of a batch",
     [](const at::Tensor& x) {
       return x.select(0, 1).bmm(at::ones({x.size(1), x.size(3), 8}));
     }},
    {"products of a large batch",
     [](const at::Tensor& x) {
       return x.select(0, 1).bmm(at::ones({x.size(1), x.size(3), 40}));
     }},
    {"product with every second column",
     [](const at::Tensor& x) {
       return at::ones({80, x.size(2)}).mm(x.select(0, 0).select(0, 0).slice(1, 0, {}, 2));
     }},
    {"cat",
     [](const at::Tensor& x) {
       return at::cat({x, x}, 1);
     }},
    {"roll", [](const at::Tensor& x) { return x.roll(1, 1); }},
    {"flip", [](const at::Tensor& x) { return x.flip({1}); }},
    {"index_select", [](const at::Tensor& x) { return x.index_select(1, at::arange(4)); }},
    {"reshape", [](const at::Tensor& x) { return x.reshape({-1}); }},
    {"tril", [](const at::Tensor& x) { return x.tril(); }},
    {"unfold",
     [](const at::Tensor& x) {
       return at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1});
     }},
    {"grid_sample",
     [](const at::Tensor& x) {
       return at::grid_sampler_2d(x, at::zeros({x.size(0), 8, 8, 2}), 0, 0, false);
     }},
    {"prelu", [](const at::Tensor& x) { return at::prelu(x, at::ones({x.size(1)})); }},
    {"attention", [](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x); }},
    {"einsum",
     [](const at::Tensor& x) {
       return at::einsum("abcd,de->abce", {x, at::ones({x.size(3), 8})});
     }},
    {"cross_entropy",
     [](const at::Tensor& x) {
       return at::cross_entropy_loss(x, at::zeros({x.size(0), x.size(2), x.size(3)}, at::kLong));
     }},
    {"mse", [](const at::Tensor& x) { return at::mse_loss(x, at::ones_like(x)); }},
    {"l1", [](const at::Tensor& x) { return at::l1_loss(x, at::ones_like(x)); }},
    {"smooth_l1", [](const at::Tensor& x) { return at::smooth_l1_loss(x, at::ones_like(x)); }},
    {"huber", [](const at::Tensor& x) { return at::huber_loss(x, at::ones_like(x)); }},
    {"kl", [](const at::Tensor& x) { return at::kl_div(x, at::ones(x.sizes())); }},
    {"bce of logits", [](const at::Tensor& x) { return at::binary_cross_entropy_with_logits(x, at::ones(x.sizes())); }},
    {"bce", [](const at::Tensor& x) { return at::binary_cross_entropy(x, at::ones(x.sizes())); }},
};

// Some kernels copy inputs that are parts of a tensor, or whose dims were moved, and some keep the order of dims in
// their results.
TEST(WorkSpace, X14_KernelsOfViewsAreCounted) {
  const std::map<std::string, std::function<at::Tensor(const at::Tensor&)>> views{
      {"",
       [](const at::Tensor& x) {
         return x.view({2, 16, 16, 64});
       }},
      {"moved dims, ",
       [](const at::Tensor& x) {
         return x.view({2, 16, 16, 64}).movedim(1, 3);
       }},
      {"part, ",
       [](const at::Tensor& x) {
         return x.view({2, 16, 16, 64}).narrow(2, 1, 12);
       }},
      {"channels last, ", [](const at::Tensor& x) {
         return x.view({2, 16, 64, 16}).permute({0, 3, 1, 2});
       }}};
  std::map<std::string, Call> calls;
  for (const auto& [view_name, view] : views) {
    for (const auto& [name, kernel] : kKernels) {
      const auto forward = [=, view = view, kernel = kernel](const at::Tensor& a) { return kernel(view(a)); };
      const auto train = [=, view = view, kernel = kernel](const at::Tensor& a, bool squares) {
        const at::Tensor x = view(a).detach().requires_grad_(), y = kernel(x);
        return torch::autograd::grad({squares ? y.square().sum() : y.sum()}, {x})[0];
      };
      calls[view_name + name] = [=](const at::Tensor& a, const at::Tensor&) { return forward(a); };
      // Kernels of channels in the last dim copy more where the gradient is an expanded number.
      if (view_name != "channels last, ")
        calls[view_name + name + " and its derivative"] = [=](const at::Tensor& a, const auto&) {
          return train(a, false);
        };
      calls[view_name + name + " and that of squares"] = [=](const at::Tensor& a, const auto&) {
        return train(a, true);
      };
    }
  }
  constexpr double kOfUpsampling = 8000;  // weights of neighbours
  expect_real_memory(calls, at::kFloat, at::kFloat, kOfUpsampling);
}

TEST(WorkSpace, X14_ColumnsOfWindowsAreCounted) {
  const std::map<std::string, Call> calls{
      {"unfold",
       [](const at::Tensor& x, const at::Tensor&) {
         return at::im2col(x.view({4, 8, 32, 32}), {3, 3}, {1, 1}, {1, 1}, {1, 1});
       }},
      {"fold", [](const at::Tensor& x, const at::Tensor&) {
         return at::col2im(x.view({2, 16, 1024}), {33, 33}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
       }}};

  expect_real_memory(calls, at::kFloat, at::kFloat);
}

// Forward and backward of layers in one direction or two, with and without biases.
TEST(WorkSpace, X14_LstmsAreCounted) {
  for (const auto& [steps, biases, both] :
       {std::tuple{12, true, false}, {40, true, false}, {40, false, false}, {25, true, true}}) {
    SCOPED_TRACE(::testing::Message() << steps << " steps, biases " << biases << ", two directions " << both);
    constexpr int64_t kInputs = 48, kHidden = 96, kSamples = 48;
    const int64_t directions = both ? 2 : 1;
    const auto train = [&, biases = biases, both = both](const auto& make) {
      at::Tensor x = make({int64_t{steps}, kSamples, kInputs}), state = make({directions, kSamples, kHidden});
      std::vector<at::Tensor> weights;
      for (int64_t d = 0; d < directions; ++d) {
        weights.push_back(make({4 * kHidden, kInputs}));
        weights.push_back(make({4 * kHidden, kHidden}));
        for (int i = 0; biases && i < 2; ++i) weights.push_back(make({4 * kHidden}));
      }
      auto live = std::make_shared<LiveBytes>();
      const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
      const auto [y, h, c] = at::lstm(x, {state, state}, weights, biases, 1, 0.0, true, both, false);
      std::vector<at::Tensor> leaves = weights;
      leaves.push_back(x);
      const auto gradients = torch::autograd::grad({y}, leaves, {at::ones_like(y)});
      for (size_t i = 0; i < leaves.size(); ++i) EXPECT_EQ(gradients[i].sizes(), leaves[i].sizes());
      return static_cast<double>(live->peak);
    };
    const double real = train([](at::IntArrayRef sizes) { return at::ones(sizes).requires_grad_(); });
    const FakeResults fakes;
    const double fake = train([](at::IntArrayRef sizes) { return make_fake(sizes, at::kFloat).requires_grad_(); });
    EXPECT_NEAR(fake, real, 0.03 * real);
  }
}

// Without gradients nothing is kept.
TEST(WorkSpace, X14_LstmsWithoutGradientsAreCounted) {
  const at::NoGradGuard without_gradients;
  const Call lstm = [](const at::Tensor& x, const at::Tensor& states) {
    const std::vector<at::Tensor> weights{at::ones({256, 64}), at::ones({256, 64}), at::ones({256}), at::ones({256})};
    const at::Tensor state = states.view({1, 512, 64}).narrow(1, 0, 8);
    return std::get<0>(at::lstm(x.view({64, 8, 64}), {state, state}, weights, true, 1, 0.0, false, false, false));
  };
  const std::vector<int64_t> sizes{64, 512};
  const Memory real = memory_of(lstm, at::ones(sizes), at::ones(sizes));
  const FakeResults fakes;
  const Memory fake = memory_of(lstm, make_fake(sizes, at::kFloat), make_fake(sizes, at::kFloat));

  EXPECT_EQ(fake.kept, real.kept);
  EXPECT_NEAR(static_cast<double>(fake.peak), static_cast<double>(real.peak), 0.1 * static_cast<double>(real.peak));
}

}  // namespace
}  // namespace moonhalo::testing::test_work_space
