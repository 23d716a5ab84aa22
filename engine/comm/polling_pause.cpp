// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/polling_pause.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "moonhalo/engine/comm/comm_context.h"

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr microseconds kBusy{20}, kNapTime{20}, kYieldToCrowd{200};
constexpr milliseconds kCrowdedFor{200};

// The kernel may let a thread sleep 50 microseconds longer than it asks for, unless it says that this matters.
void nap() {
  const int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  std::this_thread::sleep_for(kNapTime);
  prctl(PR_SET_TIMERSLACK, std::max(slack, 0), 0, 0, 0);
}

}  // namespace

// A nanosecond for each byte is more than most networks take: the sender may be late.
PollingPause::PollingPause(size_t bytes) : transfer_(std::min<Duration>(kBusy + nanoseconds(bytes), kLongest)) {}

// On a core that others keep busy a yield returns after their slice of time, milliseconds later, whatever has come
// meanwhile; from a short sleep the kernel wakes us before them. (Two ranks beside two busy loops: 8 s instead of 60.)
// But a sleep takes longer than most messages, so there a rank stays busy for as long as its message may take.
PollingPause::Step PollingPause::step(Duration waited, bool crowded) const {
  if (waited <= kBusy) return kPoll;
  if (!crowded) return kYield;
  return waited <= transfer_ ? kPoll : kNap;
}

void PollingPause::pause(Duration waited) const {
  if (waited <= kBusy) return;
  Clock::time_point& crowded_until = comm_context->crowded_until;
  const Clock::time_point before = Clock::now();
  switch (step(waited, before < crowded_until)) {
    case kPoll:
      return;
    case kNap:
      return nap();
    case kYield:
      sched_yield();
      if (Clock::now() - before > kYieldToCrowd) crowded_until = before + kCrowdedFor;
  }
}

}  // namespace moonhalo
