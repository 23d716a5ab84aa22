// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <typeinfo>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/thread_hub.h"
#include "moonhalo/engine/random/random.h"

namespace moonhalo {
namespace {

struct RankExitHooks {
  std::vector<std::function<void()>> hooks;

  void run() {
    while (!hooks.empty()) {
      const std::function<void()> hook = std::move(hooks.back());
      hooks.pop_back();
      hook();
    }
  }
  ~RankExitHooks() { run(); }
};

const RankLocal<RankExitHooks> rank_exit_hooks;

// Only exact types: a derived type may hold more than a message, and is left alone.
template <typename T>
void rethrow_prefixed_if(const std::exception& error, const std::string& prefix) {
  if (typeid(error) != typeid(T)) return;
  if constexpr (std::is_base_of_v<c10::Error, T>) {
    const auto& known = static_cast<const c10::Error&>(error);
    T copy(prefix + known.msg(), known.backtrace(), known.caller());
    for (const std::string& context : known.context()) copy.add_context(context);
    throw copy;
  } else {
    throw T(prefix + error.what());
  }
}

template <typename... Types>
void rethrow_prefixed_if_any(const std::exception& error, const std::string& prefix) {
  (rethrow_prefixed_if<Types>(error, prefix), ...);
}

[[noreturn]] void rethrow_with_rank(const std::exception_ptr& error, int rank, int ranks) {
  if (ranks == 1) std::rethrow_exception(error);
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    rethrow_prefixed_if_any<CommError, c10::ValueError, c10::TypeError, c10::IndexError, c10::NotImplementedError,
                            c10::Error, c10::LinAlgError, c10::OutOfMemoryError, c10::EnforceFiniteError,
                            std::runtime_error, std::invalid_argument, std::out_of_range, std::domain_error,
                            std::length_error, std::logic_error, std::range_error, std::overflow_error>(known, prefix);
    throw;
  }
}

std::string first_line(const std::exception_ptr& error) {
  std::string text = "an exception of unknown type";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    text = known.what_without_backtrace();
  } catch (const std::exception& known) {
    text = known.what();
  } catch (...) {
    return text;
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

void at_rank_exit(std::function<void()> hook) { rank_exit_hooks->hooks.push_back(std::move(hook)); }

void run_ranks(int ranks, const std::function<void(Communicator&)>& fn, int threads_per_rank) {
  TORCH_CHECK_VALUE(ranks > 0, "run_ranks: ", ranks, " ranks\n  have  ranks = ", ranks,
                    "\n  fix   give a positive number");
  TORCH_CHECK_VALUE(threads_per_rank >= 0, "run_ranks: ", threads_per_rank, " threads for each rank\n  have  threads_per_rank = ",
                    threads_per_rank, "\n  fix   give a positive number, or 0 to divide the cores");
  const int callers_threads = at::get_num_threads();
  if (threads_per_rank == 0) threads_per_rank = std::max(1, callers_threads / ranks);

  auto world = std::make_shared<ThreadWorld>(ranks);
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  auto hub = std::make_shared<ThreadHub>(world, everyone);
  const at::ThreadLocalState callers_state;
  std::mutex mutex;
  std::exception_ptr first_error;
  int first_rank = 0;
  const auto fail = [&](int rank) {
    const std::exception_ptr error = std::current_exception();
    std::lock_guard<std::mutex> lock(mutex);
    if (first_error) return;
    first_error = error;
    first_rank = rank;
    world->abort("rank " + std::to_string(rank) + " failed: " + first_line(error));
  };

  // No rank begins before all have been started: where threads are short, nothing has been done.
  enum Gate { kWait, kGo, kNever };
  std::atomic<Gate> gate{kWait};
  const auto open = [&gate](Gate to) {
    gate = to;
    gate.notify_all();
  };
  std::vector<std::thread> threads;
  const auto start = [&](int rank) {
    threads.emplace_back([&, rank] {
      gate.wait(kWait);
      if (gate == kNever) return;
      pthread_setname_np(pthread_self(), ("rank " + std::to_string(rank)).c_str());
      try {
        at::set_num_threads(threads_per_rank);
        const at::ThreadLocalStateGuard state(callers_state);
        const ElementwiseRandom random;
        // The casts that autocast keeps belong to the process: a rank that leaves its scope would clear the others',
        // and ranks whose graphs differ talk at cross-purposes.
        if (ranks > 1) at::autocast::set_autocast_cache_enabled(false);
        const CommunicatorPtr communicator = make_threads_communicator(hub, rank);
        fn(*communicator);
      } catch (...) {
        fail(rank);
      }
      try {
        rank_exit_hooks->run();
      } catch (...) {
        fail(rank);
      }
      world->end_rank(rank);
    });
  };
  std::string refused;
  try {
    for (int rank = 0; rank < ranks; ++rank) start(rank);
  } catch (const std::system_error& error) {
    refused = error.code().message();
  }
  open(refused.empty() ? kGo : kNever);
  for (std::thread& thread : threads) thread.join();
  TORCH_CHECK(refused.empty(), "run_ranks: cannot start the thread of rank ", threads.size(), " of ", ranks, "\n  have  ", refused,
              "\n  fix   use fewer ranks, or raise the limits of threads (ulimit -u) and memory (ulimit -v)");
  at::set_num_threads(callers_threads);
  if (first_error) rethrow_with_rank(first_error, first_rank, ranks);
}

}  // namespace moonhalo
