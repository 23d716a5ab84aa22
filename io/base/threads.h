// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "moonhalo/engine/base/parallel.h"

namespace moonhalo::io {

/// Runs work(i, own) for 0 <= i < count in LibTorch's threads (at::get_num_threads), each with an object of its own. Of
/// the items that fail, the first one's exception is thrown.
template <typename Own, typename Work>
void in_threads(int64_t count, const Work& work) {
  std::atomic<int64_t> next{0}, failed{count};
  std::mutex mutex;
  std::exception_ptr failure;
  const int64_t threads = std::min<int64_t>(count, at::get_num_threads());
  parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      Own own;
      // Items are begun in order: those before one that fails all come to their end.
      for (int64_t i = next++; i < failed; i = next++) {
        try {
          work(i, own);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < failed) failure = std::current_exception();
          failed = std::min<int64_t>(failed, i);
        }
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace moonhalo::io
