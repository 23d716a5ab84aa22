// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/base/made_on_use.h"

namespace moonhalo {

class Dispatch;
class KeptError;
struct ReplicatedChecks;

/// One rank's state of operators.
struct DispatchContext {
  MadeOnUse<Dispatch> dispatch;
  MadeOnUse<ReplicatedChecks> checks;    ///< check_replicated.cpp
  KeptError* newest_error = nullptr;     ///< kept_error.h
  std::optional<int64_t> assumed_count;  ///< of results whose sizes depend on values (forecast/fake_tensor.h)
  bool refuses_fakes = false;            ///< forecast/fake_tensor.h
};
inline const RankLocal<DispatchContext> dispatch_context;

}  // namespace moonhalo
