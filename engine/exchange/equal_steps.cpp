// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/equal_steps.h"

#include <algorithm>

#include "moonhalo/engine/exchange/exchange_context.h"

namespace moonhalo {

LeaveOutEqualSteps::LeaveOutEqualSteps(EqualStepsListener* listener)
    : listener_(listener), current_(exchange_context->equal_steps, this) {}

const LeaveOutEqualSteps* LeaveOutEqualSteps::of(const Communicator& group) {
  return group.is_fake() ? exchange_context->equal_steps : nullptr;
}

EqualSteps::EqualSteps(const std::vector<int64_t>& kinds) {
  constexpr int64_t kMostPeriod = 64;
  const auto size = static_cast<int64_t>(kinds.size());
  int64_t most = size / 2;
  for (int64_t period = 1; period <= std::min(kMostPeriod, size / 4); ++period) {
    int64_t equal = 0;
    for (int64_t step = period + 1; step < size; ++step) equal += kinds[step] == kinds[step - period] ? 1 : 0;
    if (equal <= most) continue;
    most = equal;
    period_ = period;
  }
  ends_.assign(size + 1, size);
  for (int64_t step = size - 1; period_ > 0 && step > period_; --step)
    ends_[step] = kinds[step] == kinds[step - period_] ? ends_[step + 1] : step;
}

int64_t EqualSteps::periods_from(int64_t step) const {
  const bool has_two = period_ > 0 && step >= 2 * period_ + 2 && step + 1 < std::ssize(ends_);
  return has_two ? std::max<int64_t>(0, ends_[step - 1] - 1 - step) / period_ : 0;
}

}  // namespace moonhalo
