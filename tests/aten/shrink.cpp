// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <set>

#include "tests/aten/notation.h"
#include "tests/aten/trial.h"

namespace moonhalo::testing {
namespace {

bool fails(const Trial& trial) {
  return !trial.way.all_plain() && run_trial_apart(trial).kind() == Verdict::Kind::kWrong;
}

// Takes the first of `smaller` that still fails. False when none does.
bool step(Trial& trial, const std::vector<Trial>& smaller) {
  for (const Trial& next : smaller) {
    if (!fails(next)) continue;
    trial = next;
    return true;
  }
  return false;
}

std::vector<int64_t> balanced(int64_t extent, int64_t blocks) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < blocks; ++i) sizes.push_back(extent / blocks + (i < extent % blocks ? 1 : 0));
  return sizes;
}

// One mesh dim fewer, or fewer ranks along one; sizes that no longer fit become balanced.
std::vector<Trial> smaller_meshes(const Trial& trial) {
  std::vector<Trial> all;
  for (size_t m = 0; m < trial.way.mesh.size(); ++m) {
    Trial next = trial;
    const bool drop = trial.way.mesh.size() > 1;
    if (drop) {
      next.way.mesh.erase(next.way.mesh.begin() + static_cast<int64_t>(m));
    } else if (next.way.mesh[m]-- <= 2) {
      continue;
    }
    for (Input& input : next.way.inputs) {
      if (input.placements.empty()) continue;
      if (drop) {
        input.placements.erase(input.placements.begin() + static_cast<int64_t>(m));
      } else if (input.placements[m].is_shard() && !input.placements[m].sizes.empty()) {
        auto& sizes = input.placements[m].sizes;
        const int64_t last = sizes.back();
        sizes.pop_back();
        sizes.back() += last;
      }
    }
    all.push_back(std::move(next));
  }
  return all;
}

std::vector<Trial> simpler_placements(const Trial& trial) {
  std::vector<Trial> all;
  for (size_t i = 0; i < trial.way.inputs.size(); ++i) {
    const Input& input = trial.way.inputs[i];
    if (input.plain) continue;
    if (!trial.sample.written[i]) {
      Trial plain = trial;
      plain.way.inputs[i].plain = true;
      plain.way.inputs[i].placements = {};
      all.push_back(std::move(plain));
    }
    for (size_t m = 0; m < input.placements.size(); ++m) {
      if (input.placements[m].is_replicate()) continue;
      Trial next = trial;
      next.way.inputs[i].placements[m] = replicate();
      all.push_back(std::move(next));
      const Placement& p = input.placements[m];
      if (!p.is_shard() || p.sizes.empty()) continue;
      const auto even = balanced(input.full.size(p.dim), trial.way.mesh[m]);
      if (p.sizes == even) continue;
      Trial balance = trial;
      balance.way.inputs[i].placements[m].sizes = even;
      all.push_back(std::move(balance));
    }
  }
  return all;
}

// Every tensor dim of extent `from` in the text becomes `to`.
std::string resized(const std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  bool shape = false;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '[') shape = i > 0 && std::isalpha(static_cast<unsigned char>(text[i - 1])) != 0;
    if (text[i] == ']') shape = false;
    size_t end = i;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    if (end == i) {
      result += text[i++];
      continue;
    }
    const std::string digits = text.substr(i, end - i);
    result += shape && digits == from ? to : digits;
    i = end;
  }
  return result;
}

std::vector<Trial> shorter_dims(const Trial& trial) {
  std::set<int64_t> extents;
  for (const at::Tensor& t : trial.sample.tensors) extents.insert(t.sizes().begin(), t.sizes().end());
  std::vector<Trial> all;
  for (auto extent = extents.rbegin(); extent != extents.rend(); ++extent) {
    if (*extent < 2) continue;
    const std::string text = resized(trial.sample.text, std::to_string(*extent), std::to_string(*extent - 1));
    if (text == trial.sample.text) continue;
    auto sample = make_sample(trial.sample.op, text);
    if (!sample || sample->tensors.size() != trial.sample.tensors.size()) continue;
    Trial next{std::move(*sample), trial.way, 0};
    next.derivatives = std::min(trial.derivatives, next.sample.derivatives);
    for (size_t i = 0; i < next.way.inputs.size(); ++i) {
      Input& input = next.way.inputs[i];
      input.full = next.sample.tensors[i];
      for (Placement& p : input.placements) {
        if (!p.is_shard() || p.sizes.empty()) continue;
        int64_t sum = 0;
        for (const int64_t size : p.sizes) sum += size;
        if (sum == input.full.size(p.dim)) continue;
        --*std::max_element(p.sizes.begin(), p.sizes.end());
      }
    }
    all.push_back(std::move(next));
  }
  return all;
}

}  // namespace

Trial shrunk(Trial trial) {
  while (trial.derivatives > 0) {
    Trial next = trial;
    --next.derivatives;
    if (!fails(next)) break;
    trial = next;
  }
  while (step(trial, smaller_meshes(trial)) || step(trial, simpler_placements(trial)) ||
         step(trial, shorter_dims(trial))) {
  }
  return trial;
}

}  // namespace moonhalo::testing
