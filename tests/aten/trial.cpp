// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/trial.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <sstream>

#include "tests/aten/notation.h"

namespace moonhalo::testing {
namespace {

constexpr char kField = '\x1f', kRecord = '\x1e';
constexpr int kPatienceMs = 60000;

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

std::string Trial::to_string() const {
  return sample.op.name + "(" + sample.text + ") on " + way.to_string();
}

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
  for (size_t i = 0; i < way.inputs.size(); ++i)
    way.inputs[i].grad = trial.derivatives > 0 && trial.sample.wanted[i];
  return judge(way, [&](const List& tensors) { return call(trial.sample, tensors); },
               {.tolerance = trial.sample.tolerance,
                .backward = trial.derivatives >= 1,
                .double_backward = trial.derivatives >= 2});
}

namespace {

void write_all(int file, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t now = write(file, text.data() + sent, text.size() - sent);
    if (now <= 0) _exit(1);
    sent += static_cast<size_t>(now);
  }
}

// Runs the trials from `first` on in a child until they are done or one of them ends the child. Gives the verdicts.
std::vector<Verdict> run_from(const std::vector<Trial>& trials, size_t first) {
  int ends[2];
  TORCH_INTERNAL_ASSERT(pipe(ends) == 0, "no pipe");
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    for (size_t i = first; i < trials.size(); ++i) write_all(ends[1], packed(run_trial(trials[i])) + kRecord);
    _exit(0);
  }
  close(ends[1]);
  std::vector<Verdict> verdicts;
  std::string text;
  char buffer[4096];
  bool hangs = false;
  while (true) {
    pollfd wait{.fd = ends[0], .events = POLLIN, .revents = 0};
    hangs = poll(&wait, 1, kPatienceMs) == 0;
    const ssize_t got = hangs ? 0 : read(ends[0], buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = text.find(kRecord)) != std::string::npos; text.erase(0, end + 1))
      verdicts.push_back(unpacked(text.substr(0, end)));
  }
  close(ends[0]);
  if (hangs) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  if (hangs) {
    verdicts.push_back({.wrong = "hangs for " + std::to_string(kPatienceMs / 1000) + " s"});
  } else if (first + verdicts.size() < trials.size()) {
    verdicts.push_back({.wrong = "ends the process" + (WIFSIGNALED(status)
                                     ? " with signal " + std::to_string(WTERMSIG(status))
                                     : std::string())});
  }
  return verdicts;
}

}  // namespace

void run_trials_apart(const std::vector<Trial>& trials,
                      const std::function<void(const Trial&, const Verdict&)>& done) {
  for (size_t next = 0; next < trials.size();) {
    for (const Verdict& verdict : run_from(trials, next)) done(trials[next++], verdict);
  }
}

Verdict run_trial_apart(const Trial& trial) { return run_from({trial}, 0).at(0); }

std::vector<Trial> trials_of(const Sample& sample, size_t ways, const std::string& seed) {
  Draw draw(sample.op.name + sample.text + seed);
  std::vector<Way> all = draw_ways(draw, sample.tensors, sample.written);
  while (all.size() > ways)
    all.erase(all.begin() + draw.below(static_cast<int64_t>(all.size())));
  std::vector<Trial> trials;
  for (Way& way : all) trials.push_back({sample, std::move(way), sample.derivatives});
  return trials;
}

void Tally::add(const Verdict& verdict) {
  ++ways;
  switch (verdict.kind()) {
    case Verdict::Kind::kRight: ++right; break;
    case Verdict::Kind::kGathered: ++gathered; break;
    case Verdict::Kind::kRefused:
      ++refused;
      refusal = first_line(verdict.refusal);
      break;
    case Verdict::Kind::kWrong: ++wrong; break;
  }
  for (const auto& [name, times] : verdict.gathered) ++gathers[name];
}

std::string Tally::to_string(const std::string& name) const {
  char line[200];
  std::snprintf(line, sizeof line, "%-44s %d samples %3d on blocks %3d gathered %3d refused %3d wrong ",
                name.c_str(), samples, right, gathered, refused, wrong);
  std::string text = line;
  for (const auto& [gathered_name, times] : gathers) text += " " + gathered_name;
  return text + (refusal.empty() ? "" : "  " + refusal);
}

void expect_operator_same_as_plain(const std::string& name, const std::string& arguments,
                                   std::vector<int64_t> mesh,
                                   const std::vector<std::vector<Placement>>& placements,
                                   int derivatives) {
  std::string problem;
  const auto sample = make_sample(find_operator(name), arguments, &problem);
  ASSERT_TRUE(sample) << name << "(" << arguments << "): " << problem;
  ASSERT_EQ(sample->tensors.size(), placements.size());
  Trial trial{*sample, {std::move(mesh), {}}, std::min(derivatives, sample->derivatives)};
  for (size_t i = 0; i < placements.size(); ++i)
    trial.way.inputs.push_back({.full = sample->tensors[i],
                                .placements = placements[i],
                                .plain = placements[i].empty()});
  EXPECT_EQ(run_trial(trial).wrong, "") << trial.to_string();
}

}  // namespace moonhalo::testing
