// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/kept_error.h"

#include <utility>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

const RankLocal<KeptError*> newest_kept_error(nullptr);

}  // namespace

KeptError::KeptError() : outer_(std::exchange(*newest_kept_error, this)) {}
KeptError::~KeptError() { *newest_kept_error = outer_; }

void KeptError::keep() noexcept {
  if (KeptError* const newest = *newest_kept_error) newest->error_ = std::current_exception();
}

}  // namespace moonhalo
