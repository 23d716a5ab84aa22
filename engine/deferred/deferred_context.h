// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {

class CaptureFactories;
class DeferredTape;

/// One rank's scopes that record or capture factories.
struct DeferredContext {
  int64_t recording_from = -1;                    ///< the smallest tensor that is deferred (deferred.h); -1: no scope
  std::weak_ptr<DeferredTape> tape;               ///< of the deferred tensors that live
  CaptureFactories* innermost_capture = nullptr;  ///< factory_capture.h
};
inline const RankLocal<DeferredContext> deferred_context;

}  // namespace moonhalo
