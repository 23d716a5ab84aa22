// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_device.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/placements.h"

namespace moonhalo::testing {
namespace {

std::string named_device() {
  const char* const named = std::getenv("MOONHALO_TEST_DEVICE");
  return named == nullptr || *named == 0 ? "cpu" : named;
}

bool is_cuda(const std::string& device) { return device.rfind("cuda", 0) == 0; }

// Adds the names of the rows of one table that begin with `word`.
void add_rows(const std::string& file, const std::string& word, std::set<std::string>& names) {
  const char* const folder = std::getenv("MOONHALO_DEVICE_TABLES");
  const std::string path = std::string(folder == nullptr ? MOONHALO_DEVICE_TABLES : folder) + "/" + file;
  std::ifstream table(path);
  TORCH_CHECK(table.good(), "no table of devices: ", path);
  for (std::string line; std::getline(table, line);) {
    const size_t begin = word.size() + 1, end = line.find(": ");
    if (line.rfind(word + " ", 0) == 0 && end != std::string::npos) names.insert(line.substr(begin, end - begin));
  }
}

std::set<std::string> listed(const std::string& word) {
  std::set<std::string> names;
  add_rows("device_table.txt", word, names);
  if (is_cuda(named_device())) add_rows("cuda_table.txt", word, names);
  return names;
}

// "rank 2: knn: no kernels" -> "knn: no kernels"
std::string without_rank(const std::string& error) {
  if (error.rfind("rank ", 0) != 0) return error;
  const size_t digits = error.find_first_not_of("0123456789", 5);
  return error.compare(digits, 2, ": ") == 0 ? error.substr(digits + 2) : error;
}

// Prints at the end of the program how often which errors were expected.
class Expected final : public ::testing::Environment {
 public:
  static void add(const std::string& why) {
    static Expected* const expected = [] {
      auto* made = new Expected;
      ::testing::AddGlobalTestEnvironment(made);
      return made;
    }();
    const std::lock_guard lock(expected->mutex_);
    ++expected->times_[why];
  }
  void TearDown() override {
    for (const auto& [why, times] : times_)
      std::printf("[ %s ] %d programs: %s\n", test_device().c_str(), times, why.c_str());
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> times_;
};

}  // namespace

const std::string& test_device() {
  static const std::string device = [] {
    const std::string device = named_device();
    TORCH_CHECK_VALUE(device == "cpu" || device == "fake" || device == "fake_nccl" || device == "cuda:0",
                      "MOONHALO_TEST_DEVICE=", device, " is neither cpu, fake, fake_nccl nor cuda:0");
    TORCH_CHECK_VALUE(!is_cuda(device) || at::hasCUDA(), "MOONHALO_TEST_DEVICE=", device, ": no CUDA device was found");
    if (device == "cpu" || is_cuda(device)) return device;
    fake::install();
    if (device == "fake_nccl") set_nccl_api(&fake::nccl());
    return std::string("fake");
  }();
  return device;
}

bool is_on_devices() { return named_device() != "cpu"; }

at::Tensor on_device(const at::Tensor& tensor, const DeviceMesh& mesh) { return tensor.to(device_of(mesh)); }

bool is_expected_on_devices(const std::string& error, const std::function<void()>& on_plain_tensors) {
  if (!is_on_devices()) return false;
  const std::string text = without_rank(error);
  if (const std::string op = text.substr(0, text.find(": no rule")); is_clear(text) && is_gathered_on_devices(op)) {
    Expected::add(op + " is gathered");
    return true;
  }
  const BackwardOnThisThread here;
  try {
    on_plain_tensors();
  } catch (const c10::Error& refused_too) {
    static const std::set<std::string> of_plain_tensors = listed("plain");
    const std::string there = refused_too.what_without_backtrace();
    for (const std::string& words : of_plain_tensors) {
      if (there.find(words) == std::string::npos) continue;
      Expected::add("plain tensors too: " + words);
      return true;
    }
    Expected::add("not in the table, of plain tensors: " + there.substr(0, there.find('\n')));
  }
  return false;
}

bool is_gathered_on_devices(const std::string& op) {
  static const std::set<std::string> gathered = listed("gathers");
  return is_on_devices() && gathered.contains(op);
}

std::vector<std::string> rows_of_device_table(const std::string& word) {
  const std::set<std::string> names = listed(word);
  return {names.begin(), names.end()};
}

}  // namespace moonhalo::testing
