// SPDX-License-Identifier: Apache-2.0
// The ground of the fuzzer: which operators there are, samples as text, samples made from schemas, and trials of a few
// operators of every kind (row X09). `./dev fuzz --once` tries all operators.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "moonhalo/ops/support/interceptions.h"
#include "tests/aten/exceptions.h"
#include "tests/aten/notation.h"
#include "tests/aten/trial.h"

namespace moonhalo::testing {
namespace {

TEST(AtenOperators, X09_TheRuleTellsWhatUsersCall) {
  EXPECT_GT(callable_operators().size(), 1500u);
  for (const char* name : {"aten::add.Tensor", "aten::sum.dim_IntList", "aten::add_.Tensor", "aten::max.dim_max",
                           "aten::_unique2", "aten::linalg_svd", "aten::equal"})
    EXPECT_EQ(find_operator(name).outside, "") << name;
  const std::pair<const char*, const char*> outside[] = {
      {"aten::zeros", "takes no tensor"},     {"aten::convolution_backward", "derivative"},
      {"aten::_unsafe_view", "underscore"},   {"aten::quantize_per_tensor", "quantised"},
      {"aten::sum.dim_DimnameList", "named"}, {"aten::is_complex", "fact"},
      {"aten::sparse_dim", "sparse"},
  };
  for (const auto& [name, why] : outside) EXPECT_NE(find_operator(name).outside.find(why), std::string::npos) << name;
  EXPECT_TRUE(find_operator("aten::add_.Tensor").in_place);
  EXPECT_TRUE(find_operator("aten::add.out").out);
  EXPECT_NE(message_of([] { find_operator("aten::summ"); }).find("no such operator: aten::summ"), std::string::npos);
}

// The sweep (CTest aten.sweep_*) fails for what these lists do not name, so their lengths bound what it shows.
TEST(AtenOperators, X09_FewAreUntriedOrNeverOnBlocks) {
  const std::vector<Operator> callable = callable_operators();
  const auto listed = [&](const std::vector<Exception>& list) {
    for (const Exception& e : list) {
      EXPECT_FALSE(e.why.empty()) << e.name;
      EXPECT_TRUE(std::any_of(callable.begin(), callable.end(), [&](const Operator& op) {
        return e.name == op.base || e.name == op.name;
      })) << e.name;
    }
    return static_cast<size_t>(std::count_if(callable.begin(), callable.end(),
                                             [&](const Operator& op) { return find_exception(list, op) != nullptr; }));
  };
  const size_t not_tried = listed(untried()), never = listed(never_on_blocks());
  std::printf("%zu operators: %zu tried, %zu of them never on blocks\n", callable.size(), callable.size() - not_tried,
              never);
  EXPECT_LE(100 * not_tried, 5 * callable.size());
  EXPECT_LE(100 * never, 10 * (callable.size() - not_tried));
}

TEST(AtenNotation, TextBecomesArgumentsOfTheSchema) {
  const auto& schema = find_operator("aten::sum.dim_IntList").handle.schema();

  const auto values = read_arguments(schema, "d[5,4,3], [0,-1], dtype=float");

  ASSERT_TRUE(values);
  EXPECT_EQ(values->at(0).toTensor().sizes(), at::IntArrayRef({5, 4, 3}));
  EXPECT_EQ(values->at(1).toIntVector(), (std::vector<int64_t>{0, -1}));
  EXPECT_FALSE(values->at(2).toBool());
  EXPECT_EQ(values->at(3).toInt(), static_cast<int64_t>(at::kFloat));
  const auto list = read_arguments(find_operator("aten::index.Tensor").handle.schema(), "d[5,4], {-, l[3]<4}");
  ASSERT_TRUE(list);
  EXPECT_FALSE(list->at(1).toOptionalTensorVector()[0]);
  EXPECT_TRUE(list->at(1).toOptionalTensorVector()[1]->lt(4).all().item<bool>());
  for (const char* text : {"", "d[5,4", "q[5]", "d[5], [0], maybe, double, 3", "d[5], dims=[0]"})
    EXPECT_FALSE(read_arguments(schema, text)) << text;
}

TEST(AtenSamples, SchemasWithoutATableGetSamples) {
  for (const char* name : {"aten::sin", "aten::mul.Tensor", "aten::logical_and_", "aten::amax.out"}) {
    const auto samples = samples_of(find_operator(name), 3);
    EXPECT_GE(samples.size(), 1u) << name;
  }
  EXPECT_EQ(samples_of(find_operator("aten::sin"), 1).at(0).derivatives, 2);
  EXPECT_TRUE(make_sample(find_operator("aten::bernoulli"), "p[5,4]")->random);
  EXPECT_FALSE(make_sample(find_operator("aten::mm"), "d[5,4], d[5,4]"));
}

TEST(AtenTrials, X09_OperatorsOfEveryKindGiveWhatOneDeviceGives) {
  for (const char* name : {"aten::sum.dim_IntList", "aten::std.correction", "aten::cumsum", "aten::softmax.int",
                           "aten::mul.Tensor", "aten::add_.Tensor", "aten::sub.out", "aten::mse_loss", "aten::cat"}) {
    for (const Sample& sample : samples_of(find_operator(name), 2)) {
      for (const Trial& trial : trials_of(sample, 5, "")) {
        const Verdict verdict = run_trial(trial);
        EXPECT_EQ(verdict.wrong, "") << trial.to_string();
      }
    }
  }
}

// Operators that are not in the tables of samples, since users do not call them.
std::vector<Sample> plain_samples(const std::string& name) {
  const std::pair<std::string, const char*> inner[] = {
      {"aten::conv_tbc_backward", "d[7,2,4], d[7,2,3], d[3,3,4], d[4], 1"},
      {"aten::value_selecting_reduction_backward", "d[5], 1, l[5]<4, [5,4], false"},
  };
  for (const auto& [op, text] : inner) {
    if (op == name) return {make_sample(find_operator(name), text).value()};
  }
  return samples_of(find_operator(name), 4);
}

// The results, then the gradients, of a call of plain tensors: by the dispatcher, or straight to LibTorch's own kernel,
// which stands on the key of the CPU.
List plain_run(const Sample& sample, bool past_ours) {
  List leaves = sample.tensors;
  for (size_t i = 0; i < leaves.size(); ++i)
    leaves[i] = leaves[i].detach().clone().requires_grad_(sample.derivatives > 0 && sample.expected[i]);
  List all = call_by(sample, leaves, [&](const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    if (past_ours) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    op.callBoxed(stack);
  });
  for (const at::Tensor& result : List(all)) {
    if (result.defined() && result.requires_grad()) at::abs(result).sum().backward({}, /*retain_graph=*/true);
  }
  for (const at::Tensor& leaf : leaves) {
    if (leaf.grad().defined()) all.push_back(leaf.grad());
  }
  return all;
}

// S08: operators that are intercepted above autograd (ops/support/interceptions.cpp) give plain tensors LibTorch's
// bits, gradients too.
TEST(AtenPlain, S08_InterceptedOperatorsGiveTheSameBits) {
  int operators = 0, gradients = 0;
  for (const Interception& row : interceptions()) {
    if (row.keys.find("AutogradCPU") == std::string_view::npos) continue;
    std::istringstream names{std::string(row.operators)};
    for (std::string name; names >> name; ++operators) {
      const auto samples = plain_samples("aten::" + name);
      EXPECT_FALSE(samples.empty()) << name;
      for (const Sample& sample : samples) {
        SCOPED_TRACE(name + "(" + sample.text + ")");
        const List ours = plain_run(sample, false), theirs = plain_run(sample, true);
        ASSERT_EQ(ours.size(), theirs.size());
        gradients += ours.size() > 1;
        for (size_t i = 0; i < ours.size(); ++i) {
          EXPECT_TRUE(ours[i].defined() == theirs[i].defined() && (!ours[i].defined() || at::equal(ours[i], theirs[i])))
              << i;
        }
      }
    }
  }
  EXPECT_GE(operators, 19);
  EXPECT_GE(gradients, 15);
}

// The whole point: what is wrong is seen, made small and printed.
TEST(AtenTrials, AFailureIsShrunkAndPrinted) {
  const auto sample = make_sample(find_operator("aten::mul.Tensor"), "d[5,4], d[4]");
  ASSERT_TRUE(sample);
  Trial trial = trials_of(*sample, 1, "").at(0);
  trial.sample.tolerance = -1;  // no value is near enough

  const Verdict verdict = run_trial_apart(trial);
  const Trial small = shrunk(trial);

  EXPECT_EQ(verdict.kind(), Verdict::Kind::kWrong);
  EXPECT_EQ(small.derivatives, 0);
  EXPECT_EQ(small.way.mesh, std::vector<int64_t>{2});
  EXPECT_NE(small.to_test().find("expect_operator_same_as_plain(\"aten::mul.Tensor\""), std::string::npos);
}

TEST(AtenTrials, APrintedTestRuns) {
  expect_operator_same_as_plain("aten::mul.Tensor", "d[5,4], d[4]", {2}, {{shard(0, {2, 3})}, {}}, 2);
}

}  // namespace
}  // namespace moonhalo::testing
