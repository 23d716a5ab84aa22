// SPDX-License-Identifier: Apache-2.0
// ops/neighborhood/block.cpp and its kernels against dense attention with a mask: results and all gradients.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "moonhalo/ops/neighborhood/block.h"
#include "tests/support/dense_neighborhood.h"
#include "tests/support/neighborhood_cases.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_operator {
namespace {

using Sizes = std::vector<int64_t>;
using Case = NeighborhoodCase;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Output, logsumexp and the gradients of query, key, value for fixed cotangents of both results.
template <typename Function>
Tensors outcome(Tensors inputs, const Function& attend) {
  for (at::Tensor& t : inputs) t = t.detach().requires_grad_();
  const auto [output, logsumexp] = attend(inputs[0], inputs[1], inputs[2]);
  const auto gradients = torch::autograd::grad({output, logsumexp}, {inputs[0], inputs[1], inputs[2]},
                                               {make_tensor(output.sizes(), 7).to(output.scalar_type()),
                                                make_tensor(logsumexp.sizes(), 8).to(logsumexp.scalar_type())});
  Tensors all = {output.detach(), logsumexp.detach()};
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

void expect_dense(const Case& c, at::ScalarType type, double tolerance) {
  const Tensors inputs = inputs_of(c, type);
  Tensors doubles;
  for (const at::Tensor& t : inputs) doubles.push_back(t.to(at::kDouble));
  const Tensors expected = outcome(doubles, [&](const auto& q, const auto& k, const auto& v) {
    return dense_neighborhood_attention(q, k, v, c.n, c.scale);
  });
  const Tensors actual = outcome(inputs, [&](const auto& q, const auto& k, const auto& v) {
    return neighborhood_attention(q, k, v, c.n, c.scale);
  });
  const char* names[] = {"output", "logsumexp", "grad_query", "grad_key", "grad_value"};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(difference(actual[i].to(at::kDouble), expected[i], tolerance), "") << c.name << ": " << names[i];
}

TEST(NeighborhoodAttention, S06_X04_EqualsDenseMaskedAttentionAndItsGradients) {
  for (const Case& c : neighborhood_cases()) {
    expect_dense(c, at::kDouble, 1e-10);
    expect_dense(c, at::kFloat, 1e-5);
  }
}

TEST(NeighborhoodAttention, S06_X04_EveryWindowDilationStrideAndCausality) {
  for (int64_t window = 2; window <= 9; ++window) {
    for (int64_t dilation = 1; dilation <= 3; ++dilation) {
      for (const int64_t stride : {int64_t{1}, int64_t{2}, window}) {
        for (const bool causal : {false, true}) {
          for (const int64_t rest : {0, 1, 4}) {
            SCOPED_TRACE(::testing::Message() << "window " << window << " dilation " << dilation << " stride " << stride
                                              << " causal " << causal << " rest " << rest);
            expect_dense({"1d", {window * dilation + rest}, {{window}, {stride}, {dilation}, {causal}}, 3, 2},
                         at::kDouble, 1e-10);
          }
        }
      }
    }
  }
}

// The same along each dim of two and three, in both precisions; the other dims are short.
TEST(NeighborhoodAttention, S06_X04_EveryWindowAlongEveryDim) {
  const std::vector<std::pair<size_t, size_t>> places = {{2, 0}, {3, 2}, {2, 1}, {3, 0}, {3, 1}};
  size_t turn = 0;
  for (int64_t window = 2; window <= 9; ++window) {
    for (int64_t dilation = 1; dilation <= 3; ++dilation) {
      for (const int64_t stride : {int64_t{1}, int64_t{2}, window}) {
        for (const bool causal : {false, true}) {
          for (const int64_t rest : {0, 1, 4}) {
            const auto [dims, place] = places[turn++ % places.size()];
            Case c{"along", {3, 4, 2}, {{2, 3, 1}, {1, 2, 1}, {1}, {false, false, true}}, 3, 2};
            for (Sizes* list : {&c.dims, &c.n.window, &c.n.stride}) list->resize(dims);
            c.n.is_causal.resize(dims);
            c.n.dilation.resize(dims, 1);
            c.dims[place] = window * dilation + rest;
            c.n.window[place] = window;
            c.n.stride[place] = stride;
            c.n.dilation[place] = dilation;
            c.n.is_causal[place] = causal;
            SCOPED_TRACE(::testing::Message()
                         << "dim " << place << " of " << dims << " window " << window << " dilation " << dilation
                         << " stride " << stride << " causal " << causal << " rest " << rest);
            expect_dense(c, at::kDouble, 1e-10);
            expect_dense(c, at::kFloat, 1e-5);
          }
        }
      }
    }
  }
}

// More rows than a strip takes at a time: what was summed before is rescaled by a larger score.
TEST(NeighborhoodAttention, X04_WindowsOfManyRows) {
  const Case c{"many rows", {12, 4, 9}, {{11, 3, 5}}, 3, 2};
  expect_dense(c, at::kDouble, 1e-10);
  expect_dense(c, at::kFloat, 1e-5);
}

// The weights are relative to a guess from the query before: scores that leap from query to query, up and down.
TEST(NeighborhoodAttention, X04_ScoresThatLeap) {
  for (const double scale : {9.0, -40.0, 300.0}) {
    expect_dense({"leaps", {40}, {{7}}, 5, 5, 1, 2, scale}, at::kDouble, 1e-10);
    expect_dense({"leaps, 2d", {9, 8}, {{4, 3}, {1}, {2, 1}, {true, false}}, 5, 3, 1, 2, scale}, at::kDouble, 1e-10);
    expect_dense({"over chunks", {1100}, {{1080}}, 3, 3, 1, 1, scale}, at::kDouble, 1e-10);
    expect_dense({"over chunks, causal", {1100}, {{1050}, {3}, {1}, {true}}, 2, 2, 1, 1, scale}, at::kDouble, 1e-10);
  }
  Case c{"leaps in float32", {40}, {{7}}, 5, 5, 1, 2, 300.0};
  const Tensors inputs = inputs_of(c, at::kFloat);
  Tensors doubles;
  for (const at::Tensor& t : inputs) doubles.push_back(t.to(at::kDouble));
  const at::Tensor output = std::get<0>(neighborhood_attention(inputs[0], inputs[1], inputs[2], c.n, c.scale));
  const at::Tensor expected =
      std::get<0>(dense_neighborhood_attention(doubles[0], doubles[1], doubles[2], c.n, c.scale));
  EXPECT_EQ(difference(output.to(at::kDouble), expected, 1e-3), "");
}

// Both sets of kernels, and BFloat16 against its own inputs in float64.
TEST(NeighborhoodAttention, X04_KernelsOfEveryInstructionSetAndType) {
  const std::pair<at::ScalarType, double> types[] = {{at::kDouble, 1e-10}, {at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}};
  for (const auto* kernels : {&neighborhood::kernels_generic(), &neighborhood::kernels_native()}) {
    for (const Case& c : neighborhood_cases()) {
      for (const auto& [type, tolerance] : types) {
        const Tensors inputs = inputs_of(c, type);
        const auto call = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), c.n, c.scale);
        const auto [output, logsumexp] = neighborhood_forward(inputs[0], inputs[1], inputs[2], call, *kernels);
        const at::Tensor cotangent = make_tensor(output.sizes(), 7).to(type);
        const auto [q, k, v] =
            neighborhood_backward(cotangent, {}, inputs[0], inputs[1], inputs[2], output, logsumexp, call, *kernels);
        Tensors doubles;
        for (const at::Tensor& t : inputs) doubles.push_back(t.to(at::kDouble).requires_grad_());
        const auto [dense, sums] = dense_neighborhood_attention(doubles[0], doubles[1], doubles[2], c.n, c.scale);
        const auto expected =
            torch::autograd::grad({dense}, {doubles[0], doubles[1], doubles[2]}, {cotangent.to(at::kDouble)});
        EXPECT_EQ(logsumexp.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
        const Tensors actual = {output, logsumexp, q, k, v},
                      wanted = {dense, sums, expected[0], expected[1], expected[2]};
        for (size_t i = 0; i < actual.size(); ++i) {
          EXPECT_EQ(difference(actual[i].to(at::kDouble), wanted[i].detach(), tolerance), "")
              << kernels->name << " " << type << " " << c.name << " " << i;
        }
      }
    }
  }
}

// Results that need no reference: equal scores average the window, one key gives its value, and sums of large scores
// stay finite.
TEST(NeighborhoodAttention, S06_ClosedCases) {
  const at::Tensor zero = at::zeros({1, 9, 1, 4}, at::kDouble);
  const at::Tensor v = at::arange(9, at::kDouble).view({1, 9, 1, 1});
  const auto values = [](const at::Tensor& t) {
    const at::Tensor flat = t.contiguous().view({-1});
    return std::vector<double>(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  };
  using Doubles = std::vector<double>;
  const auto mean = [&](const Neighborhood& n) {
    return values(std::get<0>(neighborhood_attention(zero, zero, v, n)));
  };
  EXPECT_EQ(mean({{3}}), (Doubles{1, 1, 2, 3, 4, 5, 6, 7, 7}));
  EXPECT_EQ(mean({{2}}), (Doubles{0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5}));
  EXPECT_EQ(mean({{3}, {3}}), (Doubles{1, 1, 1, 4, 4, 4, 7, 7, 7}));
  EXPECT_EQ(mean({{3}, {1}, {2}}), (Doubles{2, 3, 2, 3, 4, 5, 6, 5, 6}));
  EXPECT_EQ(mean({{3}, {1}, {1}, {true}}), (Doubles{0, 0.5, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mean({{3}, {3}, {1}, {true}}), (Doubles{0, 0.5, 1, 3, 3.5, 4, 6, 6.5, 7}));
  const auto sums = std::get<1>(neighborhood_attention(zero, zero, v, {{3}, {1}, {1}, {true}}));
  EXPECT_NEAR(sums[0][0][0].item<double>(), 0, 1e-15);
  EXPECT_NEAR(sums[0][8][0].item<double>(), std::log(3.0), 1e-15);

  const at::Tensor large = at::full({1, 9, 1, 4}, 1e4, at::kFloat), small = at::full({1, 9, 1, 4}, -1e4, at::kFloat);
  for (const at::Tensor& key : {large, small}) {
    const auto [output, logsumexp] = neighborhood_attention(large, key, v.to(at::kFloat), {{3}});
    EXPECT_FLOAT_EQ(output[0][4][0][0].item<float>(), 4);
    EXPECT_TRUE(logsumexp.isfinite().all().item<bool>());
  }
  at::Tensor spoilt = zero.clone();
  spoilt[0][4][0][0] = std::nan("");
  const auto output = values(std::get<0>(neighborhood_attention(zero, spoilt, v, {{3}})));
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(output[i]), i >= 3 && i <= 5) << i;
  const auto [of_query, sum] = neighborhood_attention(spoilt, zero, v, {{3}});
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(std::isnan(values(of_query)[i]), i == 4) << i;
    EXPECT_EQ(std::isnan(values(sum)[i]), i == 4) << i;
  }
}

// At the edges of the domain, too, where neighbours have one window.
TEST(NeighborhoodAttention, X04_NaNOfAValueStaysInItsWindows) {
  constexpr int64_t kRows = 9, kColumns = 21, kWindow = 5;
  const at::Tensor x = make_tensor({1, kRows, kColumns, 1, 8}, 1, at::kFloat);
  const auto sees = [](int64_t query, int64_t key, int64_t extent) {
    const int64_t begin = std::clamp<int64_t>(query - kWindow / 2, 0, extent - kWindow);
    return begin <= key && key < begin + kWindow;
  };
  for (const int64_t column : {0, 6, 10, 15, 20}) {
    at::Tensor values = x.clone();
    values[0][4][column].fill_(std::nan(""));
    const at::Tensor spoilt = std::get<0>(neighborhood_attention(x, x, values, {{kWindow}})).isnan().any(-1)[0];
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        EXPECT_EQ(spoilt[i][j].item<bool>(), sees(i, 4, kRows) && sees(j, column, kColumns))
            << column << ": " << i << ", " << j;
      }
    }
  }
}

// The kernels of float32, with a note of the threads that ran them.
struct Witness {
  static inline std::mutex mutex;
  static inline std::set<std::thread::id> forward_threads, backward_threads;

  static void note(std::set<std::thread::id>& threads) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  }
  static neighborhood::KernelSet kernels() {
    neighborhood::KernelSet set = neighborhood::kernels_native();
    set.float32.forward = [](const neighborhood::Problem& p, int64_t unit, int64_t slab, void* scratch) {
      note(forward_threads);
      neighborhood::kernels_native().float32.forward(p, unit, slab, scratch);
    };
    set.float32.forward_strip = [](const neighborhood::Problem& p, int64_t unit, int64_t part, void* scratch) {
      note(forward_threads);
      neighborhood::kernels_native().float32.forward_strip(p, unit, part, scratch);
    };
    set.float32.backward = [](const neighborhood::Problem& p, int64_t unit, int64_t slab, void* scratch) {
      note(backward_threads);
      neighborhood::kernels_native().float32.backward(p, unit, slab, scratch);
    };
    return set;
  }
};

// Any strides of the inputs, and the same bits for any number of threads.
TEST(NeighborhoodAttention, X04_StridesAndThreads) {
  const Case c{"", {12, 13}, {{5, 4}, {1, 2}}, 8, 8, 2, 3};
  const Tensors inputs = inputs_of(c, at::kFloat);
  const auto attend = [&](const auto& q, const auto& k, const auto& v) { return neighborhood_attention(q, k, v, c.n); };
  const Tensors one = outcome(inputs, attend);
  at::set_num_threads(2);
  const Tensors two = outcome(inputs, attend);
  const auto call = check_neighborhood(inputs[0].sizes(), inputs[1].sizes(), inputs[2].sizes(), c.n, std::nullopt);
  const auto kernels = Witness::kernels();
  const auto [output, sums] = neighborhood_forward(inputs[0], inputs[1], inputs[2], call, kernels);
  neighborhood_backward(output, {}, inputs[0], inputs[1], inputs[2], output, sums, call, kernels);
  at::set_num_threads(1);
  EXPECT_EQ(Witness::forward_threads.size(), 2U);
  EXPECT_EQ(Witness::backward_threads.size(), 2U);
  const Tensors packed =
      outcome({at::cat(inputs, -1).narrow(-1, 0, 8), inputs[1].transpose(1, 2).contiguous().transpose(1, 2),
               inputs[2].transpose(-1, -2).contiguous().transpose(-1, -2)},
              attend);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i], two[i])) << i;
    EXPECT_TRUE(at::equal(one[i], packed[i])) << i;
  }
}

TEST(NeighborhoodAttention, X04_GradientsThatAreNotAskedForAndEmptyBatches) {
  const Case c{"", {5, 6}, {{3}}};
  Tensors t = inputs_of(c, at::kDouble);
  t[2].requires_grad_();
  const auto [output, logsumexp] = neighborhood_attention(t[0], t[1], t[2], c.n);
  const at::Tensor cotangent = make_tensor(output.sizes(), 9);
  const at::Tensor only_value = torch::autograd::grad({output}, {t[2]}, {cotangent})[0];
  const auto [dense, sums] = dense_neighborhood_attention(t[0], t[1], t[2], c.n);
  EXPECT_EQ(difference(only_value, torch::autograd::grad({dense}, {t[2]}, {cotangent})[0], 1e-10), "");

  const at::Tensor query = t[0].detach().requires_grad_();
  const at::Tensor by_sums = std::get<1>(neighborhood_attention(query, t[1], t[2].detach(), c.n));
  const at::Tensor dense_sums = std::get<1>(dense_neighborhood_attention(query, t[1], t[2].detach(), c.n));
  const at::Tensor cotangent_of_sums = make_tensor(by_sums.sizes(), 10);
  EXPECT_EQ(difference(torch::autograd::grad({by_sums}, {query}, {cotangent_of_sums})[0],
                       torch::autograd::grad({dense_sums}, {query}, {cotangent_of_sums})[0], 1e-10),
            "");

  Case empty = c;
  empty.batch = 0;
  const Tensors none = outcome(inputs_of(empty, at::kFloat), [&](const auto& q, const auto& k, const auto& v) {
    return neighborhood_attention(q, k, v, c.n);
  });
  EXPECT_EQ(none[0].sizes(), (Sizes{0, 5, 6, 2, 5}));
  EXPECT_EQ(none[2].sizes(), (Sizes{0, 5, 6, 2, 5}));
}

TEST(NeighborhoodAttention, X04_MetaTensorsAndThirdDerivatives) {
  const Tensors t = inputs_of({"", {5, 6}, {{3}}, 4, 7}, at::kBFloat16);
  const auto meta = [](const at::Tensor& x) { return x.to(at::kMeta); };
  const auto [output, logsumexp] = neighborhood_attention(meta(t[0]), meta(t[1]), meta(t[2]), {{3}});
  EXPECT_EQ(output.sizes(), (Sizes{1, 5, 6, 2, 7}));
  EXPECT_EQ(logsumexp.sizes(), (Sizes{1, 5, 6, 2}));
  EXPECT_EQ(logsumexp.scalar_type(), at::kFloat);

  const at::Tensor x = t[0].to(at::kDouble).requires_grad_();
  const at::Tensor y = std::get<0>(neighborhood_attention(x, x, x, {{3}}));
  const at::Tensor gradient = torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  EXPECT_TRUE(gradient.requires_grad());
  const at::Tensor second = torch::autograd::grad({gradient.square().sum()}, {x}, {}, std::nullopt, true)[0];
  EXPECT_THAT(message_of([&] { torch::autograd::grad({second.sum()}, {x}); }),
              StartsWith("neighborhood_attention: its third derivative is asked for"));
}

// Second derivatives of both results in query, key, value and the cotangents themselves.
TEST(NeighborhoodAttention, X04_SecondDerivativesEqualDenseMaskedAttentions) {
  for (const Case& c : neighborhood_cases()) {
    if (c10::multiply_integers(c.dims) > 100) continue;
    for (const auto& [type, tolerance] :
         std::vector<std::pair<at::ScalarType, double>>{{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
      const auto twice = [&, dtype = type](at::ScalarType of, const auto& attend) {
        Tensors t = inputs_of(c, dtype);
        for (at::Tensor& x : t) x = x.to(of).requires_grad_();
        const auto [output, logsumexp] = attend(t[0], t[1], t[2]);
        t.push_back(make_tensor(output.sizes(), 7).to(of).requires_grad_());
        t.push_back(make_tensor(logsumexp.sizes(), 8).to(of).requires_grad_());
        const auto first =
            torch::autograd::grad({output, logsumexp}, {t[0], t[1], t[2]}, {t[3], t[4]}, std::nullopt, true);
        return torch::autograd::grad(first, t,
                                     {make_tensor(t[0].sizes(), 17).to(of), make_tensor(t[1].sizes(), 18).to(of),
                                      make_tensor(t[2].sizes(), 19).to(of)});
      };
      const auto actual = twice(type, [&](const auto& q, const auto& k, const auto& v) {
        return neighborhood_attention(q, k, v, c.n, c.scale);
      });
      const auto expected = twice(at::kDouble, [&](const auto& q, const auto& k, const auto& v) {
        return dense_neighborhood_attention(q, k, v, c.n, c.scale);
      });
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(difference(actual[i].to(at::kDouble), expected[i], tolerance), "")
            << c.name << " " << type << " " << i;
    }
  }
}

// Without values there is still logsumexp.
TEST(NeighborhoodAttention, X04_SecondDerivativeWithoutValueFeatures) {
  const Case c{"", {5, 6}, {{3}}, 4, 0};
  const auto twice = [&](const auto& attend) {
    Tensors t = inputs_of(c, at::kDouble);
    for (at::Tensor& x : t) x.requires_grad_();
    const at::Tensor sums = std::get<1>(attend(t[0], t[1], t[2], c.n, c.scale));
    const at::Tensor first = torch::autograd::grad({sums.square().sum()}, {t[0]}, {}, std::nullopt, true)[0];
    return torch::autograd::grad({first.square().sum()}, {t[0], t[1]});
  };
  const auto actual = twice(neighborhood_attention), expected = twice(dense_neighborhood_attention);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(expected[i].any().item<bool>());
    EXPECT_EQ(difference(actual[i], expected[i], 1e-10), "") << i;
  }
}

TEST(NeighborhoodAttention, X04_RefusesWhatDoesNotFit) {
  const at::Tensor x = make_tensor({2, 7, 12, 4, 8}, 1, at::kFloat);
  const auto message = [&](const Neighborhood& n) { return message_of([&] { neighborhood_attention(x, x, x, n); }); };
  EXPECT_THAT(message({{9}}),
              StartsWith("neighborhood_attention: window 9 along dim 1 is larger than the domain of 7"));
  EXPECT_THAT(message({{9}}), HasSubstr("\n  have  query [2, 7, 12, 4, 8]"));
  EXPECT_THAT(message({{9}}), HasSubstr("\n  fix   use a window of at most 7 there"));
  EXPECT_THAT(message({{3, 5}, {1}, {1, 3}}),
              StartsWith("neighborhood_attention: window 5 of dilation 3 along dim 2 needs 15 rows "
                         "of the domain's 12"));
  EXPECT_THAT(message({{4}, {1}, {int64_t{1} << 62}}),  // the product is 0 in 64 bits
              StartsWith("neighborhood_attention: window 4 of dilation 4611686018427387904 along"));
  EXPECT_THAT(message({{3}, {1, 4}}),
              StartsWith("neighborhood_attention: stride 4 along dim 2 is larger than the window of 3"));
  EXPECT_THAT(message({{3, 3, 3}}), StartsWith("neighborhood_attention: window has 3 numbers for 2 dims"));
  EXPECT_THAT(message({{}}), StartsWith("neighborhood_attention: no window given"));
  EXPECT_THAT(message({{0}}), StartsWith("neighborhood_attention: window 0, stride 1, dilation 1 along dim 1"));
  const auto with = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return message_of([&] { neighborhood_attention(q, k, v, {{3}}); });
  };
  EXPECT_THAT(with(x[0][0], x[0][0], x[0][0]), StartsWith("neighborhood_attention: a query of 3 dims"));
  EXPECT_THAT(with(x, x.narrow(1, 0, 6), x), StartsWith("neighborhood_attention: query and key differ in shape"));
  EXPECT_THAT(with(x, x, x.narrow(3, 0, 2)),
              StartsWith("neighborhood_attention: value differs in more than its last dim"));
  EXPECT_THAT(with(x, x, x.to(at::kDouble)),
              StartsWith("neighborhood_attention: query is Float, key Float, value Double"));
  EXPECT_THAT(with(x, x.to(at::kMeta), x), StartsWith("neighborhood_attention: query is on cpu, key on meta"));
  EXPECT_THAT(with(x.to(at::kHalf), x.to(at::kHalf), x.to(at::kHalf)),
              StartsWith("neighborhood_attention: no kernel for Half"));
}

}  // namespace
}  // namespace moonhalo::testing::test_operator
