// SPDX-License-Identifier: Apache-2.0
// torch::nn's functions and modules over windows, as a user's own code calls them, on cuts against the whole tensor;
// and calls that every rank refuses in the same way.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/conv.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/functional/padding.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "moonhalo/ops/neighborhood/operator.h"
#include "tests/support/named_cases.h"

namespace moonhalo::testing::test_functional_windows {
namespace {

namespace F = torch::nn::functional;

// Blocks of [2, 4, 11, 6].
const Placed kCuts[] = {
    {{2}, {shard(2, {5, 6})}},
    {{3}, {shard(2, {1, 9, 1})}},
    {{3}, {shard(2, {4, 0, 7})}},
    {{4}, {shard(3, {1, 1, 3, 1})}},
    {{2}, {shard(1, {1, 3})}},
    {{2, 2}, {shard(2, {5, 6}), shard(3, {1, 5})}},
    {{2, 2}, {shard(0), shard(2, {8, 3})}},
    {{2, 2}, {replicate(), shard(3)}},
};

struct Named {
  const char* name;
  Program program;
};

void check(const std::vector<Named>& programs, const std::vector<Input>& more = {}) {
  for (const Placed& cut : kCuts) {
    std::vector<NamedCase> cases;
    for (const Named& named : programs) {
      std::vector<Input> inputs = {{.full = make_tensor({2, 4, 11, 6}, 1) * 2, .placements = cut.placements}};
      inputs.insert(inputs.end(), more.begin(), more.end());
      cases.push_back({std::string(named.name) + " " + cut.placements.back().to_string(), inputs, named.program});
    }
    expect_each_same_as_plain(cut.mesh, cases);
  }
}

// A user's module with its own weight, that names nothing of Moonhalo.
struct Smoother : torch::nn::Module {
  Smoother(at::Tensor own_weight, at::Tensor own_bias) : weight(std::move(own_weight)), bias(std::move(own_bias)) {}

  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor round = F::pad(x, F::PadFuncOptions({0, 0, 2, 2}).mode(torch::kCircular)),
                     mirrored = F::pad(round, F::PadFuncOptions({1, 1, 0, 0}).mode(torch::kReflect));
    const at::Tensor y =
        F::conv2d(mirrored, weight.softmax(0).contiguous(), F::Conv2dFuncOptions().bias(bias).dilation({2, 1}));
    const at::Tensor half = F::conv2d(y.tanh(), weight, F::Conv2dFuncOptions().stride(2).padding(torch::kValid));
    return F::conv_transpose2d(half, weight, F::ConvTranspose2dFuncOptions().stride(2));
  }

  at::Tensor weight, bias;
};

TEST(FunctionalWindows, S07_AModuleOfTheUsersWithItsOwnWeight) {
  check({{"module", [](const Tensors& t) { return Tensors{Smoother(t[1], t[2]).forward(t[0])}; }}},
        {{.full = make_tensor({4, 4, 3, 3}, 2), .plain = true}, {.full = make_tensor({4}, 3), .plain = true}});
}

TEST(FunctionalWindows, X03_PowerMeansResponsesAndResampling) {
  std::vector<Named> programs = {
      {"lp_pool2d",
       [](const Tensors& t) {
         return Tensors{F::lp_pool2d(t[0], F::LPPool2dFuncOptions(2, {3, 2})),
                        F::lp_pool2d(t[0], F::LPPool2dFuncOptions(3, {4, 1}).stride({2, 1}).ceil_mode(true))};
       }},
      {"lp_pool1d",
       [](const Tensors& t) {
         return Tensors{F::lp_pool1d(t[0].select(3, 0), F::LPPool1dFuncOptions(2, 3).stride(2)),
                        F::lp_pool1d(t[0].select(2, 0), F::LPPool1dFuncOptions(2, 2))};
       }},
      {"local_response_norm",
       [](const Tensors& t) {
         return Tensors{F::local_response_norm(t[0], F::LocalResponseNormFuncOptions(3).alpha(0.1)),
                        F::local_response_norm(t[0], F::LocalResponseNormFuncOptions(2).beta(0.5).k(2))};
       }},
      {"area",
       [](const Tensors& t) {
         return Tensors{
             F::interpolate(t[0], F::InterpolateFuncOptions().size(std::vector<int64_t>{4, 9}).mode(torch::kArea))};
       }},
  };
  for (const double factor : {0.3, 0.5, 1.0, 1.4, 2.0, 3.7}) {
    for (const bool again : {false, true}) {
      programs.push_back({"interpolate by a factor", [=](const Tensors& t) {
                            const auto by = [&](auto mode, std::optional<bool> align, bool antialias) {
                              F::InterpolateFuncOptions options;
                              options.scale_factor(std::vector<double>{factor, 1.5}).mode(mode).antialias(antialias);
                              options.recompute_scale_factor(again);
                              if (align) options.align_corners(*align);
                              return F::interpolate(t[0], options);
                            };
                            return Tensors{by(torch::kNearest, {}, false),
                                           at::_upsample_nearest_exact2d(t[0], {}, at::ArrayRef<double>{factor, 1.5}),
                                           by(torch::kBilinear, false, false),
                                           by(torch::kBilinear, true, false),
                                           by(torch::kBicubic, false, false),
                                           by(torch::kBicubic, true, false),
                                           by(torch::kBilinear, false, true),
                                           by(torch::kBicubic, true, true)};
                          }});
    }
  }
  check(programs);
}

struct Refusal {
  const char* name;
  std::function<void(const at::Tensor& x)> call;
  const char* message;
};

// `message`: a part of what is said of x, of shape [2, 4, 11, 6].
const Refusal kRefusals[] = {
    {"window over the domain",
     [](const at::Tensor& x) {
       at::conv2d(x, at::ones({1, 4, 12, 1}, at::kDouble));
     },
     "convolution: a window of 12 rows along dim 2"},
    {"channels",
     [](const at::Tensor& x) {
       at::conv2d(x, at::ones({1, 3, 3, 3}, at::kDouble));
     },
     "convolution: the input has 4 channels, the weight takes 3"},
    {"output padding",
     [](const at::Tensor& x) {
       at::conv_transpose2d(x, at::ones({4, 1, 3, 3}, at::kDouble), {}, 2, 1, 2);
     },
     "convolution: output padding 2 along dim 2 is not below the stride of 2"},
    {"pooling",
     [](const at::Tensor& x) {
       at::max_pool2d(x, {12, 1});
     },
     "a window of 12 rows along dim 2"},
    {"means", [](const at::Tensor& x) { at::avg_pool2d(x, 3, 1, 2); },
     "padding 2 is more than half of the window of 3 rows"},
    {"unfold",
     [](const at::Tensor& x) {
       at::im2col(x, {12, 1}, {1, 1}, {0, 0}, {1, 1});
     },
     "a window of 12 rows is larger than the padded input of 11"},
    {"reflection",
     [](const at::Tensor& x) {
       at::pad(x, {0, 0, 11, 0}, "reflect");
     },
     "pad"},
    {"circle",
     [](const at::Tensor& x) {
       at::pad(x, {0, 0, 12, 0}, "circular");
     },
     ""},
    {"neighbourhood", [](const at::Tensor& x) { neighborhood_attention(x, x, x, {{7}}); },
     "neighborhood_attention: window 7 along dim 1 is larger than the domain of 4"},
    {"resampling",
     [](const at::Tensor& x) {
       at::upsample_bilinear2d(x, {0, 3}, false);
     },
     ""},
    {"shuffling", [](const at::Tensor& x) { at::pixel_unshuffle(x, 2); }, ""},
};

// No rank waits for one that refused: all do, with the same words, and the next call works.
TEST(FunctionalWindows, S05_EveryRankRefusesAlike) {
  for (const Placed& cut : kCuts) {
    std::mutex mutex;
    std::map<std::string, std::set<std::string>> said;
    on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
      const at::Tensor x = shard_of(make_tensor({2, 4, 11, 6}, 1), mesh, cut.placements);
      for (const Refusal& refusal : kRefusals) {
        const std::string message = message_of([&] { refusal.call(x); });
        EXPECT_THAT(message, ::testing::HasSubstr(refusal.message)) << refusal.name;
        EXPECT_NE(message, "") << refusal.name;
        const std::lock_guard lock(mutex);
        said[refusal.name].insert(message);
      }
      EXPECT_EQ(at::conv2d(x, at::ones({1, 4, 3, 3}, at::kDouble), {}, 1, 1).size(2), 11);
    });
    for (const auto& [name, messages] : said) EXPECT_EQ(messages.size(), 1U) << name;
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_functional_windows
