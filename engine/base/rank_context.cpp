// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/rank_context.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <memory>

namespace moonhalo {

thread_local constinit RankContext* RankContext::of_thread_ = nullptr;

// Not in the thread's own memory: of that a library may have little, or no running program (Python) can load it.
RankContext& RankContext::begin() {
  static thread_local constinit bool ended = false;
  struct Owner {
    std::unique_ptr<RankContext> context = std::make_unique<RankContext>();
    ~Owner() {
      context.reset();
      of_thread_ = nullptr;
      ended = true;
    }
  };
  if (ended) return *(of_thread_ = new RankContext);  // for what is destroyed later still, with the thread
  static thread_local const Owner owner;
  return *(of_thread_ = owner.context.get());
}

void RankContext::run_exit_hooks() {
  while (!exit_hooks_.empty()) {
    const std::function<void()> hook = std::move(exit_hooks_.back());
    exit_hooks_.pop_back();
    hook();
  }
}

// Last made, first destroyed; what a destructor requests again is destroyed too, and hooks that it adds are run.
RankContext::~RankContext() {
  for (run_exit_hooks(); made_ > 0; run_exit_hooks()) {
    const size_t part = order_[--made_];
    destroy_[part](std::exchange(values_[part], nullptr));
  }
}

size_t RankContext::new_part() {
  static std::atomic<size_t> parts{1};
  const size_t part = parts++;
  TORCH_INTERNAL_ASSERT(part < kParts, "more than ", kParts, " RankLocal objects; raise RankContext::kParts");
  return part;
}

void RankContext::keep(size_t part, void* value, void (*destroy)(void*)) {
  TORCH_INTERNAL_ASSERT(part > 0, "a RankLocal is used before it was made");
  values_[part] = value;
  destroy_[part] = destroy;
  order_[made_++] = part;
}

}  // namespace moonhalo
