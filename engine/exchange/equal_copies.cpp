// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/equal_copies.h"

#include "moonhalo/engine/exchange/exchange_context.h"

namespace moonhalo {

JoinEqualCopies::JoinEqualCopies() : joins_(exchange_context->joins_equal_copies, true) {}

bool JoinEqualCopies::applies_to(const Communicator& group) {
  return exchange_context->joins_equal_copies && group.is_fake();
}

EqualCopies::EqualCopies(int64_t calls) : calls_(exchange_context->equal_copies, calls) {}

int64_t EqualCopies::current() { return exchange_context->equal_copies; }

}  // namespace moonhalo
