// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <signal.h>

#include <cstdint>

namespace moonhalo::bench {

inline volatile int64_t stepped = 0;

inline void count_step(int) { stepped = stepped + 1; }

#ifdef __x86_64__
constexpr bool kCountsInstructions = true;
#else
constexpr bool kCountsInstructions = false;
#endif

/// Instructions that `work` executes on this thread in user space, the same at every load of the machine: the processor's
/// trap flag stops after each one, and a signal handler counts. Some 1000 times slower than the work itself. Hardware
/// counters would be quicker, but most virtual machines have none. x86-64 only.
template <typename Work>
int64_t instructions_of(const Work& work) {
#ifdef __x86_64__
  struct sigaction counting = {}, before = {};
  counting.sa_handler = &count_step;
  TORCH_CHECK(sigaction(SIGTRAP, &counting, &before) == 0, "sigaction refuses SIGTRAP");
  stepped = 0;
  asm volatile("pushfq\n\torl $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
  work();
  asm volatile("pushfq\n\tandl $0xfffffeff, (%%rsp)\n\tpopfq" ::: "memory", "cc");
  sigaction(SIGTRAP, &before, nullptr);
  return stepped;
#else
  TORCH_CHECK(false, "instructions are counted on x86-64 only");
#endif
}

}  // namespace moonhalo::bench
