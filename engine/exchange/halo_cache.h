// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {

/// The halos that one tensor keeps for its next readers. An exchange that is given one asks it first, and gives it what
/// arrives; both functions answer alike on every rank.
class HaloCache {
 public:
  /// The halo rows that one rank received by one interval map.
  struct Entry {
    std::shared_ptr<const IntervalMap::Key> key;
    uint32_t block_version = 0;     ///< of this rank's block when its rows left
    std::vector<at::Tensor> parts;  ///< by peer and region, in the map's order
    bool arrived = false;
  };
  virtual ~HaloCache() = default;

  /// Returns the entry of an equal map, or null.
  virtual std::shared_ptr<const Entry> find(const IntervalMap& map) const = 0;
  /// A place for what this map will bring; null where nothing travels or is kept.
  virtual std::shared_ptr<Entry> keep(const IntervalMap& map) const = 0;
};
/// Null: nothing is kept.
using HaloCachePtr = std::shared_ptr<const HaloCache>;

}  // namespace moonhalo
