// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <typeinfo>

#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/several_ranks.h"
#include "moonhalo/engine/comm/threads/thread_group.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/random/random.h"

namespace moonhalo {
namespace {

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

// The rank threads of one run_ranks, and the first error among them.
class RankThreads {
 public:
  RankThreads(int ranks, const std::function<void(Communicator&)>& fn, int threads_per_rank)
      : ranks_(ranks), fn_(fn), threads_per_rank_(threads_per_rank), world_(std::make_shared<ThreadWorld>(ranks)) {
    std::vector<int> everyone(ranks);
    std::iota(everyone.begin(), everyone.end(), 0);
    hub_ = std::make_shared<ThreadGroup>(world_, everyone);
  }

  /// Starts all and waits for their end. No rank begins before all have been started: where threads are short, nothing
  /// has been done. Throws then, or rethrows the first error of a rank.
  void run() {
    std::string refused;
    try {
      for (int rank = 0; rank < ranks_; ++rank) start(rank);
    } catch (const std::system_error& error) {
      refused = error.code().message();
    }
    gate_ = refused.empty() ? kGo : kNever;
    gate_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    TORCH_CHECK(refused.empty(), "run_ranks: cannot start the thread of rank ", threads_.size(), " of ", ranks_,
                "\n  have  ", refused,
                "\n  fix   use fewer ranks, or raise the limits of threads (ulimit -u) and memory (ulimit -v)");
    if (first_error_) rethrow_with_rank(first_error_, first_rank_, ranks_);
  }

 private:
  enum Gate { kWait, kGo, kNever };
  const SteadyTime began_ = std::chrono::steady_clock::now();

  void start(int rank) {
    threads_.emplace_back([this, rank] {
      gate_.wait(kWait);
      if (gate_ == kNever) return;
      pthread_setname_np(pthread_self(), ("rank " + std::to_string(rank)).c_str());
      keep_error(rank, [&] { call(rank); });
      keep_error(rank, [] { RankContext::current().run_exit_hooks(); });
      world_->end_rank(rank);
    });
  }

  void call(int rank) {
    at::set_num_threads(threads_per_rank_);
    const at::ThreadLocalStateGuard state(callers_state_);
    std::optional<MemoryCount> memory;
    if (counts_memory_) memory.emplace();
    const ElementwiseRandom random;
    // The casts that autocast keeps belong to the process: a rank that leaves its scope would clear the others',
    // and ranks whose graphs differ send messages that do not match.
    if (ranks_ > 1) at::autocast::set_autocast_cache_enabled(false);
    const CommunicatorPtr communicator = make_threads_communicator(hub_, rank);
    if (ranks_ > 1) note_several_ranks(began_);
    fn_(*communicator);
  }

  template <typename Fn>
  void keep_error(int rank, const Fn& fn) {
    try {
      fn();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      const std::lock_guard<std::mutex> lock(mutex_);
      if (first_error_) return;
      first_error_ = error;
      first_rank_ = rank;
      world_->abort("rank " + std::to_string(rank) + " failed: " + first_line(error));
    }
  }

  int ranks_;
  const std::function<void(Communicator&)>& fn_;
  int threads_per_rank_;
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadGroup> hub_;
  const at::ThreadLocalState callers_state_;
  const bool counts_memory_ = counts_memory();
  std::mutex mutex_;
  std::exception_ptr first_error_;
  int first_rank_ = 0;
  std::atomic<Gate> gate_{kWait};
  std::vector<std::thread> threads_;
};

}  // namespace

void at_rank_exit(std::function<void()> hook) { RankContext::current().at_exit(std::move(hook)); }

void run_ranks(int ranks, const std::function<void(Communicator&)>& fn, int threads_per_rank) {
  TORCH_CHECK_VALUE(ranks > 0, "run_ranks: ", ranks, " ranks\n  have  ranks = ", ranks,
                    "\n  fix   give a positive number");
  TORCH_CHECK_VALUE(threads_per_rank >= 0, "run_ranks: ", threads_per_rank,
                    " threads for each rank\n  have  threads_per_rank = ", threads_per_rank,
                    "\n  fix   give a positive number, or 0 to divide the cores");
  const int callers_threads = at::get_num_threads();
  if (threads_per_rank == 0) threads_per_rank = std::max(1, callers_threads / ranks);
  const auto restore = c10::make_scope_exit([callers_threads] { at::set_num_threads(callers_threads); });
  RankThreads(ranks, fn, threads_per_rank).run();
}

}  // namespace moonhalo
