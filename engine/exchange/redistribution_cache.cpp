// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution_cache.h"

#include <functional>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

// Per thread; then all are forgotten, so memory stays bounded.
constexpr size_t kMaxRedistributions = 1024;

using SpecPair = std::pair<const ShardSpec*, const ShardSpec*>;
struct HashPair {
  size_t operator()(const SpecPair& pair) const {
    return std::hash<const void*>()(pair.first) * 31 + std::hash<const void*>()(pair.second);
  }
};
using Cache = std::unordered_map<SpecPair, std::shared_ptr<const Redistribution>, HashPair>;

Cache& cache_of_thread() {
  static const RankLocal<Cache> cache;
  return *cache;
}

}  // namespace

std::shared_ptr<const Redistribution> cached_redistribution(const SpecPtr& from, const SpecPtr& to) {
  Cache& cache = cache_of_thread();
  const SpecPair key(from.get(), to.get());
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  auto planned = std::make_shared<const Redistribution>(from, to);
  if (cache.size() >= kMaxRedistributions) cache.clear();
  return cache[key] = std::move(planned);
}

int64_t cached_redistribution_count() { return static_cast<int64_t>(cache_of_thread().size()); }
void clear_redistribution_cache() { cache_of_thread().clear(); }

}  // namespace moonhalo
