// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace moonhalo {

/// Calls body(from, to) for parts that cover [begin, end), on the threads of LibTorch (at::set_num_threads). Each part
/// runs on one thread and has at least `grain` indices, except the last one. A nested call runs on its own thread only.
/// After all parts have ended, an exception of a body is rethrown here. Use it instead of at::parallel_for, which is
/// header code and becomes a plain loop if the including file is compiled without OpenMP. Not collective.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

/// Calls body(number) on this thread (number 0) and on the threads of LibTorch that work for it, at most `threads` in
/// all. The body must not throw. Not collective.
void on_each_thread(int threads, c10::function_ref<void(int)> body);

}  // namespace moonhalo
