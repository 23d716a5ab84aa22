// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// The rule of operators that PyTorch tags as pointwise, which others plan by, too (ops/elementwise/pointwise.cpp).
/// Looked up once, after static initialization, in which rules are registered; null without ops/.
const Rule* pointwise_rule();

}  // namespace moonhalo
