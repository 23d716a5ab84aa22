// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/kept_error.h"

#include "moonhalo/engine/dispatch/dispatch_context.h"

namespace moonhalo {

KeptError::KeptError() : newest_(dispatch_context->newest_error, this) {}

void KeptError::keep() noexcept {
  if (KeptError* const newest = dispatch_context->newest_error) newest->error_ = std::current_exception();
}

}  // namespace moonhalo
