// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <link.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

namespace moonhalo::bench {

/// Instructions executed: all of them, and those of one library (see own_code).
struct Instructions {
  int64_t all = 0, own = 0;
};

inline volatile int64_t stepped = 0, stepped_own = 0;
inline uintptr_t own_begin = 0, own_end = 0;

#ifdef __x86_64__
constexpr bool kCountsInstructions = true;

inline void count_step(int, siginfo_t*, void* context) {
  const auto at = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  stepped = stepped + 1;
  if (at >= own_begin && at < own_end) stepped_own = stepped_own + 1;
}
#else
constexpr bool kCountsInstructions = false;
#endif

/// From now on the code of the library (or program) that holds `address` counts as own.
inline void own_code(const void* address) {
  struct Search {
    uintptr_t address;
    bool found = false;
  } search{reinterpret_cast<uintptr_t>(address)};
  const auto visit = [](dl_phdr_info* object, size_t, void* data) {
    Search& expected = *static_cast<Search*>(data);
    for (int i = 0; i < object->dlpi_phnum && !expected.found; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
      if (segment.p_type != PT_LOAD || expected.address < begin || expected.address >= begin + segment.p_memsz)
        continue;
      expected.found = true;
      own_begin = begin;
      own_end = begin + segment.p_memsz;
    }
    return expected.found ? 1 : 0;
  };
  TORCH_CHECK(dl_iterate_phdr(visit, &search) != 0, "own_code: no library holds this address");
}

/// Counts what `work` executes on this thread in user space, the same at every load of the machine: the processor's
/// trap flag stops after each one, and a signal handler counts. Some 1000 times slower than the work itself. Hardware
/// counters would be quicker, but most virtual machines have none. x86-64 only.
template <typename Work>
Instructions instructions_of(const Work& work) {
#ifdef __x86_64__
  struct sigaction counting = {}, before = {};
  counting.sa_sigaction = &count_step;
  counting.sa_flags = SA_SIGINFO;
  TORCH_CHECK(sigaction(SIGTRAP, &counting, &before) == 0, "sigaction refuses SIGTRAP");
  stepped = 0;
  stepped_own = 0;
  asm volatile("pushfq\n\torl $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
  work();
  asm volatile("pushfq\n\tandl $0xfffffeff, (%%rsp)\n\tpopfq" ::: "memory", "cc");
  sigaction(SIGTRAP, &before, nullptr);
  return {stepped, stepped_own};
#else
  TORCH_CHECK(false, "instructions are counted on x86-64 only");
#endif
}

}  // namespace moonhalo::bench
