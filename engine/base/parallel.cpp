// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/parallel.h"

#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <atomic>
#include <exception>

extern "C" void moonhalo_openmp_region(int most, void (*work)(void* context, int thread, int threads), void* context);

namespace moonhalo {
namespace {

struct Loop {
  int64_t begin;
  int64_t end;
  int64_t grain;
  c10::function_ref<void(int64_t, int64_t)> body;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
};

void run_part(const Loop& loop, int thread, int64_t begin, int64_t end) {
  const at::internal::ThreadIdGuard thread_id(thread);
  const c10::ParallelGuard within(true);
  loop.body(begin, end);
}

/// The part of one thread of a region; LibTorch divides its loops in the same way.
void run_thread(void* context, int thread, int threads) {
  Loop& loop = *static_cast<Loop*>(context);
  const int64_t count = loop.end - loop.begin;
  const int64_t parts = loop.grain > 0 ? std::min<int64_t>(threads, at::divup(count, loop.grain)) : threads;
  const int64_t size = at::divup(count, parts);
  const int64_t begin = loop.begin + thread * size;
  if (begin >= loop.end) return;
  try {
    run_part(loop, thread, begin, std::min(loop.end, begin + size));
  } catch (...) {  // thrown again by the caller: nothing may leave a region of OpenMP
    if (!loop.failed.test_and_set()) loop.error = std::current_exception();
  }
}

}  // namespace

void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  if (begin >= end) return;
  at::internal::lazy_init_num_threads();
  Loop loop{.begin = begin, .end = end, .grain = grain, .body = body, .error = nullptr};
  if (end - begin <= std::max<int64_t>(grain, 1) || at::in_parallel_region() || at::get_num_threads() == 1) {
    run_part(loop, 0, begin, end);
    return;
  }
  moonhalo_openmp_region(at::get_num_threads(), run_thread, &loop);
  if (loop.error) std::rethrow_exception(loop.error);
}

void on_each_thread(int threads, c10::function_ref<void(int)> body) {
  moonhalo_openmp_region(
      threads, [](void* context, int thread, int) { (*static_cast<c10::function_ref<void(int)>*>(context))(thread); },
      &body);
}

}  // namespace moonhalo
