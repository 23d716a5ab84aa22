// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "tests/aten/notation.h"
#include "tests/support/apart.h"

namespace moonhalo::testing {
namespace {

constexpr char kField = '\x1f';

std::string packed(const Verdict& verdict) {
  std::string text = verdict.wrong + kField + verdict.refusal + kField;
  for (const auto& [name, times] : verdict.gathered) text += name + "\n";
  return text + kField;
}

Verdict unpacked(const std::string& text) {
  Verdict verdict;
  std::istringstream fields(text);
  std::string gathered;
  std::getline(fields, verdict.wrong, kField);
  std::getline(fields, verdict.refusal, kField);
  std::getline(fields, gathered, kField);
  std::istringstream names(gathered);
  for (std::string name; std::getline(names, name);) ++verdict.gathered[name];
  return verdict;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string Trial::to_string() const { return sample.op.name + "(" + sample.text + ") on " + way.to_string(); }

std::string Trial::to_test() const {
  std::ostringstream code;
  const auto sizes = [&](const std::vector<int64_t>& values) {
    code << "{";
    for (size_t i = 0; i < values.size(); ++i) code << (i > 0 ? ", " : "") << values[i];
    code << "}";
  };
  std::string arguments;
  for (const char c : sample.text) arguments += c == '"' ? "\\\"" : std::string(1, c);
  code << "  expect_operator_same_as_plain(\"" << sample.op.name << "\", \"" << arguments << "\", ";
  sizes(way.mesh);
  code << ", {";
  for (size_t i = 0; i < way.inputs.size(); ++i) {
    code << (i > 0 ? ", " : "") << "{";
    const Input& input = way.inputs[i];
    for (size_t m = 0; m < input.placements.size() && !input.plain; ++m) {
      const Placement& p = input.placements[m];
      code << (m > 0 ? ", " : "");
      if (p.is_shard()) {
        code << "shard(" << p.dim;
        if (!p.sizes.empty()) {
          code << ", ";
          sizes(p.sizes);
        }
        code << ")";
      } else if (p.is_partial()) {
        static constexpr const char* kOps[] = {"kSum", "kAvg", "kMax", "kMin", "kProduct"};
        code << "partial(ReduceOp::" << kOps[static_cast<int>(p.op)] << ")";
      } else {
        code << "replicate()";
      }
    }
    code << "}";
  }
  code << "}, " << derivatives << ");";
  return code.str();
}

Verdict run_trial(const Trial& trial) {
  Way way = trial.way;
  for (size_t i = 0; i < way.inputs.size(); ++i) way.inputs[i].grad = trial.derivatives > 0 && trial.sample.expected[i];
  return judge(way, [&](const List& tensors) { return call(trial.sample, tensors); },
               {.tolerance = trial.sample.tolerance,
                .backward = trial.derivatives >= 1,
                .double_backward = trial.derivatives >= 2});
}

void run_trials_apart(const std::vector<Trial>& trials, const std::function<void(const Trial&, const Verdict&)>& done) {
  run_apart(
      trials.size(), [&](size_t i) { return packed(run_trial(trials[i])); },
      [&](size_t i, const std::string& text, const std::string& ended) {
        done(trials[i], ended.empty() ? unpacked(text) : Verdict{.wrong = ended});
      });
}

Verdict run_trial_apart(const Trial& trial) {
  Verdict verdict;
  run_trials_apart({trial}, [&](const Trial&, const Verdict& given) { verdict = given; });
  return verdict;
}

std::vector<Trial> trials_of(const Sample& sample, size_t ways, const std::string& seed, bool every_dim) {
  Draw draw(sample.op.name + sample.text + seed);
  std::vector<Way> all = draw_ways(draw, sample.tensors, sample.written);
  size_t kept = 0;  // draw_ways begins with a way for each dim of each tensor
  for (const at::Tensor& t : sample.tensors) kept += every_dim ? static_cast<size_t>(t.dim()) : 0;
  while (all.size() > std::max(ways, kept))
    all.erase(all.begin() + static_cast<int64_t>(kept) + draw.below(static_cast<int64_t>(all.size() - kept)));
  std::vector<Trial> trials;
  for (Way& way : all) trials.push_back({sample, std::move(way), sample.derivatives});
  return trials;
}

std::set<TensorDim> dims_cut(const Trial& trial) {
  std::set<TensorDim> cut;
  for (size_t i = 0; i < trial.way.inputs.size(); ++i) {
    const Input& input = trial.way.inputs[i];
    for (const Placement& p : input.placements) {
      if (p.is_shard() && !input.plain) cut.insert({i, p.dim});
    }
  }
  return cut;
}

Trial trial_of_dim(const Sample& sample, TensorDim where) {
  Trial trial{sample, {.mesh = {2}, .inputs = {}}, sample.derivatives};
  for (size_t i = 0; i < sample.tensors.size(); ++i) {
    const at::Tensor& full = sample.tensors[i];
    const int64_t rows = i == where.tensor ? full.size(where.dim) : 0, upper = (rows + 2) / 3;
    trial.way.inputs.push_back(
        {.full = full, .placements = {i == where.tensor ? shard(where.dim, {rows - upper, upper}) : replicate()}});
  }
  return trial;
}

void Tally::add(const Verdict& verdict) {
  ++ways;
  switch (verdict.kind()) {
    case Verdict::Kind::kRight:
      ++right;
      break;
    case Verdict::Kind::kGathered:
      ++gathered;
      break;
    case Verdict::Kind::kRefused:
      ++refused;
      refusal = first_line(verdict.refusal);
      break;
    case Verdict::Kind::kWrong:
      ++wrong;
      break;
  }
  for (const auto& [name, times] : verdict.gathered) ++gathers[name];
}

std::string Tally::to_string(const std::string& name) const {
  char line[200];
  std::snprintf(line, sizeof line, "%-44s %d samples %3d on blocks %3d gathered %3d refused %3d wrong ", name.c_str(),
                samples, right, gathered, refused, wrong);
  std::string text = line;
  for (const auto& [gathered_name, times] : gathers) text += " " + gathered_name;
  return text + (refusal.empty() ? "" : "  " + refusal);
}

void expect_operator_same_as_plain(const std::string& name, const std::string& arguments, std::vector<int64_t> mesh,
                                   const std::vector<std::vector<Placement>>& placements, int derivatives) {
  std::string problem;
  const auto sample = make_sample(find_operator(name), arguments, &problem);
  ASSERT_TRUE(sample) << name << "(" << arguments << "): " << problem;
  ASSERT_EQ(sample->tensors.size(), placements.size());
  Trial trial{*sample, {std::move(mesh), {}}, std::min(derivatives, sample->derivatives)};
  for (size_t i = 0; i < placements.size(); ++i)
    trial.way.inputs.push_back(
        {.full = sample->tensors[i], .placements = placements[i], .plain = placements[i].empty()});
  EXPECT_EQ(run_trial(trial).wrong, "") << trial.to_string();
}

}  // namespace moonhalo::testing
