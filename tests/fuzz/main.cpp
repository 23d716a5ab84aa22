// SPDX-License-Identifier: Apache-2.0
// Damages valid files and gives them to what reads them: `./dev fuzz --files`, --models, --plans, --configs,
// --checkpoints. Every input is read in a process that may crash or hang; those that do, are read wrong, or are
// refused without their name, are kept. Exit status 1 if there were any. What was found and corrected is in
// tests/fuzz/found and is tried first in every run.
#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "tests/fuzz/damage.h"
#include "tests/fuzz/kinds.h"
#include "tests/fuzz/plain_hdf5.h"
#include "tests/support/apart.h"
#include "tests/support/folder.h"

namespace moonhalo::testing {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__)  // says GCC
constexpr bool kSanitized = true;
#elif defined(__has_feature)  // asks Clang
constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif
constexpr rlim_t kMemory = kSanitized ? RLIM_INFINITY : rlim_t{8} << 30;
constexpr int kPatienceMs = 120000;
constexpr size_t kBatch = 500;

struct Options {
  const InputKind* kind = nullptr;
  double minutes = 1;
  uint64_t seed = 0;
  size_t count = 0;  // of inputs; 0: as many as the minutes allow
  std::string found, keep = "build/fuzz";
};

int usage() {
  std::fputs(
      "usage: moonhalo_fuzz_input --files | --models | --plans | --configs | --checkpoints [options]\n"
      "  --minutes M   how long (default 1)\n"
      "  --count N     this many inputs, however long it takes\n"
      "  --seed S      another sequence (default: drawn, and printed)\n"
      "  --once        the sequence of seed 1, some ten seconds of it\n"
      "  --found DIR   inputs tried first, DIR/KIND/NAME/files\n"
      "  --keep DIR    where inputs that fail are kept (default build/fuzz)\n",
      stderr);
  return 2;
}

class Fuzzer {
 public:
  explicit Fuzzer(const Options& options) : options_(options), kind_(*options.kind), work_(folder_.path()) {}

  int run() {
    valid_ = kind_.valid(work_ / "valid");
    for (size_t i = 0; i < valid_.size(); ++i) {
      judge(
          1, [&](size_t) { return std::pair(valid_[i], i); }, [&](size_t) { return "valid-" + std::to_string(i); },
          "read");
    }
    const std::vector<InputFiles> found = found_inputs();
    judge(
        found.size(), [&](size_t i) { return std::pair(found[i], like(found[i])); },
        [](size_t i) { return "found-" + std::to_string(i); });
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.minutes * 60);
    size_t drawn = 0;
    while (options_.count ? drawn < options_.count : std::chrono::steady_clock::now() < end) {
      const size_t batch = options_.count ? std::min(kBatch, options_.count - drawn) : kBatch;
      judge(
          batch, [&](size_t i) { return draw(drawn + i); },
          [&](size_t i) { return std::to_string(options_.seed) + "-" + std::to_string(drawn + i); });
      drawn += batch;
    }
    std::printf(
        "fuzz %s: %zu valid, %zu found earlier, %zu drawn with seed %llu: %zu read, %zu refused, %zu crashes that "
        "HDF5's tools share, %zu wrong\n",
        kind_.name, valid_.size(), found.size(), drawn, static_cast<unsigned long long>(options_.seed), read_, refused_,
        shared_, wrong_);
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  using Made = std::pair<InputFiles, size_t>;  // and which of the valid ones it was

  std::vector<InputFiles> found_inputs() const {
    std::vector<InputFiles> inputs;
    const fs::path folder = fs::path(options_.found) / kind_.name;
    if (options_.found.empty() || !fs::is_directory(folder)) return inputs;
    std::vector<fs::path> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path());
    std::sort(names.begin(), names.end());
    for (const fs::path& name : names) inputs.push_back(read_input(name.string()));
    return inputs;
  }

  // The valid input with the same files that says least about what is read.
  size_t like(const InputFiles& input) const {
    for (size_t i = 0; i < valid_.size(); ++i) {
      if (!valid_[i].checked && !input.files.empty() && valid_[i].files.count(input.files.begin()->first)) return i;
    }
    return 0;
  }

  Made draw(size_t number) const {
    std::seed_seq seeds{options_.seed, options_.seed >> 32, uint64_t{number}, uint64_t{number} >> 32};
    std::mt19937_64 random(seeds);
    const size_t chosen = static_cast<size_t>(random() % valid_.size());
    return {damaged(valid_[chosen], valid_, kind_.words, random), chosen};
  }

  template <class Make, class Name>
  void judge(size_t count, const Make& make, const Name& name, const std::string& expected = "") {
    const auto task = [&](size_t i) {
      if (std::freopen(errors().c_str(), "w", stderr) == nullptr) return std::string("no file for stderr");
      const Made made = make(i);
      const std::string folder = work_ / "input";
      write_input(folder, made.first);
      try {
        const std::string verdict = kind_.judge(folder, valid_[made.second]);
        return expected.empty() || verdict == expected ? verdict : "of a valid input: " + verdict;
      } catch (const std::exception& error) {
        return std::string("an exception of no call: ") + error.what();
      }
    };
    run_apart(
        count, task,
        [&](size_t i, const std::string& text, const std::string& ended) {
          if (text == "read") {
            ++read_;
          } else if (text == "refused") {
            ++refused_;
          } else {
            failed(make(i).first, name(i), ended.empty() ? text : ended, !ended.empty(), [&] { return task(i); });
          }
        },
        kPatienceMs);
  }

  // A machine that stood still looks like an input that hangs, so that is tried again.
  void failed(const InputFiles& input, const std::string& name, std::string problem, bool ended,
              const std::function<std::string()>& again) {
    if (ended) {
      std::ostringstream said;
      said << std::ifstream(errors()).rdbuf();
      if (problem.starts_with("hangs")) {
        bool hangs = false;
        run_apart(
            1, [&](size_t) { return again(); },
            [&](size_t, const std::string&, const std::string& second) { hangs = !second.empty(); }, kPatienceMs);
        if (!hangs) {
          ++refused_;
          return;
        }
      }
      problem += "\n" + said.str().substr(0, 4000);
      if (tools_share(input)) {
        ++shared_;
        return;
      }
    }
    ++wrong_;
    const std::string kept = options_.keep + "/" + kind_.name + "-" + name;
    write_input(kept, input);
    std::printf("WRONG %s %s: %s\n  kept  %s\n", kind_.name, name.c_str(), problem.c_str(), kept.c_str());
    std::fflush(stdout);
  }

  // True if one of HDF5's own tools crashes or hangs on it too, or libhdf5 where they gave up; where libhdf5 uses what
  // it never filled, with memory that held something.
  bool tools_share(const InputFiles& input) const {
    for (const auto& [name, bytes] : input.files) {
      if (!name.ends_with(".h5")) continue;
      const std::string path = work_ / "for-tools.h5";
      write_bytes(path, bytes);
      bool ends = true;
      const auto read = [&](size_t) { return read_attributes_plainly(path), std::string(); };
      run_apart(
          1, read, [&](size_t, const std::string&, const std::string& ended) { ends = ended.empty(); }, kPatienceMs);
      if (!ends) return true;
      for (const char* tool : {"h5dump", "h5ls -rvd"}) {
        for (const char* memory : {"", "MALLOC_PERTURB_=165 "}) {
          const int status = std::system(
              (std::string(memory) + "timeout -s KILL 120 " + tool + " '" + path + "' > /dev/null 2>&1").c_str());
          if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) > 128)) return true;
        }
      }
    }
    return false;
  }

  std::string errors() const { return work_ / "stderr.txt"; }

  const Options& options_;
  const InputKind& kind_;
  const Folder folder_;
  const fs::path work_;
  std::vector<InputFiles> valid_;
  size_t read_ = 0, refused_ = 0, shared_ = 0, wrong_ = 0;
};

}  // namespace
}  // namespace moonhalo::testing

int main(int count, char** words) {
  using namespace moonhalo::testing;
  Options options{.seed = std::random_device()()};
  bool once = false, seeded = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const char* value = i + 1 < count ? words[i + 1] : nullptr;
    const InputKind* const kinds[] = {&files_kind(), &models_kind(), &plans_kind(), &configs_kind(),
                                      &checkpoints_kind()};
    const auto* const kind = std::find_if(std::begin(kinds), std::end(kinds),
                                          [&](const InputKind* one) { return word == std::string("--") + one->name; });
    if (kind != std::end(kinds)) {
      options.kind = *kind;
    } else if (word == "--once") {
      once = true;
    } else if (value != nullptr && word == "--minutes") {
      options.minutes = std::atof(value), ++i;
    } else if (value != nullptr && word == "--count") {
      options.count = std::strtoull(value, nullptr, 10), ++i;
    } else if (value != nullptr && word == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10), seeded = true, ++i;
    } else if (value != nullptr && word == "--found") {
      options.found = value, ++i;
    } else if (value != nullptr && word == "--keep") {
      options.keep = value, ++i;
    } else {
      return usage();
    }
  }
  if (options.kind == nullptr) return usage();
  if (once && options.count == 0) options.count = options.kind->once;
  if (once && !seeded) options.seed = 1;
  at::set_num_threads(1);  // forked processes must have no threads
  const rlimit memory{kMemory, kMemory}, no_core{0, 0};
  setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CORE, &no_core);
  return Fuzzer(options).run();
}
