// SPDX-License-Identifier: Apache-2.0
// Fake tensors against real ones: every operator of ATen gives results of the same sizes, strides and dtype.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/shape_rules.h"
#include "tests/aten/exceptions.h"
#include "tests/aten/samples.h"

namespace moonhalo::testing::fake_results {
namespace {

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  if (!tensor.defined()) return "undefined";
  text << tensor.scalar_type() << tensor.sizes() << " strides " << tensor.strides() << " on " << tensor.device();
  return text.str();
}

// "", or how the results of fake tensors differ.
std::string difference_of(const List& real, const List& fake) {
  if (real.size() != fake.size()) return "other number of results";
  for (size_t i = 0; i < real.size(); ++i) {
    if (described(real[i]) != described(fake[i]))
      return "result " + std::to_string(i) + ": " + described(fake[i]) + ", real " + described(real[i]);
  }
  return "";
}

struct Tally {
  int same = 0;
  std::map<std::string, std::string> different, refused;

  int all() const { return same + static_cast<int>(different.size() + refused.size()); }
};

void call_plain(const c10::OperatorHandle& op, torch::jit::Stack& stack) { op.callBoxed(stack); }

// The results, then the gradients of those inputs that can have one.
List results_of(const Sample& sample, List inputs, bool gradients) {
  if (!gradients) {
    const at::NoGradGuard no_grad;
    return call_by(sample, inputs, call_plain);
  }
  List leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = inputs[i].detach().requires_grad_(sample.expected[i]);
    if (sample.expected[i]) leaves.push_back(inputs[i]);
  }
  List roots, cotangents;
  for (const at::Tensor& result : call_by(sample, inputs, call_plain)) {
    if (!result.defined() || !result.requires_grad()) continue;
    roots.push_back(result);
    cotangents.push_back(at::ones_like(result));
  }
  return torch::autograd::grad(roots, leaves, cotangents, std::nullopt, false, /*allow_unused=*/true);
}

// Numbers are fake. Indices and masks are not, because the shapes of results depend on some of them.
void compare(const Sample& sample, bool gradients, Tally& tally) {
  const std::string name = sample.op.name + "(" + sample.text + ")";
  List fakes;
  for (const at::Tensor& tensor : sample.tensors)
    fakes.push_back(tensor.is_floating_point() || tensor.is_complex() ? fake_like(tensor) : tensor);
  const List real = results_of(sample, sample.tensors, gradients);
  List fake;
  try {
    fake = results_of(sample, fakes, gradients);
  } catch (const std::exception& error) {
    tally.refused[name] = error.what();
    return;
  }
  const std::string difference = difference_of(real, fake);
  difference.empty() ? void(++tally.same) : void(tally.different[name] = difference);
}

void print(const char* title, const Tally& tally) {
  std::printf("%s: %d calls, %d same, %zu different, %zu refused\n", title, tally.all(), tally.same,
              tally.different.size(), tally.refused.size());
  for (const auto& [name, text] : tally.different) std::printf("  different %s: %s\n", name.c_str(), text.c_str());
  for (const auto& [name, text] : tally.refused)
    std::printf("  refused %s: %.200s\n", name.c_str(), text.substr(0, text.find('\n')).c_str());
}

TEST(FakeResults, X14_OperatorsGiveTheShapesOfRealTensors) {
  Tally forward, backward;
  for (const Operator& op : callable_operators()) {
    if (find_exception(untried(), op) != nullptr) continue;
    for (const Sample& sample : samples_of(op, 2)) {
      compare(sample, false, forward);
      if (sample.derivatives > 0) compare(sample, true, backward);
    }
  }
  print("results", forward);
  print("gradients", backward);
  EXPECT_GT(forward.all(), 3000);
  EXPECT_GE(forward.same, forward.all() * 0.99);
  EXPECT_TRUE(forward.different.empty());
  EXPECT_GT(backward.all(), 1000);
  EXPECT_GE(backward.same, backward.all() * 0.99);
  EXPECT_TRUE(backward.different.empty());
}

// Operators that users do not call, but that training steps come to.
constexpr std::pair<const char*, const char*> kInner[] = {
    {"convolution", "f[2,3,7,8], f[4,3,3,3], f[4], [2,1], [1,0], [1,2], false, [0,0], 1"},
    {"convolution", "f[2,4,7,8], f[4,2,3,3], -, [2,1], [1,0], [1,1], true, [1,0], 2"},
    {"convolution", "d[2,3,7], d[4,3,3], d[4], [1], [1], [1], false, [0], 1"},
    {"convolution_backward",
     "f[2,4,4,6], f[2,3,7,8], f[4,3,3,3], [4], [2,1], [1,0], [1,1], false, [0,0], 1, [true,true,true]"},
    {"convolution_backward",
     "f[2,4,4,6], f[2,3,7,8], f[4,3,3,3], [4], [2,1], [1,0], [1,1], false, [0,0], 1, [false,true,false]"},
    {"native_group_norm", "f[2,6,5], f[6], f[6], 2, 6, 5, 3, 0.001"},
    {"native_group_norm_backward", "f[2,6,5], f[2,6,5], f[2,3], f[2,3], f[6], 2, 6, 5, 3, [true,true,false]"},
    {"native_layer_norm", "f[2,5,6], [5,6], f[5,6], f[5,6], 0.001"},
    {"native_layer_norm_backward", "f[2,5,6], f[2,5,6], [5,6], f[2,1,1], f[2,1,1], f[5,6], f[5,6], [true,false,true]"},
    {"native_batch_norm_backward", "d[2,6,5], d[2,6,5], d[6], d[6], p[6], d[6], p[6], true, 0.001, [true,true,true]"},
    {"_scaled_dot_product_flash_attention_for_cpu", "f[2,3,5,4], f[2,3,7,4], f[2,3,7,4]"},
    {"_scaled_dot_product_flash_attention_for_cpu_backward",
     "f[2,3,5,4], f[2,3,5,4], f[2,3,7,4], f[2,3,7,4], f[2,3,5,4], f[2,3,5], 0.0, false"},
    {"_embedding_bag", "f[6,3], l[9]<6, l{0,4,7}"},
    {"_embedding_bag", "f[6,3], l[9]<6, l{0,4,7}, false, 0, false, f[9], false, 1"},
    {"_embedding_bag", "d[6,3], l[9]<6, l{0,4,7,9}, false, 0, false, d[9], true"},
    {"_embedding_bag", "f[6,3], l[9]<6, l{0,4,7,9}, false, 2, false, -, true"},
    {"_embedding_bag_forward_only", "f[6,3], l[9]<6, l{0,4,7,9}, false, 0, false, -, true"},
    {"_embedding_bag_forward_only", "d[6,3], l[9]<6, l{0,4,7,9}, false, 1, false, -, true"},
    {"_embedding_bag_per_sample_weights_backward", "d[3,3], d[6,3], l[9]<6, l{0,4,7}, l{0,0,0,0,1,1,1,2,2}, 0"},
    {"_fft_c2c", "c[4,5,6], [0,2], 0, true"},
    {"_fft_r2c", "d[4,5,6], [0,1], 0, true"},
    {"_fft_c2r", "c[4,5,6], [0,1], 0, 8"},
    {"grid_sampler_2d_backward", "f[2,3,4,5], f[2,3,6,7], f[2,4,5,2], 0, 0, false, [true,true]"},
};

Tally compare_inner() {
  Tally tally;
  for (const auto& [name, text] : kInner) {
    std::string problem;
    const auto sample = make_sample(find_operator(std::string("aten::") + name), text, &problem);
    EXPECT_TRUE(sample) << name << "(" << text << "): " << problem;
    if (sample) compare(*sample, false, tally);
  }
  return tally;
}

TEST(FakeResults, X14_OperatorsOfTrainingStepsGiveTheShapesOfRealTensors) {
  const Tally tally = compare_inner();
  print("inner", tally);
  EXPECT_EQ(tally.same, static_cast<int>(std::size(kInner)));
}

TEST(FakeResults, X14_MistakesInShapeRulesAreSeen) {
  const std::pair<const char*, ShapeRule> mistakes[] = {
      {"aten::convolution",
       [](ShapeCall& call) {
         call.give({2, call.tensor(1).size(0), 4, 4}, call.tensor(0).scalar_type());
       }},
      {"aten::native_layer_norm",
       [](ShapeCall& call) {
         call.give_like(call.tensor(0));
         for (int i = 0; i < 2; ++i) call.give({2, 5, 1}, call.tensor(0).scalar_type());
       }},
      {"aten::_fft_r2c", [](ShapeCall& call) { call.give_like(call.tensor(0)); }},
  };
  for (const auto& [name, rule] : mistakes) {
    const ReplacedShapeRule planted(name, rule);
    EXPECT_FALSE(compare_inner().different.empty()) << name;
  }
}

}  // namespace
}  // namespace moonhalo::testing::fake_results
