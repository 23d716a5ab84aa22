// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution_cache.h"

#include <utility>

#include "moonhalo/engine/exchange/exchange_context.h"

namespace moonhalo {
namespace {

// Per thread; then all are forgotten, so memory stays bounded.
constexpr size_t kMaxRedistributions = 1024;

}  // namespace

std::shared_ptr<const Redistribution> cached_redistribution(const SpecPtr& from, const SpecPtr& to) {
  auto& cache = exchange_context->redistributions;
  const ExchangeContext::SpecPair key(from.get(), to.get());
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  auto planned = std::make_shared<const Redistribution>(from, to);
  if (cache.size() >= kMaxRedistributions) cache.clear();
  return cache[key] = std::move(planned);
}

int64_t cached_redistribution_count() { return static_cast<int64_t>(exchange_context->redistributions.size()); }
void clear_redistribution_cache() { exchange_context->redistributions.clear(); }

}  // namespace moonhalo
