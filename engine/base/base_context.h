// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "moonhalo/engine/base/last_draw.h"
#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/base/settings.h"

namespace moonhalo {

class WorkListener;

/// One rank's settings, and the state of helpers that need no other folder of the engine.
struct BaseContext {
  Settings settings;
  WorkListener* work_listener = nullptr;               ///< work_note.h
  std::map<std::string, at::Tensor> device_constants;  ///< device_constant.h
  /// Random numbers (random/random.h): the rank's generator, the key of a call that is repeated, the last draw.
  at::Generator generator;
  std::optional<uint64_t> replayed_key;
  LastDraw last_draw;
};
inline const RankLocal<BaseContext> base_context;

}  // namespace moonhalo
