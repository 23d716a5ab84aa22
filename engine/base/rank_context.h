// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace moonhalo {

/// All that the engine remembers for the rank that a thread is: settings, caches, statistics, the call under way. Ranks
/// may be threads, so nothing of it is shared; this is the engine's only thread_local state. Its parts are the contexts
/// of the layers, one RankLocal each (tests/style/rank_state.txt lists them). A context names only types of its own
/// layer and of those below.
class RankContext {
 public:
  /// The context of the calling thread.
  static RankContext& current() { return of_thread_ != nullptr ? *of_thread_ : begin(); }
  ~RankContext();
  RankContext() = default;
  RankContext(const RankContext&) = delete;

  /// Adds a function for run_exit_hooks, the last one first (at_rank_exit). ~RankContext runs what is left before it
  /// destroys the values.
  void at_exit(std::function<void()> hook) { exit_hooks_.push_back(std::move(hook)); }
  void run_exit_hooks();

 private:
  template <typename T>
  friend class RankLocal;
  friend class AsRank;
  static RankContext& begin();
  static constexpr size_t kParts = 32;
  static size_t new_part();
  void keep(size_t part, void* value, void (*destroy)(void*));

  std::array<void*, kParts> values_{};
  std::array<void (*)(void*), kParts> destroy_{};
  std::array<size_t, kParts> order_{};
  size_t made_ = 0;
  std::vector<std::function<void()>> exit_hooks_;
  // One load: the general model of shared libraries would be a function call.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit RankContext* of_thread_;
};

/// A value per rank, made at its first use: T(), or a copy of `initial`. For objects of static storage.
template <typename T>
class RankLocal {
 public:
  RankLocal() = default;
  explicit RankLocal(T initial) requires std::is_trivially_copyable_v<T> : initial_(initial) {}
  RankLocal(const RankLocal&) = delete;

  T& operator*() const {
    RankContext& context = RankContext::current();
    void*& value = context.values_[part_];
    if (value == nullptr) [[unlikely]]
      context.keep(part_, make(), [](void* made) { delete static_cast<T*>(made); });
    return *static_cast<T*>(value);
  }
  T* operator->() const { return &**this; }

 private:
  T* make() const {
    if constexpr (std::is_trivially_copyable_v<T>) {
      return new T(initial_);
    } else {
      return new T();
    }
  }
  struct Nothing {};
  [[no_unique_address]] std::conditional_t<std::is_trivially_copyable_v<T>, T, Nothing> initial_{};
  const size_t part_ = RankContext::new_part();
};

}  // namespace moonhalo
