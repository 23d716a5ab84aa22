// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {

/// Puts all settings of this thread's rank back at its end. Not collective; between its ends every rank must make the
/// same changes.
class ScopedSettings {
 public:
  ScopedSettings() : before_(settings()) {}
  ~ScopedSettings() {
    if (settings().fallback != before_.fallback) set_fallback(before_.fallback);  // which forgets decisions
    base_context->settings = before_;
  }
  ScopedSettings(const ScopedSettings&) = delete;
  ScopedSettings& operator=(const ScopedSettings&) = delete;

 private:
  const Settings before_;
};

}  // namespace moonhalo
