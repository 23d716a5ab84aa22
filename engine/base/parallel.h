// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace moonhalo {

/// Calls body(from, to) for parts of [begin, end) that cover it, on the threads of LibTorch (at::set_num_threads), each
/// part on one thread and of at least `grain` numbers but for the last. A call within another runs on its thread alone.
/// What a body throws is thrown again here, once all parts have ended. at::parallel_for with a compiler of any kind:
/// that one is code in a header, and a plain loop where the including file is compiled without OpenMP.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

/// Calls body(number) on this thread (0) and on those of LibTorch that work for it, `threads` in all at most. It throws
/// nothing.
void on_each_thread(int threads, c10::function_ref<void(int)> body);

}  // namespace moonhalo
