// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/repeated_calls.h"

#include <algorithm>

namespace moonhalo {
namespace {

constexpr int64_t kTurnsBytes = 16 << 20;
constexpr double kTurnsSeconds = 0.02;
constexpr int64_t kMostCopies = 64;

}  // namespace

RepeatedCalls::RepeatedCalls(const OperatorCall& call, int64_t bytes, double seconds)
    : call_(call), frees_results_(bytes > kTurnsBytes) {
  const int64_t in_memory = kTurnsBytes / std::max<int64_t>(bytes, 1);
  const auto in_time = static_cast<int64_t>(std::min(kTurnsSeconds / std::max(seconds, 1e-9), 1e9));
  copies_.resize(std::clamp<int64_t>(std::min(in_memory, in_time), 1, kMostCopies));
  for (Copy& copy : copies_) copy.arguments = with_memory(call_);
  // The system takes long to give out new memory, and that of a step is not new.
  for (size_t i = 0; i <= copies_.size(); ++i) next();
}

void RepeatedCalls::next() {
  Copy& copy = copies_[next_++ % copies_.size()];
  if (frees_results_) copy.results.clear();
  copy.results = repeat_call(call_, copy.arguments);
}

}  // namespace moonhalo
