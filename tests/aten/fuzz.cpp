// SPDX-License-Identifier: Apache-2.0
// Calls drawn operators of ATen on drawn blocks until the time is over: `./dev fuzz`. A failure is made small and
// printed as a test; exit status 1 if there was any. With --once every operator on the same ways in every run: the
// sweep of row X09.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/aten/empty_blocks.h"
#include "tests/aten/exceptions.h"
#include "tests/aten/pairs.h"
#include "tests/aten/trial.h"
#include "tests/support/apart.h"
#include "tests/support/test_device.h"

namespace moonhalo::testing {
namespace {

struct Options {
  double minutes = 1;
  uint64_t seed = 0;
  std::string name;   // one operator only
  bool once = false;  // every operator once, with a table
  bool shrink = true;
  size_t part = 0, parts = 1;  // of the operators
  bool check = false;          // fail for what exceptions.h does not expect
  int64_t empty = -1;          // not negative: a rank has no rows, this many ranks in turn
  bool outs = false;           // out= forms only
  bool pairs = false;          // calls that differ a little, one after the other
};

int usage() {
  std::fputs(
      "usage: moonhalo_fuzz [--minutes M] [--seed S] [--operator NAME] [--once] [--part I/N] [--check] [--pairs] "
      "[--outs] [--empty N] [--no-shrink]\n"
      "  --minutes M      how long (default 1)\n"
      "  --seed S         another sequence (default: drawn, and printed)\n"
      "  --operator NAME  only this operator (\"sum\" or \"aten::sum.dim_IntList\")\n"
      "  --once           every operator once, then stop; prints a line for each\n"
      "  --part I/N       every Nth operator, beginning with the Ith (1 to N)\n"
      "  --check          with --once: fail for operators that are not tried or never answered on blocks unexpectedly\n"
      "  --empty N        with --once: on ways that leave one rank without rows; N (1 to 3) ranks in turn for the "
      "first sample\n"
      "  --pairs          each operator with other absent arguments, numbers, lists and dtypes one after the other in "
      "one process\n"
      "  --outs           out= forms only\n"
      "  --no-shrink      report failures as they are\n",
      stderr);
  return 2;
}

void report(const Trial& trial, const Verdict& verdict, bool shrink) {
  std::printf("WRONG %s\n%s\n", trial.to_string().c_str(), verdict.wrong.c_str());
  std::fflush(stdout);
  if (!shrink) return;
  const Trial small = shrunk(trial);
  std::printf("smallest: %s\n%s\nTEST(Found, %s) {\n%s\n}\n\n", small.to_string().c_str(),
              run_trial_apart(small).wrong.c_str(), small.sample.op.base.c_str(), small.to_test().c_str());
  std::fflush(stdout);
}

// X09: the dims of the first sample's tensors that no trial answered on blocks, not even the simplest; as text.
std::string dims_missing(const Sample& sample, const std::set<TensorDim>& answered,
                         const std::function<void(const Trial&, const Verdict&)>& seen) {
  std::vector<Trial> simplest;
  for (size_t i = 0; i < sample.tensors.size(); ++i) {
    for (int64_t dim = 0; dim < sample.tensors[i].dim(); ++dim) {
      if (!answered.count({i, dim})) simplest.push_back(trial_of_dim(sample, {i, dim}));
    }
  }
  std::string missing;
  run_trials_apart(simplest, [&](const Trial& trial, const Verdict& verdict) {
    seen(trial, verdict);
    if (verdict.kind() == Verdict::Kind::kRight) return;
    const TensorDim where = *dims_cut(trial).begin();
    missing += (missing.empty() ? "" : ", ") + std::string("dim ") + std::to_string(where.dim) + " of tensor " +
               std::to_string(where.tensor);
  });
  return missing;
}

// The operators that the options name; none: a message was printed.
std::vector<Operator> chosen(const Options& options) {
  std::vector<Operator> operators;
  const std::vector<std::string> untried =
      is_on_devices() ? rows_of_device_table("untried") : std::vector<std::string>();
  for (const Operator& op : callable_operators()) {
    if (options.outs && !op.out) continue;
    if (std::find(untried.begin(), untried.end(), op.name) != untried.end()) continue;
    if (options.name.empty() || op.base == options.name || op.name == options.name ||
        op.name == "aten::" + options.name)
      operators.push_back(op);
  }
  if (operators.empty()) {
    std::fprintf(stderr,
                 "fuzz: no operator \"%s\"\n  have  %zu operators that take tensors\n  fix   give its name as in "
                 "aten::sum.dim_IntList\n",
                 options.name.c_str(), callable_operators().size());
    return {};
  }
  std::stable_partition(operators.begin(), operators.end(), [](const Operator& op) {
    return !op.out && !op.in_place && !op.base.starts_with("_foreach_");
  });
  // Forms that write run the others and copy what they made.
  if (options.empty >= 0 && options.name.empty())
    std::erase_if(operators, [](const Operator& op) { return op.out || op.base.starts_with("_foreach_"); });
  if (options.parts > 1) {
    std::vector<Operator> mine;
    for (size_t i = options.part; i < operators.size(); i += options.parts) mine.push_back(operators[i]);
    operators = std::move(mine);
  }
  return operators;
}

constexpr size_t kPairWays = 2;
constexpr char kEnd = '\x1f';

// The outcome of one operator's calls, as "right refused problem...".
std::string try_pairs(const Operator& op) {
  int right = 0, refused = 0;
  std::string problems;
  const std::vector<Sample> samples = samples_of(op, 3);
  for (const Sample& sample : samples) {
    const Calls calls = calls_like(sample, samples);
    if (calls.samples.size() < 2) continue;
    for (const Trial& trial : trials_of(sample, kPairWays, "pairs")) {
      const std::string problem = pairs_problem(calls, trial.way, &right, &refused);
      if (!problem.empty()) problems += "WRONG " + problem + "\n";
    }
  }
  return std::to_string(right) + " " + std::to_string(refused) + kEnd + problems;
}

int try_all_pairs(std::vector<Operator> operators) {
  std::erase_if(operators, [](const Operator& op) { return op.out; });  // they run the form that returns its results
  long right = 0, refused = 0;
  int wrong = 0;
  run_apart(
      operators.size(), [&](size_t i) { return try_pairs(operators[i]); },
      [&](size_t i, const std::string& text, const std::string& ended) {
        const size_t end = std::min(text.find(kEnd), text.size());
        long counts[2] = {0, 0};
        std::sscanf(text.c_str(), "%ld %ld", &counts[0], &counts[1]);
        right += counts[0], refused += counts[1];
        const std::string problem =
            ended.empty() ? text.substr(end + 1) : "WRONG " + operators[i].name + " " + ended + "\n";
        std::printf("%-44s %ld right %ld refused\n%s", operators[i].name.c_str(), counts[0], counts[1],
                    problem.c_str());
        wrong += !problem.empty();
      });
  std::printf("pairs: %zu operators; calls: %ld right, %ld refused; %d operators wrong\n", operators.size(), right,
              refused, wrong);
  return wrong == 0 ? 0 : 1;
}

// An out= form is tried with out= tensors of the result's shape and with empty ones.
std::vector<Sample> samples_to_try(const Operator& op, std::string* problem) {
  std::vector<Sample> samples = samples_of(op, op.in_place ? 2 : op.out ? 3 : 4, problem);
  const size_t given = samples.size();
  for (size_t i = 0; op.out && i < given; ++i) {
    if (auto sample = with_empty_outs(samples[i])) samples.push_back(std::move(*sample));
  }
  return samples;
}

std::vector<Trial> trials_of_all(const Operator& op, const std::vector<Sample>& samples, const Options& options,
                                 const std::string& seed) {
  std::vector<Trial> trials;
  for (size_t i = 0; i < samples.size(); ++i) {
    // Every dim of the first sample's tensors is cut once.
    const bool first = i == 0, written = op.in_place || op.out;
    const size_t ways = written ? (first ? 5 : 2) : first ? 10 : 5;
    const std::vector<Trial> more = options.empty < 0
                                        ? trials_of(samples[i], ways, seed, first)
                                        : trials_with_empty_blocks(samples[i], i + 1, first ? options.empty : 1);
    trials.insert(trials.end(), more.begin(), more.end());
  }
  return trials;
}

constexpr size_t kTurns = 16;  // tried in one process: a fork costs as much as several trials

// Calls the operators, in the order of the list or drawn until the time is over, and counts what came of it.
class Fuzzer {
 public:
  explicit Fuzzer(const Options& options) : options_(options), random_(options.seed) {}
  void run(const std::vector<Operator>& operators);
  void print_summary() const;
  bool found_nothing() const { return total_.wrong == 0 && surprises_.empty(); }

 private:
  // An operator's trials and what came of them.
  struct Turn {
    const Operator* op;
    const std::vector<Sample>* samples;
    std::string problem;  // where there are no samples
    size_t trials = 0;
    Tally tally = {};
    std::set<TensorDim> answered = {};
  };

  Turn make_turn(const Operator& op, std::vector<Trial>* trials);
  // `trials`: those of the turns, one after the other.
  void run_turns(std::vector<Turn>& turns, const std::vector<Trial>& trials);
  void count(Turn& turn, const Trial& trial, const Verdict& verdict);
  void finish(Turn& turn);
  void note(std::string surprise) {
    if (!surprise.empty()) surprises_.push_back(std::move(surprise));
  }

  const Options& options_;
  std::mt19937_64 random_;
  std::map<std::string, std::vector<Sample>> samples_;  // by operator
  Tally total_;
  std::map<std::string, int> failures_;  // by operator
  std::vector<std::string> surprises_;
  size_t tried_ = 0;
};

void Fuzzer::run(const std::vector<Operator>& operators) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.minutes * 60);
  for (size_t next = 0; options_.once ? next < operators.size() : std::chrono::steady_clock::now() < end;) {
    std::vector<Turn> turns;
    std::vector<Trial> trials;
    for (; turns.size() < kTurns && (!options_.once || next < operators.size()); ++next)
      turns.push_back(make_turn(operators[options_.once ? next : random_() % operators.size()], &trials));
    run_turns(turns, trials);
  }
}

Fuzzer::Turn Fuzzer::make_turn(const Operator& op, std::vector<Trial>* trials) {
  auto& known = samples_[op.name];
  Turn turn{&op, &known, "no arguments fit"};
  if (known.empty()) known = samples_to_try(op, &turn.problem);
  const std::vector<Trial> own = trials_of_all(op, known, options_, options_.once ? "" : std::to_string(random_()));
  turn.trials = own.size();
  turn.tally.samples = static_cast<int>(known.size());
  trials->insert(trials->end(), own.begin(), own.end());
  return turn;
}

void Fuzzer::run_turns(std::vector<Turn>& turns, const std::vector<Trial>& trials) {
  size_t done = 0, at = 0;  // trials of turns[at] that were seen
  const auto finish_done = [&] {
    for (; at < turns.size() && done == turns[at].trials; ++at, done = 0) finish(turns[at]);
    std::fflush(stdout);
  };
  finish_done();
  run_trials_apart(trials, [&](const Trial& trial, const Verdict& verdict) {
    count(turns[at], trial, verdict);
    ++done;
    finish_done();
  });
}

void Fuzzer::count(Turn& turn, const Trial& trial, const Verdict& verdict) {
  turn.tally.add(verdict);
  total_.add(verdict);
  if (verdict.kind() == Verdict::Kind::kWrong && failures_[turn.op->name]++ < 2)
    report(trial, verdict, options_.shrink);
  if (verdict.kind() == Verdict::Kind::kRight && trial.sample.text == turn.samples->front().text)
    turn.answered.merge(dims_cut(trial));
}

void Fuzzer::finish(Turn& turn) {
  if (turn.samples->empty()) {
    if (options_.check) note(unexpected(*turn.op, {}));
    if (options_.once)
      std::printf("%-44s no sample: %s\n", turn.op->name.c_str(),
                  turn.problem.substr(0, turn.problem.find('\n')).c_str());
    return;
  }
  ++tried_;
  if (options_.check) {
    const std::string missing =
        dims_missing(turn.samples->front(), turn.answered,
                     [&](const Trial& trial, const Verdict& verdict) { count(turn, trial, verdict); });
    note(unexpected(*turn.op, turn.tally, missing));
  }
  if (options_.once) std::printf("%s\n", turn.tally.to_string(turn.op->name).c_str());
}

void Fuzzer::print_summary() const {
  std::printf("fuzz: %zu operators tried; ways: %d on blocks, %d gathered, %d refused, %d wrong\n", tried_,
              total_.right, total_.gathered, total_.refused, total_.wrong);
  for (const auto& [name, times] : failures_) std::printf("  wrong: %s (%d)\n", name.c_str(), times);
  for (const std::string& surprise : surprises_) std::printf("  unexpected: %s\n", surprise.c_str());
}

int fuzz(const Options& options) {
  const std::vector<Operator> operators = chosen(options);
  if (operators.empty()) return 2;
  if (options.pairs) return try_all_pairs(operators);
  std::printf("fuzz: %zu operators, seed %llu\n", operators.size(), static_cast<unsigned long long>(options.seed));
  Fuzzer fuzzer(options);
  fuzzer.run(operators);
  fuzzer.print_summary();
  return fuzzer.found_nothing() ? 0 : 1;
}

}  // namespace
}  // namespace moonhalo::testing

int main(int count, char** words) {
  moonhalo::testing::Options options{.seed = std::random_device()()};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const char* value = i + 1 < count ? words[i + 1] : nullptr;
    if (word == "--once") {
      options.once = true;
    } else if (word == "--check") {
      options.check = true;
    } else if (value != nullptr && word == "--part" &&
               std::sscanf(value, "%zu/%zu", &options.part, &options.parts) == 2 && options.part >= 1 &&
               options.part <= options.parts) {
      --options.part, ++i;
    } else if (value != nullptr && word == "--empty") {
      options.empty = std::clamp(std::atoi(value), 1, 3), ++i;
    } else if (word == "--outs") {
      options.outs = true;
    } else if (word == "--pairs") {
      options.pairs = true;
    } else if (word == "--no-shrink") {
      options.shrink = false;
    } else if (value != nullptr && word == "--minutes") {
      options.minutes = std::atof(value), ++i;
    } else if (value != nullptr && word == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10), ++i;
    } else if (value != nullptr && word == "--operator") {
      options.name = value, ++i;
    } else {
      return moonhalo::testing::usage();
    }
  }
  setenv("MOONHALO_TIMEOUT_S", "60", 0);  // ranks that diverge do not wait for ten minutes
  at::set_num_threads(1);                 // forked processes must have no threads
  return moonhalo::testing::fuzz(options);
}
