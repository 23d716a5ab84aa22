// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/pointwise_rule.h"

namespace moonhalo {

const Rule* pointwise_rule() {
  static const Rule* const rule = find_rule({"moonhalo::pointwise", ""});
  return rule;
}

}  // namespace moonhalo
